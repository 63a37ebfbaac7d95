"""The simulator: when every instruction and transfer of a verified schedule starts and ends.

A rank is one thread of control. Posting a SEND or RECV is free, a FORWARD takes its cost, a SAMPLE nothing,
and a WAIT blocks until its transfer is complete. Transfers meet by rendezvous: one starts when both its ends
are posted and the transfer before it on its channel is over. Stage 0 of a chunk starts no earlier than the
chunk's requests have arrived.

Every time is the maximum of earlier times plus a constant, so nothing needs to be visited in time order: a
rank runs ahead until it reaches a WAIT whose transfer has no end yet, and goes on when the other end is
posted. That makes one linear pass. With interference, where compute slows down beside transfers, time order
does matter; see :mod:`vppc.analysis.interference`.
"""

from __future__ import annotations

from collections.abc import Iterator

from vppc.analysis.interference import simulate_interference
from vppc.analysis.times import Timing, Transfers, stopped
from vppc.costs.model import OpCosts
from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT
from vppc.ir.schedule import Schedule

__all__ = ["Timing", "Transfers", "simulate"]


def simulate(schedule: Schedule, costs: OpCosts, interference: float = 0.0) -> Timing:
    """Time every instruction of a verified schedule, in seconds.

    ``interference`` slows compute down: a rank computes at 1 / (1 + interference) of its speed while a
    transfer it is an end of is under way. Raises CheckFailed where the programs deadlock.
    """
    if interference:
        return simulate_interference(schedule, costs, interference)
    return _Run(schedule, costs).run()


class _Run:
    """One simulation: the ranks as coroutines, and what they share, the transfers."""

    def __init__(self, schedule: Schedule, costs: OpCosts) -> None:
        self.schedule, self.costs = schedule, costs
        self.timing = Timing.empty(schedule)
        self.channels = {channel.id: channel for channel in schedule.channels}
        self.transfers = dict(zip(self.channels, self.timing.transfers, strict=True))
        # for every instruction that posts a transfer, when that transfer is complete, once that is known
        self.complete: list[list[float | None]] = [[None] * len(program) for program in schedule.programs]
        self.waiting: list[int | None] = [None] * len(schedule.programs)
        self.ready = list(range(len(schedule.programs)))

    def run(self) -> Timing:
        ranks = [self._rank(rank) for rank in range(len(self.schedule.programs))]
        while self.ready:
            rank = self.ready.pop()
            self.waiting[rank] = next(ranks[rank], None)
        if any(of is not None for of in self.waiting):
            raise stopped(self.schedule, self.waiting)
        return self.timing

    def _rank(self, rank: int) -> Iterator[int]:
        """Run a rank's program; yields, at a WAIT that cannot end yet, the instruction that it is of."""
        seconds, stages = self.costs.seconds, len(self.schedule.stages)
        arrivals = self.schedule.chunk_arrivals
        complete = self.complete[rank]
        starts, ends = self.timing.starts[rank], self.timing.ends[rank]
        now = 0.0
        for op, chunk, stage, x, _, z in self.schedule.programs[rank].rows():
            if op == FORWARD:
                if not stage and arrivals[chunk] > now:
                    now = arrivals[chunk]
                starts.append(now)
                now += seconds[chunk * stages + stage]
                ends.append(now)
                continue
            starts.append(now)
            if op == WAIT:
                end = complete[x]
                while end is None:
                    yield x
                    end = complete[x]
                now = max(now, end)
            elif op == SEND:
                transfers = self.transfers[z]
                transfers.sends.append(len(ends))
                transfers.send_posted.append(now)
                if len(transfers.recvs) >= len(transfers.sends):
                    self._meet(z, chunk)
            elif op == RECV:
                transfers = self.transfers[z]
                transfers.recvs.append(len(ends))
                transfers.recv_posted.append(now)
                if len(transfers.sends) >= len(transfers.recvs):
                    self._meet(z, chunk)
            ends.append(now)

    def _meet(self, channel: int, chunk: int) -> None:
        """Both ends of the channel's next transfer are posted: time it, and wake who waits for it.

        Transfers meet in their order on the channel, since each end posts in that order.
        """
        transfers = self.transfers[channel]
        number = len(transfers.ends)
        start = max(transfers.send_posted[number], transfers.recv_posted[number])
        if number and transfers.ends[-1] > start:
            start = transfers.ends[-1]
        end = start + self.costs.transfer[chunk]
        transfers.starts.append(start)
        transfers.ends.append(end)
        ends = self.channels[channel]
        for rank, index in ((ends.src, transfers.sends[number]), (ends.dst, transfers.recvs[number])):
            self.complete[rank][index] = end
            if self.waiting[rank] == index:
                self.waiting[rank] = None
                self.ready.append(rank)
