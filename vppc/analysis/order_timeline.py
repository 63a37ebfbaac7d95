"""When each operation runs if only order, data and channels matter: the timeline of an order without programs.

The ideal that lowering must keep: receives are always posted in time and buffers never run out. Passes use it
to compare orders and to place receives; the simulator of whole programs is :mod:`vppc.analysis.timing`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vppc.costs.model import OpCosts
from vppc.errors import CheckFailed, Finding
from vppc.ir.schedule import Order, Schedule


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds, by operation number: when it starts, when it ends, and when its input has arrived."""

    starts: list[float]
    ends: list[float]
    arrivals: list[float]

    @property
    def finish(self) -> float:
        return max(self.ends, default=0.0)

    @property
    def makespan(self) -> float:
        """First start to last end, in seconds."""
        return self.finish - min(self.starts, default=0.0)


def timeline(schedule: Schedule, costs: OpCosts, order: Order) -> Timeline:
    """Run ``order`` on a clock; O(operations).

    An operation starts when its rank is free and its input is there: the end of the stage before, plus, from
    another rank, a transfer that starts when the channel is free. Raises CheckFailed when the order waits for
    itself.
    """
    stages = len(schedule.stages)
    ranks = schedule.stage_ranks
    seconds, transfer = costs.seconds, costs.transfer
    # what follows a stage: nothing (-2), a fold (-1), or the channel to the next rank
    follows = [
        -2 if s + 1 == stages else -1 if ranks[s] == ranks[s + 1] else ranks[s] * schedule.pp + ranks[s + 1]
        for s in range(stages)
    ]
    total = len(schedule.chunks) * stages
    starts, ends = [0.0] * total, [0.0] * total
    arrivals = [-1.0] * total  # not there yet
    arrivals[::stages] = schedule.chunk_arrivals
    channel_free = [0.0] * (schedule.pp * schedule.pp)
    clock = [0.0] * schedule.pp
    position = [0] * schedule.pp
    blocked_on = [-1] * schedule.pp
    runnable = deque(range(schedule.pp))
    while runnable:
        rank = runnable.popleft()
        ops = order.ranks[rank]
        now, index, blocked_on[rank] = clock[rank], position[rank], -1
        for index in range(index, len(ops)):  # noqa: B020 - continue where the rank stopped
            op = ops[index]
            there = arrivals[op]
            if there < 0.0:
                blocked_on[rank] = op
                break
            if there > now:
                now = there
            starts[op] = now
            ends[op] = now = now + seconds[op]
            channel = follows[op % stages]
            if channel >= 0:
                begin = channel_free[channel]
                if begin < now:
                    begin = now
                arrivals[op + 1] = channel_free[channel] = begin + transfer[op // stages]
                peer = channel % schedule.pp
                if blocked_on[peer] == op + 1:
                    runnable.append(peer)
            elif channel == -1:
                arrivals[op + 1] = now
        else:
            index = len(ops)
        clock[rank], position[rank] = now, index
    stuck = [rank for rank in range(schedule.pp) if position[rank] < len(order.ranks[rank])]
    if stuck:
        raise CheckFailed(tuple(_stuck(schedule, rank, order.ranks[rank][position[rank]]) for rank in stuck))
    return Timeline(starts, ends, arrivals)


def _stuck(schedule: Schedule, rank: int, op: int) -> Finding:
    chunk, stage = schedule.op(op)
    return Finding(
        "D1",
        f"rank {rank}",
        f"the order cannot run: chunk {chunk} at stage {stage} waits for stage {stage - 1}, which never comes",
        "order every rank's operations so that a chunk's stages can follow each other",
    )
