"""Costs that follow what a folded server's ranks take, as those of ``vppc serve`` do.

They are what ranks are ordered by, so the engine's process keeps them; ranks only say when their instructions ran. What
batches are made by (deadlines, chunks of equal time) belongs to vLLM's scheduler, in the same process, to which vLLM
hands on what each batch has made: corrected costs go with that.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from runtime.vllm_plugin.page import Page
from vppc.costs.model import CostModel
from vppc.ir.segment import Segment
from vppc.serving.batch_order import BatchCompiler
from vppc.serving.drift import Drift
from vppc.serving.refit import Found, Refit

_COSTS = "vppc_costs"


class Correction:
    """Compares what ranks of ``tp`` processes write to ``page`` with ``cost``, and has ``compiler`` go by what fits.

    ``notice`` is told, in words, what an operator is to know.
    """

    def __init__(
        self, compiler: BatchCompiler, cost: CostModel, page: Page, tp: int, notice: Callable[[str], None]
    ) -> None:
        self._compiler, self._page, self._tp = compiler, page, tp
        self._drift = Drift(compiler.opening, cost)
        self._found: SimpleQueue[Found] = SimpleQueue()
        self._refit = Refit(self._drift, notice, self._found.put)
        self._heard = [0] * compiler.opening.pp  # instructions

    def sent(self, segment: Segment) -> None:
        """A segment is on its way to the ranks."""
        self._drift.sent(segment)

    def look(self) -> CostModel | None:
        """Hear what the ranks have run since the last look; new costs, if some have been found."""
        for rank, first in enumerate(self._heard):
            process = rank * self._tp
            times = self._page.ran(process, first)
            self._heard[rank] += len(times) // 2
            self._drift.ran(rank, first, times)
            self._page.put_drift(process, self._drift.of(rank))
        self._refit.look()
        cost = None if self._found.empty() else self._refit.take(self._found.get())
        if cost is not None:
            self._compiler.replan(cost)
        return cost


def send_with(made: Any, cost: CostModel) -> Any:
    """What a batch has made, with costs for the scheduler."""
    setattr(made, _COSTS, cost)
    return made


def costs_with(made: Any) -> CostModel | None:
    """The costs that came with what a batch has made, if some did."""
    cost: CostModel | None = getattr(made, _COSTS, None)
    return cost
