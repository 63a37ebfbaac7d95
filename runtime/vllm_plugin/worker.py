"""The worker of a folded server: a pipeline rank with two virtual stages, each on a model runner of its own.

Of P ranks, rank r has stages r and 2 P - 1 - r; the last rank has the two in the middle, and no transfer between them.
All workers get the same calls in the same order, and each batch comes by in every stage, also one without tokens,
which tells who has finished. When a batch goes back, each rank but the first decides by its lag of the compiled order,
see :mod:`runtime.vllm_plugin.order`, at the latest when vLLM asks for its tokens; on the first, when it asks. Lags
never grow with the rank, so a rank has sent a batch back in the same call as the rank before wants it, or an earlier
one: the workers cannot wait for each other in a circle.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.parallel_state import get_pp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.cpu_worker import CPUWorker

from runtime.devices.links import GroupLink, GroupTransfer
from runtime.runners.vllm.upstream import StagePlace, load_stage
from runtime.vllm_plugin.page import Doing, Page, RankRow, instruction, page_path
from runtime.vllm_plugin.parts import Prompts
from runtime.vllm_plugin.pricing import BatchDrift
from runtime.vllm_plugin.settings import FILE, Fold, read_settings
from vppc.errors import InputError


class Sent(NamedTuple):
    """Tensors that are on their way."""

    transfer: GroupTransfer
    tensors: list[Tensor]


class Coming(NamedTuple):
    """A batch that is to run: of one with tokens, the activations, and the receive that fills them, if any.

    ``chunk`` counts the batches with tokens, from 0; one without has the number of the next. ``planned`` are the
    seconds of each stage, where there are costs.
    """

    batch: SchedulerOutput
    chunk: int
    planned: Sequence[float]
    tensors: dict[str, Tensor] | None = None
    transfer: GroupTransfer | None = None


class FoldWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's worker for CPUs, with two stages."""

    def init_device(self) -> None:
        if self.use_v2_model_runner:
            raise InputError("cannot fold: stages are V1 model runners", file=FILE, remedy="VLLM_USE_V2_MODEL_RUNNER=0")
        super().init_device()
        group = get_pp_group()
        self.rank_here, self.pp = group.rank_in_group, group.world_size
        # one group for each direction of each pair of neighbours, made by all ranks in the same order
        links = {}
        for low in range(self.pp - 1):
            for ends in ((low, low + 1), (low + 1, low)):
                made = dist.new_group([group.ranks[low], group.ranks[low + 1]], backend="gloo")
                if self.rank_here in ends:
                    peer = ends[1 - ends.index(self.rank_here)]
                    links[ends] = GroupLink(made, peer - low)
        self._links = links
        self._sent: deque[Sent] = deque()
        self._coming: deque[Coming] = deque()
        self._page = Page(page_path(self.vllm_config), self.pp)
        self._row = RankRow(Doing.IDLE, -1, -1, 0.0, None)
        self._entered = self._returned = self._asked = 0  # batches with tokens

    def load_model(self, **options: Any) -> None:
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the worker of a folded server needs its settings")
        self._lag = settings.lags(self.pp)[self.rank_here]
        layers = settings.layers(self.pp, self.model_config.get_total_num_hidden_layers())
        cost = settings.cost(sum(layers))
        self._drift = None if cost is None else BatchDrift(cost, layers)
        self._prompts = Prompts()
        self._places = {
            stage: StagePlace(stage, layers) for stage in (self.rank_here, 2 * self.pp - 1 - self.rank_here)
        }
        self._stages: dict[int, Any] = {
            stage: load_stage(self.vllm_config, place, self.device) for stage, place in self._places.items()
        }
        self.model_runner = self._stages[self.rank_here]  # for what vLLM asks of any runner

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stage, runner in self._stages.items():
            with self._places[stage].here():
                found |= runner.get_kv_cache_spec()
        return found

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Each stage binds its layers' part of the rank's KV cache; blocks have the same numbers in all of them."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        for stage, runner in self._stages.items():
            with self._places[stage].building(runner.vllm_config):
                own = set(runner.get_kv_cache_spec())
                config = copy.deepcopy(kv_cache_config)
                for tensor in config.kv_cache_tensors:
                    tensor.shared_by = [name for name in tensor.shared_by if name in own]
                config.kv_cache_tensors = [tensor for tensor in config.kv_cache_tensors if tensor.shared_by]
                for group in config.kv_cache_groups:
                    group.layer_names = [name for name in group.layer_names if name in own]
                runner.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
                runner.initialize_kv_cache(config)

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """A batch's way in, through this rank's first stage; and the way back of one that by now has its turn."""
        here, batch = self.rank_here, scheduler_output
        planned = self._drift.seconds(self._prompts.parts(batch)) if self._drift is not None else ()
        coming = Coming(batch, self._entered, planned)
        made = self._run(here, self._receive(coming, here - 1) if here else coming)
        if here == self.pp - 1:
            self._coming.append(coming._replace(tensors=made))
        else:
            self._send(here + 1, made)
            self._coming.append(self._receive(coming, here + 1))
        tokens = bool(batch.total_num_scheduled_tokens)
        self._entered += tokens
        while here and self._entered - self._returned > self._lag:
            self._go_back()
        return None if tokens else EMPTY_MODEL_RUNNER_OUTPUT

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        """vLLM wants the next batch's tokens: it goes back, where it has not; rank 0 has the sampler."""
        self._asked += 1
        while self._returned < self._asked:
            self._go_back()
        if self.rank_here:
            return None
        last = 2 * self.pp - 1
        with self._doing(Doing.SAMPLE, self._asked - 1, last), self._places[last].here():
            return self._stages[last].sample_tokens(grammar_output)

    def _go_back(self) -> None:
        """The way back of the next batch with tokens, through this rank's second stage, and of those before it."""
        stage = 2 * self.pp - 1 - self.rank_here
        while True:
            coming = self._coming.popleft()
            made = self._run(stage, coming)
            if coming.tensors is not None:
                break
        self._returned += 1
        if self.rank_here:
            self._send(self.rank_here - 1, made)

    def _run(self, stage: int, coming: Coming) -> dict[str, Tensor] | None:
        """Run a stage; what goes to the next. A model runner changes the batch that it is given, so it gets its own."""
        if coming.transfer is not None:
            with self._doing(Doing.RECV, coming.chunk, stage):
                coming.transfer.wait()
        given = None if coming.tensors is None else IntermediateTensors(coming.tensors)
        busy = self._row.busy
        with self._doing(Doing.FORWARD, coming.chunk, stage), self._places[stage].here():
            made = self._stages[stage].execute_model(copy.deepcopy(coming.batch), given)
        if self._drift is not None and coming.batch.total_num_scheduled_tokens:
            self._drift.window.add(self._row.busy - busy, coming.planned[stage])
            self._row = replace(self._row, drift=self._drift.window.drift)  # seen with the next instruction
        return dict(made.tensors) if isinstance(made, IntermediateTensors) else None

    @contextmanager
    def _doing(self, doing: Doing, chunk: int, stage: int) -> Iterator[None]:
        """Say so on the page, and in the message of what fails meanwhile."""
        row, start = self._row, time.monotonic()
        self._page.put_rank(self.rank_here, replace(row, doing=doing, chunk=chunk, stage=stage))
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"rank {self.rank_here}, {instruction(doing, chunk, stage)}: {error}") from error
        busy = 0.0 if doing == Doing.RECV else time.monotonic() - start
        self._row = replace(row, chunk=chunk, stage=stage, busy=row.busy + busy)
        self._page.put_rank(self.rank_here, self._row)

    def _send(self, peer: int, tensors: dict[str, Tensor] | None) -> None:
        while self._sent and all(work.is_completed() for work in self._sent[0].transfer.works):
            self._sent.popleft()
        if tensors is not None:
            parts = [tensor.contiguous() for tensor in tensors.values()]
            self._sent.append(Sent(self._links[self.rank_here, peer].send(parts), parts))

    def _receive(self, coming: Coming, peer: int) -> Coming:
        """Post a receive of a batch's activations; of one without tokens there are none."""
        tokens = coming.batch.total_num_scheduled_tokens
        if not tokens:
            return coming
        runner = self.model_runner
        room = runner.model.make_empty_intermediate_tensors(
            batch_size=tokens, dtype=runner.model_config.dtype, device=runner.device
        )
        transfer = self._links[peer, self.rank_here].recv(list(room.tensors.values()))
        return coming._replace(tensors=dict(room.tensors), transfer=transfer)
