"""The price of a schedule in one object: what ``vppc simulate`` and ``vppc profile`` print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from vppc.analysis.bounds import LowerBound, lower_bound
from vppc.analysis.breakdown import RankBreakdown, breakdown, first_tokens, makespan
from vppc.analysis.timing import Timing, simulate
from vppc.costs.model import CostModel, OpCosts, ideal_seconds
from vppc.ir.schedule import Request, Schedule


@dataclass(frozen=True, slots=True)
class Report:
    """Makespan, efficiency, bound, TTFT of each request and the breakdown of each rank; times in seconds.

    ``ideal`` is the work of the unchunked prompts without per-chunk costs, over pp; of a request that was cancelled, or
    that an open stream has not finished, of what there is of it. One that is not sampled has no ``ttft``.
    """

    makespan: float
    ideal: float
    bound: LowerBound
    ttft: tuple[float | None, ...]
    ranks: tuple[RankBreakdown, ...]

    @property
    def efficiency(self) -> float:
        """ideal / makespan; of nothing to do, 1."""
        return self.ideal / self.makespan if self.makespan else 1.0

    @property
    def gap(self) -> float:
        """How much longer than the lower bound the schedule takes, as a part of the bound."""
        return self.makespan / self.bound.seconds - 1.0 if self.bound.seconds else 0.0

    def json(self) -> dict[str, Any]:
        """The JSON of ``simulate --json``: the keys of the file formats' documentation, and what binds."""
        return {
            "makespan": self.makespan,
            "ideal": self.ideal,
            "efficiency": self.efficiency,
            "lower_bound": self.bound.seconds,
            "lower_bound_by": asdict(self.bound),
            "ttft": list(self.ttft),
            "ranks": [asdict(rank) for rank in self.ranks],
        }


def report(schedule: Schedule, cost: CostModel, costs: OpCosts, timing: Timing) -> Report:
    """Judge a simulated or measured run of a schedule; ``costs`` are ``cost`` for its operations."""
    return Report(
        makespan=makespan(schedule, timing),
        ideal=ideal_seconds(cost, _computed(schedule), schedule.pp),
        bound=lower_bound(schedule, costs),
        ttft=first_tokens(schedule, timing),
        ranks=breakdown(schedule, timing, costs),
    )


def _computed(schedule: Schedule) -> Iterator[Request]:
    """The prompts as far as there are chunks of them: those of cancelled requests, and of an open stream, may end
    before they are whole."""
    ends: dict[int, int] = {}
    for chunk in schedule.chunks:
        ends.update((part.request, part.end) for part in chunk.parts if not part.decode)
    for index, request in enumerate(schedule.requests):
        if end := ends.get(index):
            yield request if end == request.prompt_tokens else replace(request, prompt_tokens=end)


def predict(schedule: Schedule, cost: CostModel) -> Report:
    """Simulate a verified schedule with a cost model, interference included, and judge the run."""
    costs = OpCosts.of(schedule, cost)
    return report(schedule, cost, costs, simulate(schedule, costs, cost.interference))
