"""Where two schedules differ: in their chunks, in the order of a rank's operations, in when operations run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from vppc.analysis.breakdown import clock_start
from vppc.analysis.times import Timing
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Op, Schedule


@dataclass(frozen=True, slots=True)
class Fork:
    """Two sequences are the same for ``common`` elements; then one has ``ours`` and the other ``theirs``, None where
    it has ended. ``common`` is the length of both where they are the same."""

    common: int
    ours: object | None
    theirs: object | None

    @property
    def same(self) -> bool:
        return self.ours is None and self.theirs is None


class Shift(NamedTuple):
    """An operation that both schedules run: its start from the clock's start and its seconds, in each."""

    op: Op
    our_start: float
    our_seconds: float
    their_start: float
    their_seconds: float


def fork(ours: Sequence[object], theirs: Sequence[object]) -> Fork:
    """Where two sequences part; None is no element of either."""
    for common, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            return Fork(common, one, other)
    return Fork(len(ours), None, None)


def order_of(schedule: Schedule, rank: int) -> list[Op]:
    """The operations of a rank's program, in order."""
    rows = schedule.programs[rank].rows() if rank < len(schedule.programs) else ()
    return [Op(chunk, stage) for op, chunk, stage, *_ in rows if op == FORWARD]


def same_work(ours: Schedule, theirs: Schedule) -> bool:
    """Whether two schedules run the same operations: the same chunks of the same prompts on the same stages."""
    return (
        [(part.request, part.start, part.tokens, part.decode) for chunk in ours.chunks for part in chunk.parts]
        == [(part.request, part.start, part.tokens, part.decode) for chunk in theirs.chunks for part in chunk.parts]
        and [len(chunk.parts) for chunk in ours.chunks] == [len(chunk.parts) for chunk in theirs.chunks]
        and [(stage.rank, stage.layers) for stage in ours.stages] == [(s.rank, s.layers) for s in theirs.stages]
    )


def same_programs(ours: Schedule, theirs: Schedule) -> bool:
    """Whether every rank runs the same instructions on the same work."""
    return same_work(ours, theirs) and [each.code for each in ours.programs] == [each.code for each in theirs.programs]


def shifts(ours: tuple[Schedule, Timing], theirs: tuple[Schedule, Timing], listed: int) -> list[Shift]:
    """Of two schedules of the same work, the ``listed`` operations whose starts lie farthest apart, in that order."""
    mine, others = _operations(*ours), _operations(*theirs)
    found = [Shift(op, *mine[op], *others[op]) for op in mine.keys() & others.keys()]
    return sorted(found, key=lambda shift: (-abs(shift.their_start - shift.our_start), shift.op))[:listed]


def _operations(schedule: Schedule, timing: Timing) -> dict[Op, tuple[float, float]]:
    origin = clock_start(schedule)
    return {
        Op(chunk, stage): (start - origin, end - start)
        for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True)
        for (op, chunk, stage, *_), start, end in zip(program.rows(), starts, ends, strict=True)
        if op == FORWARD
    }
