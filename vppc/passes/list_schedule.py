"""List scheduling: run what is ready, early stages first, on a clock that the cost model drives.

Whenever a rank is free it takes, of its stages whose next chunk has arrived, the earliest stage. Feeding the
ranks downstream comes before finishing chunks, so no rank waits for an input while another has one to make.
How far rank 0 may run ahead is the gate's business (see :mod:`vppc.passes.admission`). For V placements at
P = 2 the resulting order is optimal; at P = 4 and 8 it is within 0.2% of the optimum that a constraint solver
proves. (List scheduling: Graham, Bounds on Multiprocessing Timing Anomalies, 1969.)

Every stage takes chunks in order, which keeps the KV prefix right and every channel a FIFO.
"""

from __future__ import annotations

from heapq import heappop, heappush

from vppc.costs.model import OpCosts
from vppc.ir.schedule import Order, Schedule

_ASLEEP = float("inf")


def list_schedule(schedule: Schedule, costs: OpCosts, gates: list[int]) -> tuple[Order, float]:
    """The order in which each rank runs its operations, and the seconds at which the last ends; O(operations x vp).

    Activations arrive a transfer after their stage ended, one transfer at a time on a channel. The DAG's prefix
    edges hold because each stage runs the chunks in order, its token edges because they are gates.
    """
    count, stages, ranks = len(schedule.chunks), len(schedule.stages), schedule.stage_ranks
    on_rank = schedule.rank_stages
    leaves = on_rank[0][-1]  # a chunk has left once rank 0 has run the last of its stages on it
    seconds, transfer, arrivals = costs.seconds, costs.transfer, schedule.chunk_arrivals
    channel_of = [_channel(ranks, stage, schedule.pp) for stage in range(stages)]
    channel_free = [0.0] * (schedule.pp * schedule.pp)

    ready: list[list[float]] = [[] for _ in range(stages)]  # when the input of a stage's i-th chunk is there
    done = [0] * stages  # how many chunks a stage has run
    free = [0.0] * schedule.pp
    wake = [0.0] * schedule.pp  # when a rank looks again; its only valid entry in the queue
    orders: list[list[int]] = [[] for _ in range(schedule.pp)]
    queue = [(0.0, rank) for rank in range(schedule.pp)]
    while queue:
        now, rank = heappop(queue)
        if now != wake[rank]:
            continue
        later = _ASLEEP
        for stage in on_rank[rank]:
            chunk = done[stage]
            if chunk == count:
                continue
            if stage:
                arrived = ready[stage]
                if chunk >= len(arrived):
                    continue
                at = arrived[chunk]
            else:
                if done[leaves] <= gates[chunk]:
                    continue
                at = arrivals[chunk]
            if at <= now:
                break
            later = min(later, at)
        else:
            wake[rank] = later
            if later != _ASLEEP:
                heappush(queue, (later, rank))
            continue
        op = chunk * stages + stage
        end = now + seconds[op]
        orders[rank].append(op)
        done[stage] += 1
        free[rank] = wake[rank] = end
        heappush(queue, (end, rank))
        channel = channel_of[stage]
        if channel < 0:
            if stage + 1 < stages:
                ready[stage + 1].append(end)
            continue
        start = channel_free[channel]
        start = end if start < end else start
        there = channel_free[channel] = start + transfer[chunk]
        ready[stage + 1].append(there)
        peer = ranks[stage + 1]
        if free[peer] > there:
            there = free[peer]
        if there < wake[peer]:
            wake[peer] = there
            heappush(queue, (there, peer))
    return Order(tuple(map(tuple, orders))), max(free)


def _channel(ranks: tuple[int, ...], stage: int, pp: int) -> int:
    if stage + 1 == len(ranks) or ranks[stage] == ranks[stage + 1]:
        return -1
    return ranks[stage] * pp + ranks[stage + 1]
