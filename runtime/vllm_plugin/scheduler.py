"""vLLM's scheduler, of whose prompts our queue policies and chunk rules say which go into a batch.

vLLM visits its running requests, then the waiting ones. Those that are chosen are put to the front of its queue, and
:meth:`FoldScheduler._reserve_prefill_lookahead`, which it asks of each for the number of tokens, says what was decided.
Decodes, blocks, preemption, the prefix cache and who waits for a grammar or for blocks from elsewhere are vLLM's.
"""

from __future__ import annotations

import math
import time
from itertools import islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from runtime.runners.vllm.upstream import held_back, may_run, most_running
from runtime.vllm_plugin.batches import Prompt, batches_of, repriced
from runtime.vllm_plugin.correction import costs_with
from runtime.vllm_plugin.settings import Fold, read_settings


class FoldScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's scheduler with our batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the scheduler of a folded server needs its settings")
        self._settings = settings
        self._batches = batches_of(settings, self.vllm_config)
        self._decided: dict[str, int] = {}  # of each prompt the tokens in this batch
        self._hits: dict[str, int] = {}  # of each waiting prompt the tokens that are cached
        self._full = False  # whether the last batch had no block for any of its prompts
        if self.connector is not None:
            # vLLM does so for what a connector loads: a batch between its passes may write to, or save, freed blocks
            self.defer_block_free = True

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        waiting = self._ready()
        self._hits = {name: self._hits.get(name) or self._hit(request) for name, request in waiting.items()}
        prompts = [_prompt(each, each.num_computed_tokens, resident=True) for each in self.running if _unread(each)]
        prompts += [_prompt(each, self._hits[name], resident=False) for name, each in waiting.items()]
        decodes = sum(each.num_computed_tokens < each.num_tokens for each in self.running if not _unread(each))
        chosen = self._batches.next(prompts, time.time(), room=self._room(), decodes=decodes)
        self._decided = dict.fromkeys((prompt.id for prompt in prompts), 0) | chosen
        self._put_first([waiting[request] for request in chosen if request in waiting])
        made: SchedulerOutput = super().schedule(throttle_prefills)
        self._full = bool(chosen) and not chosen.keys() & made.num_scheduled_tokens.keys()
        return made

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        cost = costs_with(model_runner_output)
        if cost is not None:
            self._batches = repriced(self._batches, self._settings, self.vllm_config, cost)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM asks this for every request, waiting or running, when it is about to say how many tokens it computes."""
        tokens = int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))
        return min(tokens, self._decided.get(request.request_id, tokens))  # those of a decode are vLLM's

    def _ready(self) -> dict[str, Any]:
        """The waiting requests that could run, in vLLM's order; of those that it skips, those that need not wait."""
        held = held_back(self)
        ready = [request for request in held if may_run(self, request)]
        if ready:
            held.remove_requests(ready)
            for request in reversed(ready):
                self.waiting.prepend_request(request)
        return {
            request.request_id: request
            for request in self.waiting
            if may_run(self, request) and not self._stale(request)
        }

    def _stale(self, request: Any) -> bool:
        """Whether what was computed of a waiting request before it was preempted is still on its way."""
        return bool(request.num_stale_output_tokens and not request.drop_stale_output)

    def _hit(self, request: Any) -> int:
        """How many tokens vLLM will find computed of a waiting request."""
        if request.num_computed_tokens:  # its blocks were loaded from elsewhere
            return int(request.num_computed_tokens)
        if not self._looks_up(request):
            return 0
        return int(
            self.kv_cache_manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]
        )

    def _looks_up(self, request: Any) -> bool:
        """Whether vLLM looks for a request's tokens in the prefix cache."""
        return bool(self.kv_cache_manager.prefix_cache_lookup_enabled(request))

    def _room(self) -> float:
        """The tokens of further requests for which there are blocks, and a place among those that run."""
        if not self.running:
            return math.inf
        if self._full or len(self.running) >= most_running(self):
            return 0
        return float(self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size)

    def _put_first(self, chosen: list[Any]) -> None:
        if list(islice(self.waiting, len(chosen))) != chosen:
            self.waiting.remove_requests(chosen)
            for request in reversed(chosen):
                self.waiting.prepend_request(request)


def _unread(request: Any) -> bool:
    """Whether a running request's prompt is not through."""
    return bool(request.is_prefill_chunk)


def _prompt(request: Any, computed: int, *, resident: bool) -> Prompt:
    extra = {"priority": request.priority}
    return Prompt(request.request_id, request.num_tokens, computed, request.arrival_time, resident, extra)
