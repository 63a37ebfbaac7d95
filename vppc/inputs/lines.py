"""The lines of a text file, numbered, for formats with one record a line."""

from __future__ import annotations

from collections.abc import Iterator

from vppc.errors import InputError


def numbered_lines(text: str, file: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of every line up to the last that is not blank; CRLF or LF.

    Raises InputError at a blank line before it: a record may be missing there.
    """
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        if not line.strip():
            raise InputError("is blank", file=file, place=f"line {number}", remedy="one request a line")
        yield number, line.removesuffix("\r")
