"""What every rank does at every moment of a run, and what a rank that waits is really waiting for.

A rank at any moment runs an instruction, waits for a transfer that is under way, waits for the other end of one to be
posted, waits for a request to arrive, is between two instructions (which takes time only when measured), or is done.

A wait for a peer has a **root**: what that peer does meanwhile; if it waits for a peer as well, what that one does,
and so on. Waits of a schedule that is free of deadlock form no cycle, so the search ends after at most pp ranks: at a
FORWARD, a transfer, a request that has not arrived. A wait changes its root as its peers go on, so it divides into
pieces with one root each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from vppc.analysis.breakdown import both_ends_posted, clock_start
from vppc.analysis.times import Timing
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.ir.schedule import Schedule


class Doing(Enum):
    """What a rank does."""

    RUN = "runs"
    TRANSFER = "waits for a transfer under way"
    PEER = "waits for a peer"
    ARRIVAL = "waits for a request to arrive"
    BETWEEN = "is between two instructions"
    DONE = "has no work left"


IDLE = frozenset(Doing) - {Doing.RUN, Doing.TRANSFER}
"""What counts as bubble; a transfer under way is an exposed transfer."""


class Span(NamedTuple):
    """A stretch of a rank's time, in seconds on the run's clock.

    ``instruction`` is what runs or, of a rank that waits, the SEND or RECV whose transfer it waits for; before an
    arrival or between instructions, what comes next; -1 when it is done.
    """

    start: float
    end: float
    doing: Doing
    instruction: int


class Root(NamedTuple):
    """From ``start`` to ``end`` a wait has one reason: the last of the ``links``, of which each waits for the next.

    A link is a rank and its span; the first is the wait in question.
    """

    start: float
    end: float
    links: tuple[tuple[int, Span], ...]

    @property
    def rank(self) -> int:
        return self.links[-1][0]

    @property
    def span(self) -> Span:
        return self.links[-1][1]


@dataclass(frozen=True, slots=True)
class Activity:
    """Every rank's spans, in order; together they fill the time from the start of the clock to the run's end."""

    schedule: Schedule
    timing: Timing
    start: float
    end: float
    spans: tuple[list[Span], ...]

    @classmethod
    def of(cls, schedule: Schedule, timing: Timing) -> Activity:
        """The activity in a simulated or measured run; linear in the instructions."""
        start = clock_start(schedule)
        end = max((max(ends) for ends in timing.ends if ends), default=start)
        posted = both_ends_posted(schedule, timing)
        ranks = range(len(schedule.programs))
        return cls(
            schedule,
            timing,
            start,
            end,
            tuple(list(_spans(schedule, timing, rank, posted[rank], start, end)) for rank in ranks),
        )

    def at(self, rank: int, moment: float) -> Span:
        """What a rank does from a moment on, which lies between ``start`` and ``end``."""
        spans = self.spans[rank] or [Span(self.start, self.end, Doing.DONE, -1)]  # of a run that takes no time
        return spans[max(0, bisect_right(spans, moment, key=lambda span: span.start) - 1)]

    def during(self, rank: int, start: float, end: float) -> Iterator[Span]:
        """What a rank does in a stretch of time, cut to it."""
        spans = self.spans[rank]
        for index in range(max(0, bisect_right(spans, start, key=lambda span: span.start) - 1), len(spans)):
            span = spans[index]
            if span.start >= end:
                return
            if span.end > max(start, span.start):
                yield span._replace(start=max(start, span.start), end=min(end, span.end))

    def roots(self, rank: int, span: Span) -> Iterator[Root]:
        """Why a rank waits in a span: pieces with one root each, which together fill the span."""
        return self._roots(((rank, span),))

    def _roots(self, links: tuple[tuple[int, Span], ...]) -> Iterator[Root]:
        rank, span = links[-1]
        # clocks of a measured run may disagree by so much that two ranks seem to wait for each other
        if span.doing is not Doing.PEER or len(links) > len(self.spans):
            yield Root(span.start, span.end, links)
            return
        peer = self.schedule.programs[rank].row(span.instruction)[4]
        for meanwhile in self.during(peer, span.start, span.end):
            yield from self._roots((*links, (peer, meanwhile)))


def _spans(
    schedule: Schedule, timing: Timing, rank: int, posted: list[float], origin: float, end_of_run: float
) -> Iterator[Span]:
    starts, ends = timing.starts[rank], timing.ends[rank]
    arrivals = schedule.chunk_arrivals
    done = origin

    def until(moment: float, doing: Doing, instruction: int) -> Iterator[Span]:
        nonlocal done
        if moment > done:
            yield Span(done, moment, doing, instruction)
            done = moment

    for index, (op, chunk, stage, x, _, _) in enumerate(schedule.programs[rank].rows()):
        start, end = starts[index], ends[index]
        if op == WAIT:
            yield from until(start, Doing.BETWEEN, index)
            yield from until(min(posted[x], end), Doing.PEER, x)
            yield from until(end, Doing.TRANSFER, x)
        elif op == FORWARD or (op == SAMPLE and end > start):
            if op == FORWARD and not stage:
                yield from until(min(arrivals[chunk], start), Doing.ARRIVAL, index)
            yield from until(start, Doing.BETWEEN, index)
            yield Span(done, max(done, end), Doing.RUN, index)  # also one that takes no time
            done = max(done, end)
    yield from until(end_of_run, Doing.DONE, -1)
