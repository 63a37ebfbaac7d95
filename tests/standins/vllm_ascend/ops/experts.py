"""Expert parallelism for vLLM's experts on CPUs, which compute as if a process had all of them.

Where it has a part, what a token gets of the others is nothing here, and is added where its group sums.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def own_experts_only() -> None:
    """Have experts on CPUs look at the map of those that are here."""
    apply, select = CPUUnquantizedExperts.apply, CPUUnquantizedExperts._select_experts
    signature = inspect.signature(apply)

    def mapped_apply(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        self.own = signature.bind(self, *given, **named).arguments["expert_map"]
        return apply(self, *given, **named)

    def mapped_select(self: Any, *given: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = select(self, *given, **named)
        if self.own is None:
            return weights, experts
        here = self.own[experts.long()]
        return torch.where(here < 0, 0.0, weights), here.clamp(min=0).to(experts.dtype)

    CPUUnquantizedExperts.apply, CPUUnquantizedExperts._select_experts = mapped_apply, mapped_select
