"""Request traces in the CSV form of Azure's LLM inference traces.

A header ``TIMESTAMP,ContextTokens,GeneratedTokens``, then lines like ``2023-11-16 18:15:46.6805900,374,44``, with or
without a time zone (without: UTC). Columns are found by name, others are ignored.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from pydantic import TypeAdapter

from vppc.errors import InputError
from vppc.inputs.lines import numbered_lines
from vppc.ir.schedule import Request
from vppc.json_text import shown
from vppc.validation import Count, validate

COLUMNS = ("TIMESTAMP", "ContextTokens")
"""The columns that are read."""

_TOKENS: TypeAdapter[int] = TypeAdapter(Count)
_INTEGER = re.compile(r"-?[0-9]{1,99}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_azure(text: str, file: str, *, limit: int | None) -> tuple[Request, ...]:
    """The first ``limit`` requests of a trace in file order, called r0, r1, ..; raises InputError with the line.

    Arrivals are relative to the earliest of them, exact to the nanosecond.
    """
    rows = list(islice(_rows(text, file), limit))
    first = min((time for time, _ in rows), default=0)
    return tuple(Request(f"r{index}", tokens, 0, (time - first) / 10**9) for index, (time, tokens) in enumerate(rows))


def is_header(line: str) -> bool:
    """Whether a line names the columns that are read."""
    return set(COLUMNS) <= set(line.strip().split(","))


def _rows(text: str, file: str) -> Iterator[tuple[int, int]]:
    """(nanoseconds since 1970, tokens) of each line."""
    lines = numbered_lines(text, file)
    header = next(lines)[1].strip().split(",")
    time_at, tokens_at = map(header.index, COLUMNS)
    for number, line in lines:
        values = _values(line, number, file)
        if len(values) != len(header):
            raise InputError(
                f"has {len(values)} values for {len(header)} columns",
                file=file,
                place=f"line {number}",
                remedy=f"a value each for {','.join(header)}",
            )
        yield _nanoseconds(values[time_at], number, file), _tokens(values[tokens_at], number, file)


def _values(line: str, number: int, file: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", file=file, place=f"line {number}") from None


def _tokens(text: str, number: int, file: str) -> int:
    place = f"line {number}: {COLUMNS[1]}"
    if not _INTEGER.fullmatch(text):
        raise InputError(f"{shown(text)} is not an integer", file=file, place=place, remedy="at least 1")
    return validate(_TOKENS, int(text), file=file, prefix=place)


def _nanoseconds(text: str, number: int, file: str) -> int:
    try:
        found = _TIME.fullmatch(text)
        if not found:
            raise ValueError
        seconds, fraction, zone = found.groups()
        since = datetime.fromisoformat(seconds + (zone or "Z")) - _EPOCH
    except ValueError:
        raise InputError(
            f"{shown(text)} is not a time",
            file=file,
            place=f"line {number}: {COLUMNS[0]}",
            remedy="such as 2023-11-16 18:15:46.6805900",
        ) from None
    return since // timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))
