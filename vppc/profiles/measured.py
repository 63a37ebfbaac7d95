"""A journal in the terms of the simulator: its timing, its report, and where plan and fact differ.

A journal knows of a transfer when its ends were posted and when their WAITs returned. The transfer starts when both
are posted and the channel's transfer before it is over, as in the simulator. Where the receiver was waiting by then,
it ends when that WAIT returns: such a transfer was *watched*. When another one ended nobody saw; it is taken to be as
quick a token as those watched are in the middle, and over when the first of its two WAITs returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from vppc.analysis.activity import Activity
from vppc.analysis.breakdown import both_ends_posted
from vppc.analysis.report import Report, report
from vppc.analysis.slip import Slip, slip
from vppc.analysis.times import Timing, Transfers
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, OpCosts
from vppc.costs.robust import median
from vppc.costs.samples import Forward, Head, Layers, Measurements, Transfer, chunk_parts, forward
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT
from vppc.ir.schedule import Schedule
from vppc.profiles.journal import Journal
from vppc.sums import plain_sum

_WATCHED = 0.5
"""The receiver's WAIT blocked for so much of a transfer that it was watched. A WAIT that has nothing to wait for takes
a moment too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An instruction that took another time than planned; seconds.

    Of a WAIT, what it blocked once both ends of its transfer were posted: before that the rank waits for a peer, and
    what that peer took longer for is a difference of its own.
    """

    rank: int
    index: int
    planned_start: float
    planned: float
    measured_start: float
    measured: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A journal judged: what was measured and planned, the differences, the largest first, and why it ended later.

    ``forwards_ratio`` is how much longer all FORWARDs together took than planned (1.0: as planned), and
    ``rank_ratios`` those of each rank.
    """

    journal: Journal
    timing: Timing
    report: Report
    plan: Report
    forwards_ratio: float
    rank_ratios: tuple[float, ...]
    differences: tuple[Difference, ...]
    slip: Slip


def measure(journal: Journal, cost: CostModel, listed: int = 10) -> Measured:
    """Judges a journal against the plan that ``cost`` makes of its schedule; ``listed`` differences are kept.

    The report's ideal is by ``cost``. Its bound is by the measured times: no order of these forwards, each as long
    as it was, is quicker. Collectives inside a FORWARD are compute to a journal.
    """
    schedule = journal.schedule
    timing = timing_of(journal)
    planned_costs = OpCosts.of(schedule, cost)
    planned = simulate(schedule, planned_costs, cost.interference)
    measured_costs = _measured_costs(schedule, timing)
    took, planned_for = (_by_rank(schedule, costs) for costs in (measured_costs, planned_costs))
    return Measured(
        journal,
        timing,
        report(schedule, cost, measured_costs, timing),
        report(schedule, cost, planned_costs, planned),
        _ratio(plain_sum(took), plain_sum(planned_for)),
        tuple(map(_ratio, took, planned_for)),
        differences(schedule, planned, timing, listed),
        slip(Activity.of(schedule, planned), Activity.of(schedule, timing)),
    )


def _by_rank(schedule: Schedule, costs: OpCosts) -> list[float]:
    """The seconds of every rank's FORWARDs."""
    stages = len(schedule.stages)
    return [plain_sum(plain_sum(costs.seconds[stage::stages]) for stage in mine) for mine in schedule.rank_stages]


def _ratio(took: float, planned: float) -> float:
    return took / planned if planned else 1.0


def timing_of(journal: Journal) -> Timing:
    """The timing of a journal: of each rank, its first TP rank's."""
    schedule = journal.schedule
    starts = tuple(rank[0].starts for rank in journal.ranks)
    ends = tuple(
        [
            start if op in (SEND, RECV) else end
            for (op, *_), start, end in zip(program.rows(), rank[0].starts, rank[0].ends, strict=True)
        ]
        for program, rank in zip(schedule.programs, journal.ranks, strict=True)
    )
    return Timing(starts, ends, _transfers(schedule, starts, ends)[0])


def measurements(journal: Journal, layers: Layers) -> Measurements:
    """What a journal tells about costs: its FORWARDs, its SAMPLEs, and the transfers that were watched.

    The first FORWARD of a rank may be a cold one; the fit copes.
    """
    schedule, timing = journal.schedule, timing_of(journal)
    forwards: list[Forward] = []
    heads: list[Head] = []
    counts = [layers.between(*stage.layers) for stage in schedule.stages]
    parts = [chunk_parts(chunk) for chunk in schedule.chunks]
    ends = [request.prompt_tokens for request in schedule.requests]
    for rank, index, chunk, stage, seconds in _timed(schedule, timing, FORWARD):
        place = f"{journal.folder}: rank {rank}, instruction {index}"
        forwards.append(forward(place, seconds, parts[chunk], counts[stage], layers.topks, embeds=stage == 0))
    for rank, index, chunk, _, seconds in _timed(schedule, timing, SAMPLE):
        rows = sum(part.decode or part.end == ends[part.request] for part in schedule.chunks[chunk].parts)
        heads.append(Head(f"{journal.folder}: rank {rank}, instruction {index}", seconds, rows))
    transfers = (
        Transfer(f"{journal.folder}: rank {each.rank}, instruction {each.recv}", each.seconds, each.tokens)
        for each in _transfers(schedule, timing.starts, timing.ends)[1]
        if each.seconds > journal.uncertainty
    )
    return Measurements(
        layers,
        tuple(forwards),
        tuple(transfers),
        tuple(heads),
        schedule.model.name,
        frozenset(("transfers", "heads")),
    )


def _timed(schedule: Schedule, timing: Timing, wanted: int) -> Iterator[tuple[int, int, int, int, float]]:
    """(rank, index, chunk, stage, seconds) of the instructions of a kind that took any time."""
    for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True):
        for index, (op, chunk, stage, *_) in enumerate(program.rows()):
            if op == wanted and ends[index] > starts[index]:
                yield program.rank, index, chunk, stage, ends[index] - starts[index]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A transfer that its receiver, ``rank``, watched: instruction ``recv``."""

    rank: int
    recv: int
    seconds: float
    tokens: int


def _transfers(
    schedule: Schedule, starts: tuple[list[float], ...], ends: tuple[list[float], ...]
) -> tuple[tuple[Transfers, ...], list[_Watched]]:
    """All transfers of every channel, and those that were watched.

    The second time those that nobody saw end as quickly as the watched ones of the first time say, and so no later
    transfer of their channel seems to have queued behind one of them.
    """
    _, watched = _paced(schedule, starts, ends, inf)
    pace = median([each.seconds / each.tokens for each in watched]) if watched else inf
    return _paced(schedule, starts, ends, pace)


def _paced(
    schedule: Schedule, starts: tuple[list[float], ...], ends: tuple[list[float], ...], pace: float
) -> tuple[tuple[Transfers, ...], list[_Watched]]:
    """All transfers, of which those that nobody saw take ``pace`` seconds a token at most, and those watched."""
    tokens = [chunk.tokens for chunk in schedule.chunks]
    waits = _waits(schedule)
    sends, recvs = _posts(schedule, SEND), _posts(schedule, RECV)
    channels = tuple(Transfers(*posts) for posts in zip(sends, recvs, strict=True))
    watched: list[_Watched] = []
    for channel, transfers in zip(schedule.channels, channels, strict=True):
        src, dst = channel.src, channel.dst
        over = -inf
        for send, recv in zip(transfers.sends, transfers.recvs, strict=True):
            sent, received = waits[src][send], waits[dst][recv]
            end = ends[dst][received]
            start = min(end, max(starts[src][send], starts[dst][recv], over))
            carried = tokens[schedule.programs[dst].row(recv)[1]]
            if end - starts[dst][received] > _WATCHED * (end - start) > 0.0:
                watched.append(_Watched(dst, recv, end - start, carried))
            else:
                end = min(max(start, min(end, ends[src][sent])), start + pace * carried)
            over = max(over, end)
            transfers.send_posted.append(starts[src][send])
            transfers.recv_posted.append(starts[dst][recv])
            transfers.starts.append(start)
            transfers.ends.append(end)
    return channels, watched


def _posts(schedule: Schedule, wanted: int) -> list[list[int]]:
    """For every channel the instructions that post a SEND (or RECV) on it, in order."""
    places = {channel.id: place for place, channel in enumerate(schedule.channels)}
    posts: list[list[int]] = [[] for _ in schedule.channels]
    for program in schedule.programs:
        for index, (op, _, _, _, _, channel) in enumerate(program.rows()):
            if op == wanted:
                posts[places[channel]].append(index)
    return posts


def _waits(schedule: Schedule) -> list[dict[int, int]]:
    """Of every rank: instruction that posts a transfer -> its WAIT."""
    return [
        {row[3]: index for index, row in enumerate(program.rows()) if row[0] == WAIT} for program in schedule.programs
    ]


def _measured_costs(schedule: Schedule, timing: Timing) -> OpCosts:
    """Each FORWARD as long as it was, each chunk's hops as long as its quickest."""
    stages = len(schedule.stages)
    seconds = [0.0] * (len(schedule.chunks) * stages)
    for _, _, chunk, stage, took in _timed(schedule, timing, FORWARD):
        seconds[chunk * stages + stage] = took
    hops: list[list[float]] = [[] for _ in schedule.chunks]
    for channel, each in zip(schedule.channels, timing.transfers, strict=True):
        for send, start, end in zip(each.sends, each.starts, each.ends, strict=True):
            hops[schedule.programs[channel.src].row(send)[1]].append(end - start)
    return OpCosts(seconds, [0.0] * len(seconds), [min(each, default=0.0) for each in hops])


def differences(schedule: Schedule, planned: Timing, measured: Timing, listed: int) -> tuple[Difference, ...]:
    """The ``listed`` instructions that took the most different times in two runs of a schedule, the largest first."""
    posted = [both_ends_posted(schedule, timing) for timing in (planned, measured)]
    found: list[Difference] = []
    for rank, program in enumerate(schedule.programs):
        for index, (op, _, _, x, _, _) in enumerate(program.rows()):
            if op not in (FORWARD, WAIT, SAMPLE):
                continue
            times = []
            for timing, both in zip((planned, measured), posted, strict=True):
                start, end = timing.starts[rank][index], timing.ends[rank][index]
                from_then = max(start, both[rank][x]) if op == WAIT else start
                times += [start, max(0.0, end - from_then)]
            found.append(Difference(program.rank, index, *times))
    return tuple(sorted(found, key=lambda each: -abs(each.measured - each.planned))[:listed])
