"""A tuned schedule beside what engines can be set to: strategies that know one chunk size, each at the best one.

Chunks of cpp and vpp are on layers shared out evenly; a third contestant has the stages of the tuned schedule, so that
what its chunk plan gains stands apart from what its stages gain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vppc.analysis.report import Report
from vppc.compare import Case, Machine, Outcome, Queue, judge
from vppc.passes.strategies import Options
from vppc.tuning.tune import Task, Tuned, goal, mean_ttft

_FINEST = 256
"""Chunks of the longest prompt, at most..."""

_MOST = 2048
"""... and of all prompts, so that the comparison takes little beside the search."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A strategy at the chunk size that is best for the task's goal, ``own`` on the tuned stages; refused where there
    is no report."""

    outcome: Outcome
    own: bool = False

    @property
    def name(self) -> str:
        strategy = self.outcome.case.options.strategy
        return f"{strategy}, these stages" if self.own else strategy

    @property
    def chunk_size(self) -> int:
        return self.outcome.case.options.chunk_size

    def json(self, report: Report) -> dict[str, Any]:
        """The outcome, and how much more throughput ``report`` has."""
        theirs = self.outcome.report
        if theirs is None:
            return {"strategy": self.name, "refused": self.outcome.refusal}
        return {
            "strategy": self.name,
            "chunk_size": self.chunk_size,
            "makespan": theirs.makespan,
            "mean_ttft": mean_ttft(theirs),
            "gain": theirs.makespan / report.makespan - 1.0 if report.makespan else 0.0,
        }


def beside(task: Task, best: Tuned) -> tuple[Beside, ...]:
    """cpp, vpp-async (of several prompts vpp-packed) and the tuned stages, each with chunks of one size."""
    folded = "vpp-async" if len(task.requests) == 1 else "vpp-packed"
    plain = Options(strategy="cpp", pp=task.pp, max_buffers=task.max_buffers)
    vpp = replace(plain, strategy=folded, max_in_flight=task.max_in_flight)
    own = replace(plain if best.vp == 1 else vpp, placement=best.placement, vp=best.vp, ranges=best.ranges)
    known = task.memory
    machine = None
    if known is not None:
        machine = Machine(known.spec, known.device, known.sharding.tp, known.sharding.ep, known.weight_dtype)
    queue = Queue("tuned", task.requests)

    def at_best(options: Options) -> Outcome:
        cases = (Case(task.cost, queue, replace(options, chunk_size=size), machine) for size in _sizes(task, queue))
        return min(map(judge, cases), key=lambda outcome: _value(task, outcome))

    others = (plain, vpp) if task.pp > 1 else (plain,)
    return (*(Beside(at_best(options)) for options in others), Beside(at_best(own), own=True))


def _value(task: Task, outcome: Outcome) -> float:
    return float("inf") if outcome.report is None else goal(task, outcome.report)


def _sizes(task: Task, queue: Queue) -> list[int]:
    """The largest chunk that the task allows, halves and quarters of it and so on, and three fourths of each."""
    most = task.limits.most
    least = max(task.limits.least, queue.longest // _FINEST, queue.tokens // _MOST)
    sizes = [size for half in range(10) for size in (most >> half, 3 * (most >> half) // 4)]
    return [size for size in sizes if least <= size < 2 * queue.longest] or [most]
