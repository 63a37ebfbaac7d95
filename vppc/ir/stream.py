"""A schedule followed by a segment is a schedule."""

from __future__ import annotations

from dataclasses import replace

from vppc.errors import CheckFailed
from vppc.ir.instruction import WIDTH, Program
from vppc.ir.rules.registry import Report
from vppc.ir.rules.segments import check_chain
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Continuation, Segment


def extend(schedule: Schedule, segment: Segment) -> Schedule:
    """``schedule`` grown by ``segment``, which must start where the schedule's lists end.

    The result carries no certificate and no prediction: those were of the shorter one. Raises CheckFailed when
    the segment does not fit. That it is the right one, by sequence and digest, is for a stream's verifier.
    """
    report = Report()
    check_chain(segment, segment.sequence, "", [len(program) for program in schedule.programs], report)
    if report:
        raise CheckFailed(report.findings())
    programs = list(schedule.programs)
    for more in segment.programs:
        programs[more.rank] = _joined(programs[more.rank], more)
    extra = {key: value for key, value in schedule.extra.items() if key != "prediction"}
    if "cancelled" in segment.extra:
        extra["cancelled"] = [*extra.get("cancelled", ()), *segment.extra["cancelled"]]
    return replace(
        schedule,
        requests=schedule.requests + segment.requests,
        chunks=schedule.chunks + segment.chunks,
        order=None,
        programs=tuple(programs),
        extra=extra,
        certificate=None,
    )


def _joined(program: Program, more: Continuation) -> Program:
    start = len(program.code) // WIDTH
    notes = {**program.notes, **{start + index: note for index, note in more.notes.items()}}
    return replace(program, code=program.code + more.code, notes=notes)
