"""List scheduling on plain numbers, for searches that run it thousands of times.

A rank that is free takes, of what has arrived, the operation with the least priority number, or without numbers the
earliest stage. Rank 0 lets a chunk in when fewer than ``in_flight`` chunks ahead of it have not left. Transfers queue
on their channel. The same clock as that of :mod:`vppc.passes.list_schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from vppc.ir.schedule import Order

_NEVER = float("inf")


def dispatch(
    ranks: Sequence[int],
    seconds: Sequence[float],
    transfer: Sequence[float],
    arrivals: Sequence[float],
    in_flight: int,
    priority: Sequence[float] | None = None,
) -> Order:
    """The order in which ranks run all operations; ``transfer`` and ``arrivals`` are by chunk, the rest by operation.

    ``in_flight`` is at least 1. O(operations x stages a rank).
    """
    stages = len(ranks)
    pp = max(ranks) + 1
    on_rank = [[stage for stage in range(stages) if ranks[stage] == rank] for rank in range(pp)]
    leaves = on_rank[0][-1]
    ready: list[list[float]] = [[] for _ in range(stages)]
    ready[0] = list(arrivals)
    done = [0] * stages
    free = [0.0] * pp
    wake = [0.0] * pp
    channel_free: dict[tuple[int, int], float] = {}
    orders: list[list[int]] = [[] for _ in range(pp)]
    queue = [(0.0, rank) for rank in range(pp)]
    while queue:
        now, rank = heappop(queue)
        if now != wake[rank]:
            continue
        later, chosen, least = _NEVER, -1, _NEVER
        for stage in on_rank[rank]:
            chunk = done[stage]
            if chunk >= len(ready[stage]) or (not stage and done[leaves] <= chunk - in_flight):
                continue
            at = ready[stage][chunk]
            if at > now:
                later = min(later, at)
            elif priority is None:
                chosen = stage
                break
            elif priority[chunk * stages + stage] < least:
                chosen, least = stage, priority[chunk * stages + stage]
        if chosen < 0:
            wake[rank] = later
            if later < _NEVER:
                heappush(queue, (later, rank))
            continue
        chunk = done[chosen]
        op = chunk * stages + chosen
        end = now + seconds[op]
        orders[rank].append(op)
        done[chosen] += 1
        free[rank] = wake[rank] = end
        heappush(queue, (end, rank))
        if chosen + 1 == stages:
            continue
        peer = ranks[chosen + 1]
        if peer == rank:
            ready[chosen + 1].append(end)
            continue
        there = max(end, channel_free.get((rank, peer), 0.0)) + transfer[chunk]
        channel_free[rank, peer] = there
        ready[chosen + 1].append(there)
        there = max(there, free[peer])
        if there < wake[peer]:
            wake[peer] = there
            heappush(queue, (there, peer))
    return Order(tuple(map(tuple, orders)))
