"""order: the step order, in which all ranks advance together.

In global step k, stage s runs on the chunk that entered in step k minus the hops before s. On the V that is the
paper's pattern: rank r runs a late stage of chunk k - d and then an early stage of chunk k + d, d = P - 1 - r,
which cost the same at every rank when chunk costs are affine in k. Example, P = 2, stage.chunk:

    step     0    1        2        3        4
    rank 0   0.0  0.1      3.0 0.2  3.1 0.3  ...
    rank 1        1.0 2.0  1.1 2.1  1.2 2.2  ...
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from vppc.ir.placement import hops
from vppc.ir.schedule import Order, Schedule
from vppc.passes.admission import Admission


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Orders the operations of every rank by step, within a step by chunk and stage (late stages first).

    ``blocking`` keeps the steps in the order, so that transfers are lowered to one exchange a step.
    """

    name: ClassVar[str] = "order"
    admission: Admission = field(default_factory=Admission)
    blocking: bool = False

    def __call__(self, schedule: Schedule) -> Schedule:
        ranks = schedule.stage_ranks
        before = hops(ranks)
        entry = _entry_steps(schedule, self.admission.gates(schedule), before)
        steps = [start + hop for start in entry for hop in before]
        orders = []
        for rank in range(schedule.pp):
            mine = schedule.rank_stages[rank]
            ops = [first + s for first in range(0, len(steps), len(ranks)) for s in mine]
            ops.sort(key=steps.__getitem__)  # stable: a step's operations stay in (chunk, stage) order
            orders.append(tuple(ops))
        return replace(schedule, order=Order(tuple(orders), tuple(steps) if self.blocking else None))


def _entry_steps(schedule: Schedule, gates: list[int], before: tuple[int, ...]) -> list[int]:
    """The step in which each chunk enters: one a step, and not before its gate has left rank 0.

    A gate may leave in the very step, since a rank runs the earlier chunk first.
    """
    leaving = before[schedule.rank_stages[0][-1]]
    entry: list[int] = []
    for gate in gates:
        step = entry[-1] + 1 if entry else 0
        entry.append(max(step, entry[gate] + leaving) if gate >= 0 else step)
    return entry
