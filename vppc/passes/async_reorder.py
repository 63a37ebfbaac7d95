"""async_reorder: early stages first, so that transfers run while both of their ranks compute.

The step order swaps two activations at every step, with both ranks waiting. Running the early stage of a later
chunk before the late stage of an earlier one gives each transfer a whole operation to hide behind:

    rank 0   0.0  0.1      0.2 3.0  0.3 3.1  ...
    rank 1        1.0 2.0  1.1 2.1  1.2 2.2  ...
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from vppc.analysis.order_timeline import timeline
from vppc.costs.model import CostModel, OpCosts
from vppc.ir.schedule import Order, Schedule
from vppc.passes.admission import Admission
from vppc.passes.list_schedule import list_schedule


@dataclass(frozen=True, slots=True)
class AsyncReorder:
    """Replaces the order by a list schedule under ``admission``, and lets transfers overlap compute.

    Keeps the order it was given where the list schedule would take longer.
    """

    name: ClassVar[str] = "async_reorder"
    cost: CostModel
    admission: Admission = field(default_factory=lambda: Admission(barrier=True))

    def __call__(self, schedule: Schedule) -> Schedule:
        return quicker(schedule, self.cost, self.admission)


def quicker(schedule: Schedule, cost: CostModel, admission: Admission) -> Schedule:
    """``schedule`` with the list schedule, or with its own order if that is quicker; transfers overlapped."""
    costs = OpCosts.of(schedule, cost)
    listed, finish = list_schedule(schedule, costs, admission.gates(schedule))
    if schedule.order is None:
        return replace(schedule, order=listed)
    given = Order(schedule.order.ranks)
    return replace(schedule, order=given if timeline(schedule, costs, given).finish < finish else listed)
