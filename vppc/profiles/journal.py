"""The runtime's journal: a folder with the schedule that ran and one JSONL file a process.

The first line of a file is a header, then there is a line an instruction, in the order in which they ended::

    {"format": "vppc.journal", "version": 1, "rank": 0, "tp_rank": 0, "digest": "..", "clock_offset": 0.0, ..}
    {"i": 0, "op": "FORWARD", "start": 0.0012, "end": 0.0341}
    {"i": 1, "op": "SEND", "start": 0.0341, "end": 0.0409, "posted": 0.0341}

Seconds are on the common clock, from the start of the run. A SEND or RECV ends when its WAIT returns, which is the
first that its rank knows of it. A journal that does not hold every instruction of every process once is refused:
what it lacks would count as idle time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from vppc.errors import CheckFailed, Finding, InputError
from vppc.files import read_bytes, read_lines
from vppc.ir.document import digest, parse_schedule
from vppc.ir.instruction import OPS, WIDTH, Program
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule
from vppc.json_text import loads, shown
from vppc.validation import check_format

FORMAT, VERSION = "vppc.journal", 1
SCHEDULE = "schedule.json"
_UNKNOWN = -inf
_EARLIEST = -1.0
"""The clock of a process may be so much behind at the start of the run."""
_LATEST = 1e12
_MOST_RANKS = 2**16


@dataclass(frozen=True, slots=True)
class ProcessJournal:
    """One process: when each instruction of its program began and ended; a SEND or RECV began when it was posted.

    The clock was right to within ``uncertainty`` seconds.
    """

    rank: int
    tp_rank: int
    uncertainty: float
    starts: list[float]
    ends: list[float]


@dataclass(frozen=True, slots=True)
class Journal:
    """A run: the schedule, and the processes of each rank in the order of their TP ranks."""

    folder: str
    schedule: Schedule
    ranks: tuple[tuple[ProcessJournal, ...], ...]

    @property
    def uncertainty(self) -> float:
        """Seconds by which times of two processes may disagree, at most."""
        return 2.0 * max(process.uncertainty for rank in self.ranks for process in rank)


def is_journal(folder: Path) -> bool:
    """Whether a folder looks like a journal, though perhaps one of a run of which no process wrote any."""
    return (folder / SCHEDULE).is_file()


def read_journal(path: str) -> Journal:
    """The journal in a folder. Raises InputError with the line of what is wrong, CheckFailed where files disagree."""
    folder = Path(path)
    data = read_bytes(str(folder / SCHEDULE))
    file = str(folder / SCHEDULE)
    schedule = parse_schedule(data, file)
    if findings := check(schedule):
        raise CheckFailed(findings, file=file)
    processes: dict[tuple[int, int], ProcessJournal] = {}
    files: dict[tuple[int, int], str] = {}
    for each in sorted(folder.glob("*.jsonl")):
        process = _read_process(str(each), schedule, digest(data))
        key = process.rank, process.tp_rank
        if key in processes:
            raise _disagree(str(each), f"is of rank {key[0]}, tp rank {key[1]}, as is {files[key]}")
        processes[key], files[key] = process, each.name
    tp = schedule.extra.get("tp", 1 + max((tp_rank for _, tp_rank in processes), default=0))
    missing = [key for key in ((r, t) for r in range(schedule.pp) for t in range(tp)) if key not in processes]
    if missing:
        raise _disagree(path, f"has no file of rank {missing[0][0]}, tp rank {missing[0][1]}")
    extra = sorted(key for key in processes if key[1] >= tp)
    if extra:
        raise _disagree(str(folder / files[extra[0]]), f"is of tp rank {extra[0][1]}, but the schedule is for {tp}")
    ranks = tuple(tuple(processes[rank, tp_rank] for tp_rank in range(tp)) for rank in range(schedule.pp))
    return Journal(path, schedule, ranks)


def _read_process(file: str, schedule: Schedule, expected: str) -> ProcessJournal:
    lines = enumerate(read_lines(file), start=1)
    head = next(lines, None)
    if head is None:
        raise InputError("is empty", file=file, remedy="a header line and a line for each instruction")
    header = _header(head[1], file)
    rank, tp_rank = header["rank"], header["tp_rank"]
    if header["digest"] != expected:
        raise _disagree(file, f"is of a run of another schedule than the {SCHEDULE} beside it", "line 1: digest")
    if rank >= schedule.pp:
        raise InputError(
            f"{rank} is too large", file=file, place="line 1: rank", remedy=f"ranks 0 to {schedule.pp - 1}"
        )
    program = schedule.programs[rank]
    starts, ends = [_UNKNOWN] * len(program), [_UNKNOWN] * len(program)
    last = 1
    for last, line in lines:
        index, start, end = _instruction(line, last, program, file)
        if starts[index] != _UNKNOWN:
            raise InputError(
                f"instruction {index} is there twice",
                file=file,
                place=f"line {last}",
                remedy="the journal of one run, every instruction once",
            )
        starts[index], ends[index] = start, end
    if _UNKNOWN in starts:
        index = starts.index(_UNKNOWN)
        raise InputError(
            f"ends without instruction {index} ({OPS[program.code[index * WIDTH]]}), one of {starts.count(_UNKNOWN)}"
            " that are missing",
            file=file,
            place=f"line {last}",
            remedy="the run did not end, or the file was cut",
        )
    return ProcessJournal(rank, tp_rank, header["clock_uncertainty"], starts, ends)


def _header(line: str, file: str) -> dict[str, Any]:
    header = check_format(loads(line, file), FORMAT, VERSION, file=file, place="line 1")
    for key, kinds, most in (
        ("rank", (int,), _MOST_RANKS),
        ("tp_rank", (int,), _MOST_RANKS),
        ("clock_uncertainty", (int, float), _LATEST),
    ):
        value = header.get(key)
        if type(value) not in kinds or not 0 <= value <= most:  # type: ignore[operator]  # a number
            raise InputError(f"{shown(value)} is no {key}", file=file, place=f"line 1: {key}")
    if not isinstance(header.get("digest"), str):
        raise InputError(f"{shown(header.get('digest'))} is no digest", file=file, place="line 1: digest")
    return header


def _instruction(line: str, number: int, program: Program, file: str) -> tuple[int, float, float]:
    """Index, start and end on one line; plain :mod:`json` reads it, for journals have millions of lines."""
    try:
        entry = json.loads(line)
        index, op, start, end = entry["i"], entry["op"], entry["start"], entry["end"]
        transfer = op in ("SEND", "RECV")
        posted = entry["posted"] if transfer else start
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _bad_line(line, number, file, error) from None
    place = f"line {number}"
    if type(index) is not int or not 0 <= index < len(program):
        raise InputError(
            f"{shown(index)} is no instruction of rank {program.rank}",
            file=file,
            place=f"{place}: i",
            remedy=f"0 to {len(program) - 1}",
        )
    planned = OPS[program.code[index * WIDTH]]
    if op != planned:
        raise InputError(
            f"instruction {index} is a {planned}, not {shown(op)}", file=file, place=f"{place}: op", remedy="one run"
        )
    for key, value in (("start", start), ("end", end), ("posted", posted)):
        if type(value) not in (float, int) or not _EARLIEST <= value <= _LATEST:
            raise InputError(
                f"{shown(value)} is not a time", file=file, place=f"{place}: {key}", remedy="seconds from the start"
            )
    if end < posted or posted < start:
        raise InputError(
            f"ends at {end} s, before its start at {max(start, posted)} s" if end < posted else "posted before start",
            file=file,
            place=place,
        )
    return index, posted, end


def _bad_line(line: str, number: int, file: str, error: Exception) -> InputError:
    if isinstance(error, KeyError):
        return InputError(f'the key "{error.args[0]}" is missing', file=file, place=f"line {number}")
    if not line.strip():
        return InputError("is blank", file=file, place=f"line {number}", remedy="a line for each instruction")
    loads(line, file, line=number)  # which says what is no JSON
    return InputError("is not an object", file=file, place=f"line {number}", remedy='{"i": .., "op": .., ..}')


def _disagree(file: str, problem: str, place: str = "") -> CheckFailed:
    return CheckFailed(
        (Finding("J1", place or "journal", problem, "the whole journal of one run, as the runtime wrote it"),),
        file=file,
    )
