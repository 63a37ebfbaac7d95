"""request_packing: fill the drain of one request with the leading chunks of the next.

At the end of a request the early stages run dry. Without a barrier between requests the list scheduler lets the
next request's first, cheapest chunks in. How far it may run ahead is bounded by chunks in flight and, if asked,
by resident KV tokens.

    rank 0   ... 0.4 3.2  3.3      3.4  |0'.0 ...        a barrier: rank 1 idles from here
    rank 0   ... 0.4 3.2  0'.0 3.3 0'.1 3.4 ...          packed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from vppc.costs.model import CostModel
from vppc.ir.schedule import Schedule
from vppc.passes.admission import Admission
from vppc.passes.async_reorder import quicker


@dataclass(frozen=True, slots=True)
class RequestPacking:
    """Orders across request boundaries, under ``admission`` without its barrier.

    Keeps the order it was given where packing would take longer, so packing is never worse than not packing.
    """

    name: ClassVar[str] = "request_packing"
    cost: CostModel
    admission: Admission = field(default_factory=Admission)

    def __call__(self, schedule: Schedule) -> Schedule:
        return quicker(schedule, self.cost, self.admission)
