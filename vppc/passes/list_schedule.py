"""List scheduling: run what is ready, early stages first, on a clock that the cost model drives.

Whenever a rank is free it takes, of its stages whose next chunk has arrived, the earliest stage. Feeding the
ranks downstream comes before finishing chunks, so no rank waits for an input while another has one to make.
How far rank 0 may run ahead is the gate's business (see :mod:`vppc.passes.admission`). For V placements at
P = 2 the resulting order is optimal; at P = 4 and 8 it is within 0.2% of the optimum that a constraint solver
proves. (List scheduling: Graham, Bounds on Multiprocessing Timing Anomalies, 1969.)

Between prompts there is a choice: an early stage of a later prompt, or a late stage of an earlier one, whose
first token is then sooner. The later prompt's turn comes only when the rank downstream would otherwise run dry:
its chunks fill the gaps of the prompt before and do not push in front of it.

Every stage takes chunks in order, which keeps the KV prefix right and every channel a FIFO.

The chunks may all be there from the start (:func:`list_schedule`), or come one by one from a :class:`Source`
that is asked whenever rank 0 is free, so that what to run next is decided as late as can be
(:mod:`vppc.serving.clock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import nextafter
from typing import NamedTuple, Protocol

from vppc.costs.model import OpCosts
from vppc.ir.schedule import Order, Schedule
from vppc.passes.admission import chunk_groups
from vppc.sums import plain_sum

_ASLEEP = float("inf")


def list_schedule(schedule: Schedule, costs: OpCosts, gates: list[int]) -> tuple[Order, float]:
    """The order in which each rank runs its operations, and the seconds at which the last ends; O(operations x vp).

    Activations arrive a transfer after their stage ended, one transfer at a time on a channel. The DAG's prefix
    edges hold because each stage runs the chunks in order, its token edges because they are gates.
    """
    groups = chunk_groups(schedule)
    scheduler = ListScheduler(schedule, several=bool(groups) and groups[-1] > 0)
    scheduler.extend(costs, schedule.chunk_arrivals, gates, groups)
    scheduler.run()
    return Order(tuple(map(tuple, scheduler.orders))), max(scheduler.free)


class Source(Protocol):
    """Where chunks come from, and who is told of what happens to them; all times are the clock's, in seconds."""

    def propose(self, now: float) -> float:
        """Rank 0 is free: extend the scheduler by a chunk and return ``now``, or return when to ask again."""
        ...

    def take(self, now: float) -> None:
        """Rank 0 starts the chunk that was proposed."""
        ...

    def pass_over(self, now: float) -> None:
        """Rank 0 does something else first, and the scheduler no longer has the chunk that was proposed."""
        ...

    def finish(self, start: float, end: float) -> None:
        """The last stage runs on the oldest chunk that has not finished."""
        ...


class Ran(NamedTuple):
    """A stage run on a chunk, in seconds of the clock; ``arrives`` is when its output is there for the next stage."""

    chunk: int
    stage: int
    rank: int
    start: float
    end: float
    arrives: float


class ListScheduler:
    """The state of the clock: what each stage has run, what has arrived for it, and when each rank looks again.

    ``several`` is whether there is more than one group of chunks to choose between. Lists by chunk and by
    operation begin with chunk ``base``: those before it are forgotten.
    """

    def __init__(self, schedule: Schedule, *, several: bool, source: Source | None = None) -> None:
        stages, ranks, pp = len(schedule.stages), schedule.stage_ranks, schedule.pp
        self.stages, self.ranks, self.pp = stages, ranks, pp
        self.on_rank = schedule.rank_stages
        self.leaves = self.on_rank[0][-1]  # a chunk has left once rank 0 has run the last of its stages on it
        self.several, self.source = several, source
        self.peers = [after if after != here else -1 for here, after in pairwise((*ranks, ranks[-1]))]
        self.runs = [1] * stages  # how many operations an arriving chunk makes for its rank, up to the next transfer
        for stage in range(stages - 2, -1, -1):
            if self.peers[stage] < 0:
                self.runs[stage] += self.runs[stage + 1]

        self.base = 0
        self.seconds: list[float] = []
        self.transfer: list[float] = []
        self.gates: list[int] = []
        self.groups: list[int] = []
        self.ready: list[list[float]] = [[] for _ in range(stages)]  # when the input of a stage's i-th chunk is there
        self.done = [0] * stages  # how many chunks a stage has run
        self.free = [0.0] * pp  # when a rank has run all that it was given
        self.backlog = [0.0] * pp  # seconds of what has been sent to a rank and not been run
        self.channel_free = [0.0] * (pp * pp)
        self.orders: list[list[int]] = [[] for _ in range(pp)]
        self.starts: list[list[float]] = [[] for _ in range(pp)]
        self.wake = [0.0] * pp  # when a rank looks again; its only valid entry in the queue
        self.queue = [(0.0, rank) for rank in range(pp)]

    def extend(self, costs: OpCosts, arrivals: Sequence[float], gates: Sequence[int], groups: Sequence[int]) -> None:
        """More chunks, in the order in which they enter: costs, arrival, gate and group of each."""
        self.seconds += costs.seconds
        self.transfer += costs.transfer
        self.gates += gates
        self.groups += groups
        self.ready[0] += arrivals

    def look(self, rank: int, at: float) -> None:
        """Let an idle rank look again ``at`` that time, or as soon as it is free."""
        at = max(at, self.free[rank])
        if at < self.wake[rank]:
            self.wake[rank] = at
            heappush(self.queue, (at, rank))

    def next_look(self) -> float:
        """When a rank looks next, which is when something can start; infinite when nothing is left to run."""
        while self.queue and self.queue[0][0] != self.wake[self.queue[0][1]]:
            heappop(self.queue)
        return self.queue[0][0] if self.queue else _ASLEEP

    def run(self, before: float = _ASLEEP) -> None:
        """Let the clock run: everything that starts before that time.

        One loop without calls: it runs once an operation, of which there may be a million.
        """
        queue, wake, ready, done, free, backlog = (
            self.queue, self.wake, self.ready, self.done, self.free, self.backlog
        )  # fmt: skip
        seconds, transfer, gates, peers, runs = self.seconds, self.transfer, self.gates, self.peers, self.runs
        stages, leaves, several, channel_free = self.stages, self.leaves, self.several, self.channel_free
        source, orders, starts, on_rank, pp = self.source, self.orders, self.starts, self.on_rank, self.pp
        while queue:
            now, rank = heappop(queue)
            if now >= before:
                heappush(queue, (now, rank))
                break
            if now != wake[rank]:
                continue
            picked, later = -1, _ASLEEP
            for stage in on_rank[rank]:
                chunk = done[stage]
                if chunk >= len(ready[stage]):
                    if stage or source is None:
                        continue
                    later = source.propose(now)
                    if later > now:
                        continue
                    later = _ASLEEP
                elif stage == 0 and done[leaves] <= gates[chunk]:
                    continue
                at = ready[stage][chunk]
                if at > now:
                    later = at if at < later else later
                elif picked < 0:
                    picked = stage
                    if not several:
                        break
                elif self._may_come_first(stage, picked, now):
                    if picked == 0 and source is not None:
                        self._withdraw()
                        source.pass_over(now)
                    picked = stage
                    break
            if picked < 0:  # no input is there: sleep until one is
                wake[rank] = later
                if later != _ASLEEP:
                    heappush(queue, (later, rank))
                continue
            chunk = done[picked]
            op = chunk * stages + picked
            orders[rank].append(op)
            starts[rank].append(now)
            done[picked] = chunk + 1
            if picked:
                backlog[rank] -= seconds[op]
            elif source is not None:
                source.take(now)
            free[rank] = wake[rank] = end = now + seconds[op]
            heappush(queue, (end, rank))
            peer = peers[picked]
            if peer < 0:
                if picked + 1 < stages:
                    ready[picked + 1].append(end)
                elif source is not None:
                    source.finish(now, end)
                continue
            channel = rank * pp + peer
            there = channel_free[channel]
            channel_free[channel] = there = (end if there < end else there) + transfer[chunk]
            ready[picked + 1].append(there)
            run = runs[picked + 1]
            backlog[peer] += seconds[op + 1] if run == 1 else plain_sum(seconds[op + 1 : op + 1 + run])
            if free[peer] > there:
                there = free[peer]
            if there < wake[peer]:  # it sleeps
                wake[peer] = there
                heappush(queue, (there, peer))

    def run_next(self, rank: int) -> None:
        """Let one rank alone run what it runs next, when nothing that happens before can change that."""
        others = [each for each in self.queue if each[1] != rank]
        self.queue[:] = [each for each in self.queue if each[1] == rank]
        self.run(nextafter(self.free[rank], _ASLEEP))
        self.queue += others
        heapify(self.queue)

    def _withdraw(self) -> None:
        """Remove the last chunk, which no stage has run yet."""
        del self.seconds[-self.stages :], self.transfer[-1], self.gates[-1], self.groups[-1], self.ready[0][-1]

    def _may_come_first(self, late: int, early: int, now: float) -> bool:
        """Whether a late stage, of an earlier prompt, goes before an early one without anybody running dry."""
        chunk, held = self.done[late], self.done[early]
        if self.groups[chunk] >= self.groups[held]:
            return False
        peer = self.peers[early]
        if peer < 0:
            return True
        fed_until = max(self.free[peer], now) + self.backlog[peer]
        meanwhile = self.seconds[chunk * self.stages + late] + self.seconds[held * self.stages + early]
        return fed_until >= now + meanwhile + self.transfer[held]

    def take_ran(self) -> list[Ran]:
        """What was run since the last time, in the order of its starts; it is then forgotten."""
        ran = []
        for rank, (order, starts) in enumerate(zip(self.orders, self.starts, strict=True)):
            for op, start in zip(order, starts, strict=True):
                chunk, stage = divmod(op, self.stages)
                end = start + self.seconds[op]
                arrives = self.ready[stage + 1][chunk] if stage + 1 < self.stages else end
                ran.append(Ran(self.base + chunk, stage, rank, start, end, arrives))
            order.clear()
            starts.clear()
        self._forget()
        ran.sort(key=lambda each: each.start)
        return ran

    def _forget(self) -> None:
        """Drop the chunks that all stages have run, when there are enough of them to be worth it."""
        gone = self.done[-1]
        if gone < _KEPT:
            return
        del self.seconds[: gone * self.stages], self.transfer[:gone], self.gates[:gone], self.groups[:gone]
        for stage, arrivals in enumerate(self.ready):
            del arrivals[:gone]
            self.done[stage] -= gone
        self.base += gone


_KEPT = 256
"""Finished chunks that are kept, so that forgetting them costs little a chunk."""
