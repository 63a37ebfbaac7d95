"""The critical path of a run: a chain of work, each piece of which could not start before the one before it ended.

It is walked from the end of the run backwards: a FORWARD started when its rank had done the instruction before; a WAIT
ended with its transfer; a transfer started when its later end was posted, or when the channel's transfer before it was
over. No link of the chain has slack, so whatever makes one shorter can make the run shorter, and nothing else can.
The pieces fill the makespan.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from vppc.analysis.activity import Activity, Doing
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.sums import plain_sum


class Link(NamedTuple):
    """A piece of the path: ``instruction`` of ``rank`` runs, or is the SEND or RECV of the transfer under way, as the
    rank that waits for it has it; or comes after an arrival, or after a pause. Seconds on the run's clock."""

    start: float
    end: float
    doing: Doing
    rank: int
    instruction: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path's links, in order of time."""

    links: tuple[Link, ...]

    def seconds(self, doing: Doing, rank: int | None = None) -> float:
        """How much of the path is so spent, on one rank or on all."""
        return plain_sum(link.seconds for link in self.links if link.doing is doing and rank in (None, link.rank))

    @property
    def hand_overs(self) -> int:
        """How often it goes from rank to rank."""
        ranks = [link.rank for link in self.links if link.doing is Doing.RUN]
        return sum(here != there for here, there in pairwise(ranks))


def critical_path(activity: Activity) -> CriticalPath:
    """The path to the last end of the run; linear in the instructions."""
    schedule, timing = activity.schedule, activity.timing
    arrivals = schedule.chunk_arrivals
    numbers = transfer_numbers(activity)
    links: list[Link] = []
    until = activity.end
    rank = max(range(len(timing.ends)), key=lambda rank: timing.ends[rank][-1] if timing.ends[rank] else -1.0)
    index = len(timing.ends[rank]) - 1

    def back_to(moment: float, doing: Doing, rank: int, instruction: int) -> None:
        nonlocal until
        moment = max(moment, activity.start)
        if moment < until:
            links.append(Link(moment, until, doing, rank, instruction))
            until = moment

    while index >= 0:
        op, chunk, stage, x, _, _ = schedule.programs[rank].row(index)
        start, end = timing.starts[rank][index], timing.ends[rank][index]
        back_to(end, Doing.BETWEEN, rank, index + 1)
        if op in (FORWARD, SAMPLE):
            back_to(start, Doing.RUN, rank, index)
            before = timing.ends[rank][index - 1] if index else activity.start
            if op == FORWARD and not stage and arrivals[chunk] > max(before, activity.start):
                back_to(arrivals[chunk], Doing.BETWEEN, rank, index)
                back_to(activity.start, Doing.ARRIVAL, rank, index)
                break
        elif op == WAIT and end > start:
            place, number = numbers[rank][x]
            transfers, channel = timing.transfers[place], schedule.channels[place]
            if transfers.ends[number] > start:
                back_to(transfers.starts[number], Doing.TRANSFER, rank, x)
                while number and transfers.ends[number - 1] > max(
                    transfers.send_posted[number], transfers.recv_posted[number]
                ):  # it queued on the channel
                    number -= 1
                    back_to(transfers.starts[number], Doing.TRANSFER, channel.dst, transfers.recvs[number])
                if transfers.send_posted[number] >= transfers.recv_posted[number]:
                    rank, index = channel.src, transfers.sends[number]
                else:
                    rank, index = channel.dst, transfers.recvs[number]
                continue
        index -= 1
    back_to(activity.start, Doing.BETWEEN, rank, 0)
    return CriticalPath(tuple(reversed(links)))


def transfer_numbers(activity: Activity) -> list[dict[int, tuple[int, int]]]:
    """Of every rank: instruction that posts a transfer -> its channel's place, and its number there."""
    found: list[dict[int, tuple[int, int]]] = [{} for _ in activity.spans]
    for place, (channel, each) in enumerate(zip(activity.schedule.channels, activity.timing.transfers, strict=True)):
        for number in range(len(each.ends)):
            found[channel.src][each.sends[number]] = found[channel.dst][each.recvs[number]] = place, number
    return found
