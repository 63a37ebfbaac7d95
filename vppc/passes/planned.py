"""Plans made elsewhere, as passes: chunks and an order that a search has found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Order, Schedule


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """These chunks, which must be of the schedule's requests."""

    name: ClassVar[str] = "chunking"
    chunks: tuple[Chunk, ...]

    def __call__(self, schedule: Schedule) -> Schedule:
        return replace(schedule, chunks=self.chunks)


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """This order of all operations. Raises InputError when it is not one of this schedule's."""

    name: ClassVar[str] = "order"
    order: Order

    def __call__(self, schedule: Schedule) -> Schedule:
        for rank, stages in enumerate(schedule.rank_stages):
            expected = sorted(chunk * len(schedule.stages) + s for chunk in range(len(schedule.chunks)) for s in stages)
            if rank >= len(self.order.ranks) or sorted(self.order.ranks[rank]) != expected:
                raise InputError(
                    f"the planned order does not run every operation of rank {rank} once",
                    remedy="plan the order for these chunks and stages",
                )
        return replace(schedule, order=self.order)
