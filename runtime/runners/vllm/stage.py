"""One virtual stage: a model runner of vLLM, its KV cache, and the scheduler's side of the talk with it.

To the model runner it looks as if it were one worker of a plain pipeline: it is told of every batch in order, of new
requests in full, of known ones what has changed, and of finished ones with the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.sequence import IntermediateTensors
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.request import Request

from runtime.faults import RunFailed
from runtime.runners.vllm.batch import Slice
from runtime.runners.vllm.upstream import StagePlace, load_stage, settle_layout
from vppc.errors import InputError


class Stage:
    """Runs the layers of one stage on slices of requests.

    ``prompt`` and ``outputs`` give a request's token ids: its prompt, and what has been sampled so far.
    """

    def __init__(
        self,
        config: VllmConfig,
        place: StagePlace,
        device: torch.device,
        *,
        blocks: Callable[[int, int], int],
        prompt: Callable[[int], list[int]],
        outputs: Callable[[int], list[int]],
    ) -> None:
        """Loads the stage's weights. ``blocks`` are as in :class:`runtime.runners.vllm.config.Room`."""
        self._place, self._prompt, self._outputs = place, prompt, outputs
        self._runner = load_stage(config, place, device)
        own = self._runner.vllm_config
        if not hasattr(self._runner.model, "make_empty_intermediate_tensors"):
            raise InputError("vLLM's model does not take a pipeline", file=own.model_config.model)
        with place.building(own):
            spec = self._runner.get_kv_cache_spec()
            kinds = {(layer.block_size, layer.page_size_bytes) for layer in spec.values()}
            if len(kinds) > 1:
                raise InputError("its layers have several kinds of KV cache", file=own.model_config.model)
            ((size, page),) = kinds
            # vLLM keeps block 0 for padding
            own.cache_config.num_gpu_blocks_override = own.cache_config.num_gpu_blocks = blocks(size, page) + 1
            settle_layout(own, spec.values())
            (cache,) = get_kv_cache_configs(own, [spec], [0])
            self._runner.initialize_kv_cache(cache)
        if self._runner.reorder_batch_threshold not in (None, 1):
            raise InputError("vLLM's attention for it orders batches in its own way", file=own.model_config.model)
        self._manager = KVCacheManager(
            kv_cache_config=cache,
            max_model_len=own.model_config.max_model_len,
            scheduler_block_size=size,
            hash_block_size=size,
            enable_caching=False,
        )
        self._block: int = size
        self._requests: dict[int, Request] = {}
        self._finished: set[str] = set()

    @property
    def payload(self) -> dict[str, Tensor]:
        """The tensors behind the stage, by vLLM's names, for one token."""
        model = self._runner.model_config
        made = self._runner.model.make_empty_intermediate_tensors(
            batch_size=1, dtype=model.dtype, device=self._runner.device
        )
        return dict(made.tensors)

    @property
    def room(self) -> int:
        """Tokens that its KV cache holds."""
        return int(self._manager.block_pool.num_gpu_blocks - 1) * self._block

    @property
    def resident(self) -> frozenset[int]:
        """The requests of which anything is held."""
        return frozenset(self._requests)

    def run(self, slices: Sequence[Slice], inputs: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """Run the layers; what goes to the next stage, or of the last one the hidden states, by vLLM's names.

        After the last stage's run, :meth:`sample` has to be called before the next.
        """
        given = None if inputs is None else IntermediateTensors(inputs)
        output = self._scheduler_output(slices)
        with self._place.here():
            made = self._runner.execute_model(output, given)
        if made is None:
            state = self._runner.execute_model_state
            return {"hidden_states": state.hidden_states[: output.total_num_scheduled_tokens]}
        return dict(made.tensors)

    def sample(self) -> dict[int, tuple[int, Tensor]]:
        """Of every request that the last run has brought to its end so far: the next token, and its logits."""
        logits = self._runner.execute_model_state.logits
        with self._place.here():
            made = self._runner.sample_tokens(None)
        return {
            int(request): (tokens[0], logits[row])
            for row, (request, tokens) in enumerate(zip(made.req_ids, made.sampled_token_ids, strict=True))
            if tokens
        }

    def finish(self, request: int) -> None:
        """Give a request's blocks back; the model runner forgets it with the next batch."""
        known = self._requests.pop(request, None)
        if known is not None:
            self._manager.free(known)
            self._finished.add(known.request_id)

    def _scheduler_output(self, slices: Sequence[Slice]) -> SchedulerOutput:
        output = SchedulerOutput.make_empty()
        output.finished_req_ids, self._finished = self._finished, set()
        known = output.scheduled_cached_reqs
        for each in slices:
            new = each.request not in self._requests
            request = self._request(each.request)
            request.num_computed_tokens = each.start
            blocks = self._manager.allocate_slots(request, each.tokens)
            if blocks is None:
                raise RunFailed(
                    f"the KV cache of {self._manager.block_pool.num_gpu_blocks - 1} blocks is full: "
                    "give it more with VLLM_CPU_KVCACHE_SPACE (GiB), or let fewer tokens in with --max-resident-tokens"
                )
            output.num_scheduled_tokens[request.request_id] = each.tokens
            if new:
                ids = self._manager.get_block_ids(request.request_id)
                output.scheduled_new_reqs.append(NewRequestData.from_request(request, ids))
                continue
            end = each.start + each.tokens
            known.req_ids.append(request.request_id)
            known.new_block_ids.append(blocks.get_block_ids(allow_none=True))
            known.num_computed_tokens.append(each.start)
            known.num_output_tokens.append(max(0, end - request.num_prompt_tokens))
            known.new_token_ids.append(self._tokens(each.request, each.start, end))
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.num_common_prefix_blocks = [0]
        return output

    def _request(self, index: int) -> Request:
        if index not in self._requests:
            self._requests[index] = Request(
                request_id=str(index),
                prompt_token_ids=list(self._prompt(index)),
                sampling_params=SamplingParams(temperature=0, ignore_eos=True, detokenize=False),
                pooling_params=None,
            )
        return self._requests[index]

    def _tokens(self, request: int, start: int, end: int) -> list[int]:
        """Token ids by position; zeros for tokens sampled elsewhere, which only stage 0 would embed."""
        prompt = self._prompt(request)
        made = len(prompt)  # where what has been sampled begins
        known = prompt[start:end] + self._outputs(request)[max(0, start - made) : max(0, end - made)]
        return known + [0] * (end - start - len(known))
