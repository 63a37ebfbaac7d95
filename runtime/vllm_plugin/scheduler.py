"""vLLM's scheduler, with chunks as large as a plan says."""

from __future__ import annotations

import math
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from runtime.vllm_plugin.settings import Fold, read_settings


class PlannedScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not there when types are checked
    """The first prompt of a batch says how many prompt tokens the batch has; what it leaves, others fill.

    So a planned chunk is not made longer by what else waits. Decodes come on top, within vLLM's own bound.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = read_settings(self.vllm_config.additional_config)
        plan = settings.chunk_plan() if isinstance(settings, Fold) else None
        if plan is None:
            raise ValueError("the scheduler of planned chunks needs its plan")
        self._plan = plan
        self._room: float | None = None  # prompt tokens that this batch still takes; None before the first

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._room = None
        return super().schedule(throttle_prefills)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM asks this for every request, waiting or running, when it is about to say how many tokens it computes."""
        tokens = int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))
        if num_computed_tokens >= request.num_prompt_tokens:
            return tokens
        planned = self._plan.room(request.num_prompt_tokens, num_computed_tokens) or math.inf
        if self._room is None:
            self._room = planned
        tokens = int(min(tokens, planned, self._room))
        self._room -= tokens
        return tokens
