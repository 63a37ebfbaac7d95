"""Ascend's ``step_trace_time.csv`` of a rank and ``cluster_step_trace_time.csv`` of many: where each step's time went.

Microseconds in the file. Newer versions have ``Device_id`` and ``Preparing``; a cluster file has ``Type`` and
``Index`` instead, with a row a rank and a row a pipeline stage, which has the greatest value of its ranks in every
column. ``Step`` is empty when the profiler was not told of steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vppc.errors import CheckFailed, Finding, InputError
from vppc.inputs.table import Header, Row, read_table
from vppc.profiles.step_times import ROUNDING, StepTimes

COLUMNS = (
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
)
"""In the order of the fields of :class:`StepTimes`."""
_PREPARING = "Preparing"
_OWN_STAGE = re.compile(r"\(?\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*\)?")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The times of a rank; ``rank`` is its number as the file has it, empty in a file of one rank."""

    rank: str
    times: StepTimes


def is_step_trace(header: Header) -> bool:
    """Whether a table is one of these, though perhaps not whole."""
    return {"computing", "free"} <= {name.casefold() for name in header.columns}


def read_step_trace(path: str, step: str | None = None) -> tuple[RankTimes, ...]:
    """The times of every rank in a file, of ``step`` if it is given.

    Raises InputError with the line of what is wrong, also when there are several steps and none is given, and
    CheckFailed where times do not add up.
    """
    header, rows = read_table(path)
    named = _columns(header)
    ranks: dict[str, RankTimes] = {}
    stages: list[tuple[Row, list[float]]] = []
    first: Row | None = None
    for row in rows:
        row.check_whole()
        found = row.text("Step") if row.has("Step") else ""
        if step is not None and found != step:
            continue
        first = first or row
        check_one_step(row, found, first.text("Step") if first.has("Step") else "", first.line)
        values = [row.number(named[column]) / 1e6 for column in COLUMNS]
        if row.has("Type") and row.text("Type") == "stage":
            stages.append((row, values))
            continue
        rank = next((row.text(column) for column in ("Index", "Device_id") if row.has(column)), "")
        if rank in ranks:
            raise row.error(f"rank {rank} is there twice" if rank else "is a second rank", "", "a line a rank and step")
        preparing = row.number(_PREPARING) / 1e6 if row.has(_PREPARING) else None
        times = replace(StepTimes(f"{header.file}: line {row.line}", found, *values), preparing=preparing)
        _check(times, header, row)
        ranks[rank] = RankTimes(rank, times)
    if not ranks:
        what = f"no rank of step {step}" if step is not None else "no ranks"
        raise InputError(f"has {what}", file=header.file, remedy="a line a rank and step")
    for row, values in stages:
        _check_stage(row, values, ranks)
    return tuple(ranks.values())


def check_one_step(row: Row, step: str, first: str, line: int) -> None:
    """Raises InputError when a row is of another step than the first one read."""
    if step != first:
        raise row.error(
            f"is of step {step or '(none)'}, but line {line} of {first or '(none)'}: steps are not to be mixed",
            "",
            "pick one with --step",
        )


def _columns(header: Header) -> dict[str, str]:
    """Our name of each column -> the file's, which differs in case between versions."""
    actual = {name.casefold(): name for name in header.columns}
    named = {column: actual.get(column.casefold(), column) for column in COLUMNS}
    header.require(*named.values())
    return named


def _check(times: StepTimes, header: Header, row: Row) -> None:
    broken = [
        Finding("U1", f"line {row.line}", f"{name} does not hold: {miss * 1e6:+.2f} us", "export the profile again")
        for name, miss in times.broken_identities()
    ]
    if broken:
        raise CheckFailed(tuple(broken), file=header.file)


def _check_stage(row: Row, values: Sequence[float], ranks: dict[str, RankTimes]) -> None:
    """A stage has the greatest value of its ranks in every column."""
    match = _OWN_STAGE.fullmatch(row.text("Index"))
    if match is None:
        raise row.error("names no ranks", "Index", "such as (0, 1, 2, 3)")
    members = [ranks[name.strip()] for name in match[1].split(",") if name.strip() in ranks]
    if not members:
        return
    for column, value, greatest in zip(COLUMNS, values, _greatest(members), strict=True):
        if abs(value - greatest) > ROUNDING * (1.0 + value):
            raise CheckFailed(
                (
                    Finding(
                        "U2",
                        f"line {row.line}, {column}",
                        f"is {value * 1e6:.2f} us, but the greatest of its ranks {greatest * 1e6:.2f} us",
                        "ranks and stages of one step, as the cluster analysis wrote them",
                    ),
                ),
                file=row.header.file,
            )


def _greatest(members: Iterable[RankTimes]) -> list[float]:
    rows = [
        (
            each.times.computing,
            each.times.exposed,
            each.times.overlapped,
            each.times.communication,
            each.times.free,
            each.times.stage,
            each.times.receive,
            each.times.exposed_without_receive,
        )
        for each in members
    ]
    return [max(column) for column in zip(*rows, strict=True)]
