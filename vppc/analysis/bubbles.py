"""The bubbles of a run, attributed to causes and to phases. The pieces of a rank add up to its bubble.

A piece of a bubble has the cause of its root (see :mod:`vppc.analysis.activity`): what the rank is really waiting for.

===========  ==============================================================================================
request      a request has not arrived
transfer     a transfer under way, between other ranks: what is sent over it is then passed on
overhead     time between instructions, here or there; only when measured
fill         a FORWARD of a chunk that is on its way here, and what the rank runs next is its first, or the first
             chunk of a prompt: the pipeline is not full yet
drain        a FORWARD, when the last chunk of a prompt has entered and no other has; or no work is left
imbalance    a FORWARD, otherwise: it takes longer than what the rank had to do meanwhile
===========  ==============================================================================================

The phases are of the whole run: **warm-up** until the first chunk leaves the last stage, **steady** while chunks
enter and leave, **drain** from when the last chunk has run stage 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from vppc.analysis.activity import IDLE, Activity, Doing, Root
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule

CAUSES = ("request", "fill", "drain", "imbalance", "transfer", "overhead")
PHASES = ("warm-up", "steady", "drain")


class Bubble(NamedTuple):
    """A piece of a rank's bubble, in seconds on the run's clock, with one root, cause and phase.

    ``awaited`` is the rank's SEND or RECV whose transfer the rank waits for, -1 where it waits for none.
    """

    start: float
    end: float
    cause: str
    phase: str
    awaited: int
    root: Root

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Milestones:
    """When prompts drain, as ascending stretches of time, and when the run's phases end."""

    drains: list[tuple[float, float]]
    warm: float
    steady: float

    @classmethod
    def of(cls, activity: Activity) -> _Milestones:
        schedule, timing = activity.schedule, activity.timing
        last_stage = len(schedule.stages) - 1
        entries: list[tuple[float, float, int]] = []
        first_out = inf
        for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True):
            for index, (op, chunk, stage, *_) in enumerate(program.rows()):
                if op == FORWARD and not stage:
                    entries.append((starts[index], ends[index], chunk))
                if op == FORWARD and stage == last_stage:
                    first_out = min(first_out, ends[index])
        entries.sort()
        ends_prompt = schedule.samples
        following = [*(start for start, *_ in entries), inf][1:]
        drains = [(end, after) for (_, end, chunk), after in zip(entries, following, strict=True) if ends_prompt[chunk]]
        steady = entries[-1][1] if entries else activity.end
        return cls(drains, min(first_out, steady), steady)

    def cuts(self) -> list[float]:
        """Where a piece must be cut so that it lies in one phase, and drains as a whole or not at all."""
        return sorted({self.warm, self.steady, *(moment for drain in self.drains for moment in drain)})

    def draining(self, moment: float) -> bool:
        index = bisect_right(self.drains, (moment, inf)) - 1
        return index >= 0 and moment < self.drains[index][1]

    def phase(self, moment: float) -> str:
        return PHASES[0] if moment < self.warm else PHASES[1] if moment < self.steady else PHASES[2]


def bubbles(activity: Activity) -> tuple[list[Bubble], ...]:
    """For every rank the pieces of its bubble, in order; their seconds are its launch stall and free time."""
    milestones = _Milestones.of(activity)
    cuts = milestones.cuts()
    firsts = _first_chunks(activity.schedule)
    return tuple(list(_rank_bubbles(activity, rank, milestones, cuts, firsts)) for rank in range(len(activity.spans)))


def totals(pieces: Sequence[Bubble], by: str) -> dict[str, float]:
    """Seconds by ``cause`` or ``phase``, zeros included."""
    sums = dict.fromkeys(CAUSES if by == "cause" else PHASES, 0.0)
    for piece in pieces:
        sums[piece.cause if by == "cause" else piece.phase] += piece.seconds
    return sums


def _rank_bubbles(
    activity: Activity, rank: int, milestones: _Milestones, cuts: list[float], firsts: frozenset[int]
) -> Iterator[Bubble]:
    spans = activity.spans[rank]
    runs = [place for place, span in enumerate(spans) if span.doing is Doing.RUN]
    program = activity.schedule.programs[rank]
    for place, span in enumerate(spans):
        if span.doing not in IDLE:
            continue
        after = bisect_right(runs, place)
        following = program.row(spans[runs[after]].instruction)[1] if after < len(runs) else -1
        awaited = span.instruction if span.doing is Doing.PEER else -1
        for root in activity.roots(rank, span):
            for start, end in _cut(root.start, root.end, cuts):
                if following < 0:
                    cause = "drain"
                elif root.span.doing is Doing.ARRIVAL:
                    cause = "request"
                elif root.span.doing is Doing.TRANSFER:
                    cause = "transfer"
                elif root.span.doing is not Doing.RUN:
                    cause = "overhead"
                elif after and milestones.draining(start):
                    cause = "drain"
                elif not after or following in firsts:
                    cause = "fill"
                else:
                    cause = "imbalance"
                yield Bubble(start, end, cause, milestones.phase(start), awaited, root)


def _cut(start: float, end: float, cuts: list[float]) -> Iterator[tuple[float, float]]:
    for index in range(bisect_right(cuts, start), len(cuts)):
        if cuts[index] >= end:
            break
        yield start, cuts[index]
        start = cuts[index]
    yield start, end


def _first_chunks(schedule: Schedule) -> frozenset[int]:
    """The chunks in which a prompt begins."""
    seen: set[int] = set()
    firsts = set()
    for index, chunk in enumerate(schedule.chunks):
        for part in chunk.parts:
            if part.request not in seen:
                seen.add(part.request)
                firsts.add(index)
    return frozenset(firsts)
