"""What pictures and traces show of a run: each rank's operations, the gaps between them, the hops between ranks.

Times are seconds on the run's clock, planned or measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vppc.analysis.activity import IDLE, Activity, Doing, Span
from vppc.analysis.breakdown import clock_start
from vppc.analysis.times import Timing
from vppc.ir.instruction import RECV
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
    activity = Activity.of(run.schedule, run.timing)
    return tuple(_lane(activity, rank) for rank in range(len(run.schedule.programs)))


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
        return f"{'transfer: ' if gap.exposed else ''}{awaits(op, chunk, stage, peer)}"
    if gap.following < 0:
        return "has no work left"
    if gap.start < schedule.chunk_arrivals[gap.following] <= gap.end:
        return "waits for a request to arrive"
    return "between instructions"


def awaits(op: int, chunk: int, stage: int, peer: int) -> str:
    """What a rank waits for in the WAIT of a SEND or RECV, in words."""
    what = f"the input of C{chunk} s{stage} from" if op == RECV else f"its output of C{chunk} s{stage} to reach"
    return f"waits for {what} rank {peer}"


def _lane(activity: Activity, rank: int) -> Lane:
    """A rank's spans without what an idle one waits for at each moment: of a gap, the longest wait is named."""
    program = activity.schedule.programs[rank]
    lane = Lane(rank, [], [])
    gaps: list[tuple[list[Span], int]] = []  # the spans of a gap, and how many blocks there are before it
    for span in activity.spans[rank]:
        if span.doing is Doing.RUN:
            _, chunk, stage, *_ = program.row(span.instruction)
            lane.blocks.append(Block(span.start, span.end, chunk, stage, span.instruction))
        elif span.doing in IDLE and gaps and gaps[-1][0][-1].doing in IDLE and gaps[-1][1] == len(lane.blocks):
            gaps[-1][0].append(span)
        else:
            gaps.append(([span], len(lane.blocks)))
    for spans, before in gaps:
        following = lane.blocks[before].chunk if before < len(lane.blocks) else -1
        exposed = spans[0].doing is Doing.TRANSFER
        waits = [span for span in spans if exposed or (span.doing is Doing.PEER and spans[-1].doing is not Doing.DONE)]
        longest = max(waits, key=lambda span: span.end - span.start, default=None)
        awaited = -1 if longest is None else longest.instruction
        lane.gaps.append(Gap(spans[0].start, spans[-1].end, exposed, awaited, following))
    return lane
