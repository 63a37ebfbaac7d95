"""Rules of a closed stream, one with no segment to come: nothing is left to do."""

from __future__ import annotations

from vppc.ir.rules.explain import excerpt, name, place, row_of
from vppc.ir.rules.program import Tape
from vppc.ir.rules.registry import Report


def check_done(tape: Tape, report: Report) -> None:
    """Judge what a rank's list leaves open (rules P4, P11, P13 and B6)."""
    rank = f"programs[{tape.rank}].instructions (rank {tape.rank})"
    for stage, todo in tape.todo.items():
        chunk = todo.find(1)
        while chunk >= 0:
            report.add("P4", rank, f"FORWARD c{chunk} s{stage} is missing", "add it, behind what it reads")
            chunk = todo.find(1, chunk + 1)
    chunk = tape.unsampled.find(1)
    while chunk >= 0:
        report.add("P13", rank, f"SAMPLE c{chunk} is missing", "add it, behind the chunk's last FORWARD")
        chunk = tape.unsampled.find(1, chunk + 1)
    for index in tape.flight:
        _report(tape, index, report, "P11", "is never waited for", f'add {{"op": "WAIT", "of": {index}}}')
    for buffer, content in enumerate(tape.holds[: tape.buffers]):
        if content > 0 and content not in tape.lost:
            index = tape.since[buffer]
            remedy = "let a FORWARD, SEND or SAMPLE read it, or do not write it"
            _report(tape, index, report, "B6", f"writes b{buffer}, and nobody reads it", remedy)


def _report(tape: Tape, index: int, report: Report, code: str, problem: str, remedy: str) -> None:
    text = "" if report.full(code) else excerpt(tape, index)
    report.add(code, place(tape.rank, index), f"{name(row_of(tape, index))} {problem}", remedy, text)
