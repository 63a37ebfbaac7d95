"""What pictures and traces show of a run: each rank's operations, the gaps between them, the hops between ranks.

Times are seconds on the run's clock, planned or measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vppc.analysis.breakdown import both_ends_posted, clock_start
from vppc.analysis.times import Timing
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, WAIT
from vppc.ir.schedule import Channel, Schedule


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule and when everything in it happens; ``name`` tells it from others in the same picture."""

    name: str
    schedule: Schedule
    timing: Timing


class Block(NamedTuple):
    """An ``instruction`` of a rank at work: a FORWARD, or a SAMPLE, which has stage -1."""

    start: float
    end: float
    chunk: int
    stage: int
    instruction: int


class Gap(NamedTuple):
    """Time without an operation: a bubble, or ``exposed``, waiting for a transfer that both its ends have posted.

    ``awaited`` is the instruction that posted what the rank waits for, ``following`` the chunk that it runs next;
    -1 where there is none.
    """

    start: float
    end: float
    exposed: bool
    awaited: int
    following: int


class Hop(NamedTuple):
    """A transfer: instructions ``send`` and ``recv`` of the channel's ends pass the input of ``stage`` on."""

    channel: Channel
    send: int
    recv: int
    chunk: int
    stage: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank's run: blocks and gaps in order, which together fill it from the clock's start to the run's end."""

    rank: int
    blocks: list[Block]
    gaps: list[Gap]


def lanes(run: Run) -> tuple[Lane, ...]:
    """Every rank's lane."""
    posted = both_ends_posted(run.schedule, run.timing)
    return tuple(_lane(run, rank, posted[rank]) for rank in range(len(run.schedule.programs)))


def end_of(run: Run) -> float:
    """When the last instruction ends."""
    return max((max(ends) for ends in run.timing.ends if ends), default=clock_start(run.schedule))


def hops(run: Run) -> Iterator[Hop]:
    """All transfers, a channel after another, each in its order."""
    for channel, each in zip(run.schedule.channels, run.timing.transfers, strict=True):
        program = run.schedule.programs[channel.dst]
        # at the end of an open stream a transfer may have only one end, and no times
        for send, recv, start, end in zip(each.sends, each.recvs, each.starts, each.ends, strict=False):
            _, chunk, stage, *_ = program.row(recv)
            yield Hop(channel, send, recv, chunk, stage, start, end)


def reason(schedule: Schedule, rank: int, gap: Gap) -> str:
    """Why a rank does not compute, in words."""
    if gap.awaited >= 0:
        op, chunk, stage, _, peer, _ = schedule.programs[rank].row(gap.awaited)
        what = f"the input of C{chunk} s{stage} from" if op == RECV else f"its output of C{chunk} s{stage} to reach"
        return f"{'transfer: waits' if gap.exposed else 'waits'} for {what} rank {peer}"
    if gap.following < 0:
        return "has no work left"
    if gap.start < schedule.chunk_arrivals[gap.following] <= gap.end:
        return "waits for a request to arrive"
    return "between instructions"


def _lane(run: Run, rank: int, posted: list[float]) -> Lane:
    lane = Lane(rank, [], [])
    gaps: list[tuple[float, float, bool, int, int]] = []  # the last: how many blocks there are before it
    starts, ends = run.timing.starts[rank], run.timing.ends[rank]
    done, awaited, longest = clock_start(run.schedule), -1, 0.0

    def idle(until: float) -> None:
        nonlocal done, awaited, longest
        if until > done:
            gaps.append((done, until, False, awaited, len(lane.blocks)))
            done = until
        awaited, longest = -1, 0.0

    for index, (op, chunk, stage, x, _, _) in enumerate(run.schedule.programs[rank].rows()):
        start, end = starts[index], ends[index]
        if op == WAIT:
            if end - start > longest:
                awaited, longest = x, end - start
            begin = max(start, posted[x], done)
            if end > begin:
                idle(begin)
                gaps.append((begin, end, True, x, len(lane.blocks)))
                done = end
        elif op == FORWARD or (op == SAMPLE and end > start):
            idle(start)
            lane.blocks.append(Block(start, end, chunk, stage, index))
            done = max(done, end)
    awaited = -1
    idle(end_of(run))
    for begin, end, exposed, of, before in gaps:
        following = lane.blocks[before].chunk if before < len(lane.blocks) else -1
        lane.gaps.append(Gap(begin, end, exposed, of, following))
    return lane
