"""CSV tables with a header, row by row: columns by name, numbers checked, errors with their line.

A table is read as a stream, for profilers write millions of rows. Space and tabs around a value, which some of
them put behind numbers, are no part of it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from vppc.errors import InputError
from vppc.files import read_lines, source_name
from vppc.formats import check_not_ours
from vppc.json_text import shown

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a table in ``file``, in order, and how many values come before the one of each."""

    file: str
    columns: tuple[str, ...]
    places: dict[str, int]

    def require(self, *names: str) -> None:
        """Raises InputError when one of these columns is missing."""
        missing = [name for name in names if name not in self.places]
        if missing:
            raise InputError(
                f"has no column {', '.join(map(shown, missing))}",
                file=self.file,
                place="line 1",
                remedy=f"columns {', '.join(names)}; there are {', '.join(self.columns)}",
            )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. A row that has not as many values as the header names columns is not ``whole``."""

    header: Header
    line: int
    values: Sequence[str]

    @property
    def whole(self) -> bool:
        return len(self.values) == len(self.header.columns)

    def check_whole(self) -> None:
        """Raises InputError when values are missing, or too many."""
        if not self.whole:
            raise self.error(
                f"has {len(self.values)} values for {len(self.header.columns)} columns",
                remedy="the line, or the file, may have been cut; export it again",
            )

    def has(self, column: str) -> bool:
        """Whether the table has the column."""
        return column in self.header.places

    def text(self, column: str) -> str:
        """The value in a column that the table has."""
        return self.values[self.header.places[column]].strip()

    def number(self, column: str) -> float:
        """The value as a finite number, not negative. Raises InputError when it is not."""
        text = self.text(column)
        if not _NUMBER.fullmatch(text):
            raise self.error(f"{shown(text)} is not a number", column, "a finite number")
        value = float(text)
        if value < 0.0:
            raise self.error(f"{shown(text)} is negative", column, "at least 0")
        if value > 1e300:
            raise self.error(f"{shown(text)} is too large", column, "a number that fits 64 bits")
        return value

    def positive(self, column: str) -> float:
        """The value as a finite number above 0. Raises InputError when it is not."""
        value = self.number(column)
        if value == 0.0:
            raise self.error("0 is too small", column, "more than 0")
        return value

    def integer(self, column: str, least: int = 0, most: int = 2**53) -> int:
        """The value as an integer from ``least`` to ``most`` (``4096`` and ``4096.0`` alike). Raises InputError."""
        value = self.number(column)
        if value != int(value) or value > 2**53:
            raise self.error(f"{shown(self.text(column))} is not a whole number", column, "an integer")
        if value < least:
            raise self.error(f"{shown(self.text(column))} is too small", column, f"at least {least}")
        if value > most:
            raise self.error(f"{shown(self.text(column))} is too large", column, f"at most {most}")
        return int(value)

    def error(self, problem: str, column: str = "", remedy: str = "") -> InputError:
        """The error of this line, or of its value in a column."""
        place = f"line {self.line}, {column}" if column else f"line {self.line}"
        return InputError(problem, file=self.header.file, place=place, remedy=remedy)


def read_table(path: str) -> tuple[Header, Iterator[Row]]:
    """The header of a CSV file (- is stdin) and its rows; raises InputError, also while rows are read.

    Blank lines at the end are ignored; in between, a row may be missing.
    """
    file = source_name(path)
    lines = _values(path, file)
    first = next(lines, None)
    if first is None:
        raise InputError("is empty", file=file, remedy="a header line and a line for each row")
    columns = tuple(name.strip() for name in first[1])
    places = {name: place for place, name in reversed(list(enumerate(columns)))}
    double = next((name for place, name in enumerate(columns) if places[name] != place), None)
    if double is not None:
        raise InputError(
            f"the column {shown(double)} appears twice", file=file, place="line 1", remedy="every column once"
        )
    header = Header(file, columns, places)
    return header, (Row(header, line, values) for line, values in lines)


def _values(path: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each line (the first, for values that have line breaks) and its values."""
    text = read_lines(path)
    head = list(islice(text, 2))
    check_not_ours("".join(head), "a table", file=file)
    reader = csv.reader(chain(head, text), strict=True)
    blank = 0
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"not CSV: {error}", file=file, place=f"line {line}", remedy="the file may have been cut"
            ) from None
        if values is None:
            return
        if not values or values == [""]:
            blank = blank or line
            continue
        if blank:
            raise InputError("is blank", file=file, place=f"line {blank}", remedy="a row a line")
        yield line, values
