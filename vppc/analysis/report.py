"""The price of a schedule in one object: what ``vppc simulate`` and ``vppc profile`` print."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vppc.analysis.bounds import LowerBound, lower_bound
from vppc.analysis.breakdown import RankBreakdown, breakdown, first_tokens, makespan
from vppc.analysis.timing import Timing, simulate
from vppc.costs.model import CostModel, OpCosts, ideal_seconds
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Report:
    """Makespan, efficiency, bound, TTFT of each request and the breakdown of each rank; times in seconds.

    ``ideal`` is the work of the unchunked prompts without per-chunk costs, over pp. A request that an open
    stream has not sampled yet has no ``ttft``.
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
        ideal=ideal_seconds(cost, schedule.requests, schedule.pp),
        bound=lower_bound(schedule, costs),
        ttft=first_tokens(schedule, timing),
        ranks=breakdown(schedule, timing, costs),
    )


def predict(schedule: Schedule, cost: CostModel) -> Report:
    """Simulate a verified schedule with a cost model, interference included, and judge the run."""
    costs = OpCosts.of(schedule, cost)
    return report(schedule, cost, costs, simulate(schedule, costs, cost.interference))
