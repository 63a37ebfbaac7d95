"""A rank's two stages, each on a model runner of vLLM, as the interpreter's runner.

vLLM's batches are its chunks, so a model runner is told what vLLM's own scheduler says to a worker. Each batch comes
by in each stage in the order of vLLM's, also one without tokens, which is no chunk and tells who has finished: that
runs before the next that is one, or when vLLM asks what a KV connector did meanwhile.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from vllm.distributed.kv_transfer import has_kv_transfer_group
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from runtime.runners.protocol import Buffer, TensorSpec
from runtime.runners.vllm.shares import Shares
from runtime.runners.vllm.upstream import StagePlace, build
from runtime.vllm_plugin.replicas import is_dummy


class Stages:
    """A runner of ``runners`` by stage, of which the first has the earlier stage. ``grammar`` is for the next sampling.

    A rank of several processes hands on shares of its activations. ``carried`` is an activation of one token.
    """

    def __init__(
        self,
        runners: Mapping[int, Any],
        places: Mapping[int, StagePlace],
        shares: Shares,
        carried: Mapping[str, torch.Tensor],
    ) -> None:
        self.grammar: Any = None
        self._runners, self._places, self._shares = runners, places, shares
        self._second = max(runners)
        self._names, self._widths = tuple(carried), [each.shape[-1] for each in carried.values()]
        whole = [TensorSpec(name, tuple(each.shape[1:]), each.dtype) for name, each in carried.items()]
        self.payload = tuple(replace(each, row=(*each.row[:-1], each.row[-1] // shares.size)) for each in whole)
        self._batches: dict[int, Any] = {}  # by chunk
        self._chunks = 0
        self._coming: dict[int, deque[Any]] = {stage: deque() for stage in runners}
        self._ended: deque[Any] = deque()

    def rows(self, tokens: int) -> int:
        """The rows of an activation of so many tokens on this process."""
        return build().rows(next(iter(self._runners.values())).vllm_config, tokens)

    def take(self, batch: Any) -> None:
        """The next batch of vLLM's."""
        for coming in self._coming.values():
            coming.append(batch)
        if batch.total_num_scheduled_tokens:
            self._batches[self._chunks] = batch
            self._chunks += 1

    def ended(self) -> Any:
        """What vLLM is told of the next batch that has been through both stages; of one without tokens, now."""
        if not self._ended:
            for stage in self._coming:
                self._run_empty(stage)
        return self._ended.popleft()

    def prepare(self, chunk: int, skip: frozenset[int]) -> Any:
        return self._batches.pop(chunk)

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        self._run_empty(stage)
        batch = self._coming[stage].popleft()
        assert batch is prepared, "chunks come by in the order of vLLM's batches"
        if is_dummy(batch):
            self._run_dummy(stage, batch)
            return
        made = self._execute(stage, batch, None if inputs is None else self._whole(batch, inputs))
        if isinstance(made, IntermediateTensors):
            self._hand_on(batch, made, outputs)
        if stage == self._second and (outputs is None or not self._places[stage].last):
            self._sample(stage, None)  # there is nothing to sample; a stage that is not the last never samples

    def sample(self, prepared: Any, inputs: Buffer) -> Sequence[tuple[int, int]]:
        """vLLM's sampler has the last stage's output; its engine is told the tokens, see :meth:`ended`."""
        if not is_dummy(prepared):
            self._sample(self._second, self.grammar)
        return ()

    def release(self, request: int) -> None:
        """vLLM itself says to its model runners which request has finished."""

    def _sample(self, stage: int, grammar: Any) -> None:
        with self._places[stage].here():
            self._ended.append(self._runners[stage].sample_tokens(grammar))

    def _run_dummy(self, stage: int, batch: Any) -> None:
        """A forward for the sake of other replicas, which nobody looks at."""
        with self._places[stage].here():
            self._runners[stage]._dummy_run(batch.total_num_scheduled_tokens, uniform_decode=True)
        if stage == self._second:
            self._ended.append(EMPTY_MODEL_RUNNER_OUTPUT)

    def _run_empty(self, stage: int) -> None:
        """Run the batches without tokens that are next."""
        coming = self._coming[stage]
        while coming and not coming[0].total_num_scheduled_tokens:
            made = self._execute(stage, coming.popleft(), None)
            if stage == self._second and has_kv_transfer_group():
                self._ended.append(made)

    def _execute(self, stage: int, batch: Any, inputs: IntermediateTensors | None) -> Any:
        """A model runner changes the batch that it is given, so it gets its own. One's are the KV connector's part and
        the prompts, which nobody changes: to copy them would take milliseconds."""
        shared = (batch.kv_connector_metadata, *(new.prompt_token_ids for new in batch.scheduled_new_reqs))
        own = copy.deepcopy(batch, {id(each): each for each in shared})
        with self._places[stage].here():
            return self._runners[stage].execute_model(own, inputs)

    def _whole(self, batch: Any, inputs: Buffer) -> IntermediateTensors:
        rows = self.rows(batch.total_num_scheduled_tokens)
        return IntermediateTensors(
            {
                name: self._shares.whole(tensor, (rows, *tensor.shape[1:-1], width))
                for name, width, tensor in zip(self._names, self._widths, inputs, strict=True)
            }
        )

    def _hand_on(self, batch: Any, made: IntermediateTensors, outputs: Buffer | None) -> None:
        """Raises RuntimeError when a stage has made other rows than the next one takes."""
        tokens = batch.total_num_scheduled_tokens
        found = {len(each) for each in made.tensors.values()}
        if found - {self.rows(tokens)}:
            raise RuntimeError(f"{tokens} tokens have become {found} rows")
        for name, tensor in zip(self._names, outputs or (), strict=True):
            tensor.copy_(self._shares.part(made.tensors[name]).view_as(tensor))
