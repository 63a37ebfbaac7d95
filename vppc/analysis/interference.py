"""The simulator for machines on which transfers slow compute down.

While a transfer is under way, both its ranks compute at 1 / (1 + interference) of their speed (one transfer
or several: the same speed). How long a FORWARD takes then depends on what happens beside it, so events are
visited in time order, from a heap: n log n, and simple. Without interference it gives exactly the times of
:mod:`vppc.analysis.timing`, which is the fast way to them; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from vppc.analysis.times import Timing, stopped
from vppc.costs.model import OpCosts
from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT, WIDTH
from vppc.ir.schedule import Schedule


def simulate_interference(schedule: Schedule, costs: OpCosts, interference: float) -> Timing:
    """Time every instruction of a verified schedule, in seconds, with compute slowed down by transfers.

    Raises CheckFailed where the programs deadlock.
    """
    return _EventQueue(schedule, costs, 1.0 + interference).run()


@dataclass(slots=True)
class _Compute:
    """What a rank computes: ``left`` seconds at full speed from ``since`` on, while ``busy``.

    ``transfers`` of the rank are under way. ``version`` counts the changes of the expected end, so that an
    outdated end is known when its event comes up.
    """

    busy: bool = False
    left: float = 0.0
    since: float = 0.0
    transfers: int = 0
    version: int = 0


class _EventQueue:
    """One simulation: the clock, the events to come, and the ranks as coroutines that events resume."""

    def __init__(self, schedule: Schedule, costs: OpCosts, slowdown: float) -> None:
        ranks = range(len(schedule.programs))
        self.schedule, self.costs, self.slowdown = schedule, costs, slowdown
        self.timing = Timing.empty(schedule)
        self.channels = {channel.id: channel for channel in schedule.channels}
        self.transfers = dict(zip(self.channels, self.timing.transfers, strict=True))
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.event_count = 0  # breaks ties of time in the heap, in the order of creation
        self.ranks = [self._rank(rank) for rank in ranks]
        self.waiting: list[int | None] = [None for _ in ranks]
        self.complete: list[set[int]] = [set() for _ in ranks]  # the SENDs and RECVs whose transfer is over
        self.compute = [_Compute() for _ in ranks]

    def run(self) -> Timing:
        for rank in range(len(self.ranks)):
            self._resume(rank)
        while self.events:
            self.now, _, happen = heappop(self.events)
            happen()
        if any(of is not None for of in self.waiting):
            raise stopped(self.schedule, self.waiting)
        return self.timing

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self.event_count += 1
        heappush(self.events, (time, self.event_count, event))

    def _resume(self, rank: int) -> None:
        next(self.ranks[rank], None)

    def _rank(self, rank: int) -> Iterator[None]:
        """Run a rank's program; at a yield it has asked for the event that resumes it."""
        starts, ends = self.timing.starts[rank], self.timing.ends[rank]
        arrivals, stages = self.schedule.chunk_arrivals, len(self.schedule.stages)
        for op, chunk, stage, x, _, z in self.schedule.programs[rank].rows():
            if op == FORWARD and stage == 0 and arrivals[chunk] > self.now:
                self._at(arrivals[chunk], partial(self._resume, rank))
                yield
            starts.append(self.now)
            if op == FORWARD:
                self._begin_compute(rank, self.costs.seconds[chunk * stages + stage])
                yield
            elif op == WAIT and x not in self.complete[rank]:
                self.waiting[rank] = x
                yield
            elif op == SEND:
                self.transfers[z].sends.append(len(ends))
                self.transfers[z].send_posted.append(self.now)
                self._begin_transfer(z)
            elif op == RECV:
                self.transfers[z].recvs.append(len(ends))
                self.transfers[z].recv_posted.append(self.now)
                self._begin_transfer(z)
            ends.append(self.now)

    def _begin_compute(self, rank: int, seconds: float) -> None:
        compute = self.compute[rank]
        compute.busy, compute.left = True, seconds
        self._expect_end(rank)

    def _expect_end(self, rank: int) -> None:
        compute = self.compute[rank]
        compute.since = self.now
        compute.version += 1
        seconds = compute.left * self.slowdown if compute.transfers else compute.left
        self._at(self.now + seconds, partial(self._end_compute, rank, compute.version))

    def _end_compute(self, rank: int, version: int) -> None:
        compute = self.compute[rank]
        if version == compute.version:
            compute.busy = False
            self._resume(rank)

    def _begin_transfer(self, channel: int) -> None:
        """Start the channel's next transfer when both its ends are posted and the channel is idle."""
        transfers = self.transfers[channel]
        number = len(transfers.starts)
        posted = min(len(transfers.sends), len(transfers.recvs))
        if number == posted or number > len(transfers.ends):
            return
        transfers.starts.append(self.now)
        ends = self.channels[channel]
        chunk = self.schedule.programs[ends.src].code[transfers.sends[number] * WIDTH + 1]
        self._at(self.now + self.costs.transfer[chunk], partial(self._end_transfer, channel))
        self._change_transfers(ends.src, +1)
        self._change_transfers(ends.dst, +1)

    def _end_transfer(self, channel: int) -> None:
        transfers = self.transfers[channel]
        number = len(transfers.ends)
        transfers.ends.append(self.now)
        ends = self.channels[channel]
        for rank, index in ((ends.src, transfers.sends[number]), (ends.dst, transfers.recvs[number])):
            self._change_transfers(rank, -1)
            self.complete[rank].add(index)
        self._begin_transfer(channel)
        for rank, index in ((ends.src, transfers.sends[number]), (ends.dst, transfers.recvs[number])):
            if self.waiting[rank] == index:
                self.waiting[rank] = None
                self._resume(rank)

    def _change_transfers(self, rank: int, change: int) -> None:
        """A transfer of the rank begins or ends: what is left to compute goes on at another speed."""
        compute = self.compute[rank]
        slow_before = compute.transfers > 0
        compute.transfers += change
        slow_after = compute.transfers > 0
        if compute.busy and self.slowdown != 1.0 and slow_before != slow_after:
            done = self.now - compute.since
            compute.left -= done / self.slowdown if slow_before else done
            self._expect_end(rank)
