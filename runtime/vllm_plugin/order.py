"""The order of a folded rank's stages, out of our compiler.

Traffic is not known beforehand, so what is compiled is the steady state: one prompt of equal chunks, on stages that
cost the same. Of its order one number a rank is kept, the *lag*: how many later chunks have entered a rank's first
stage when a chunk goes back through its second. Of two ranks rank 0 runs ``in 0, in 1, out 0, in 2, out 1, ..`` under
``vpp``, a lag of 1, and under ``vpp-async`` one more is let in, a lag of 2.
"""

from __future__ import annotations

from functools import cache

from vppc.costs.model import CostModel, LayerCost
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options, passes


@cache
def lags(pp: int, strategy: str, max_in_flight: int | None) -> tuple[int, ...]:
    """The lag of each of ``pp`` ranks; it never grows with the rank. Rank 0 has one chunk more in flight."""
    chunks = 8 * pp + 2 * (max_in_flight or 0)  # beyond twice what is in flight, so that the middle is steady
    cost = CostModel((LayerCost(2 * pp, per_token=1.0),))
    schedule = Schedule(strategy, Model("steady", 2 * pp), pp, 2, requests=(Request("prompt", chunks),))
    for step in passes(Options(strategy=strategy, pp=pp, chunk_size=1, max_in_flight=max_in_flight), cost):
        schedule = step(schedule)
    assert schedule.order is not None
    return tuple(_lag(schedule, ops, chunks // 2) for ops in schedule.order.ranks)


def _lag(schedule: Schedule, ops: tuple[int, ...], chunk: int) -> int:
    """How many chunks behind ``chunk`` have entered where it goes back."""
    order = [schedule.op(op) for op in ops]
    back = next(at for at, op in enumerate(order) if op.chunk == chunk and op.stage >= schedule.pp)
    return sum(op.stage < schedule.pp for op in order[:back]) - chunk - 1
