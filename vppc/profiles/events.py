"""The events of a Chrome trace, one after another, from files of any size.

A trace is a JSON array of events, or an object with such an array under ``traceEvents``. Numbers with a fraction
come as their text: microseconds since 1970 do not fit a float.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from vppc.errors import InputError
from vppc.files import open_bytes, source_name
from vppc.json_text import shown

EVENTS = "traceEvents"
_READ = 1 << 20
_LARGEST = 1 << 23
"""An error so far before the end of what has been read is one of the text, not of having read too little."""
_CUT = 2
"""So near to the end of what has been read a number may go on behind it: 12, 12. and 12e+ are 12 so far."""
_MOST = 1 << 28
"""Characters of one value at most, so that a small packed file cannot ask for all memory."""
_BLANKS = re.compile(r"\s*")


class _NotFiniteError(ValueError):
    """NaN or an infinity; its text is the argument."""


def read_events(path: str, beside: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a trace (- is stdin; may be packed with gzip).

    What an object has beside its events is added to ``beside`` when the iteration reaches it. Raises InputError,
    also while events are read: for what is not JSON, ends too early, holds NaN, or is no trace.
    """
    with open_bytes(path) as stream:
        yield from _Reader(stream, source_name(path)).events({} if beside is None else beside)


class _Reader:
    """A window on the text: ``buffer`` from ``place`` on is what has not been understood yet."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self.stream, self.file = stream, file
        self.decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.decoder = json.JSONDecoder(parse_float=str, parse_constant=_not_finite)
        self.buffer, self.place = "", 0
        self.lines = 0  # line ends before the buffer
        self.ended = False

    def events(self, beside: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not self._peek():
            raise InputError("is empty", file=self.file, remedy="a Chrome trace")
        if self._symbol("[{") == "[":
            yield from self._array()
        else:
            yield from self._object(beside)
        if self._peek():
            raise self._error("more follows the end of the trace")

    def _object(self, beside: dict[str, Any]) -> Iterator[dict[str, Any]]:
        found = False
        if self._peek() == "}":
            self.place += 1
        else:
            while True:
                key = self._value()
                if not isinstance(key, str):
                    raise self._error(f"{shown(key)} is not a key")
                self._symbol(":")
                if key == EVENTS:
                    if found:
                        raise self._error(f'the key "{EVENTS}" appears twice')
                    found = True
                    self._symbol("[")
                    yield from self._array()
                else:
                    beside[key] = self._value()
                if self._symbol(",}") == "}":
                    break
        if not found:
            raise InputError(f"has no {EVENTS}", file=self.file, remedy="a Chrome trace, as a profiler exports it")

    def _array(self) -> Iterator[dict[str, Any]]:
        if self._peek() == "]":
            self.place += 1
            return
        while True:
            event = self._value()
            if not isinstance(event, dict):
                raise self._error(f"{shown(event)} is not an event", "an object in { }")
            yield event
            if self._symbol(",]") == "]":
                return

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.place)
            except _NotFiniteError as error:
                raise self._error(f"{error} is not a number", "a finite number") from None
            except json.JSONDecodeError as error:
                if self.ended or len(self.buffer) - error.pos > _LARGEST:
                    raise self._syntax(error) from None
            except RecursionError:
                raise self._error("values are nested too deeply") from None
            except ValueError:  # what json leaves to int(): more digits than it converts
                raise self._error("an integer has thousands of digits", "numbers that fit 64 bits") from None
            else:
                if self.ended or len(self.buffer) - end > _CUT:
                    self.place = end
                    return value
            self._read()

    def _symbol(self, allowed: str) -> str:
        """The next character, which is one of these."""
        found = self._peek()
        if not found:
            raise self._too_early()
        if found not in allowed:
            expected = " or ".join(map(shown, allowed))
            raise self._error(f"not JSON: {shown(found)} where {expected} is expected")
        self.place += 1
        return found

    def _peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            match = _BLANKS.match(self.buffer, self.place)
            self.place = match.end() if match else self.place
            if self.place < len(self.buffer):
                return self.buffer[self.place]
            if self.ended:
                return ""
            self._read()

    def _read(self) -> None:
        """Read on, a piece as long as what is not yet understood; what has been understood is dropped."""
        behind = len(self.buffer) - self.place
        if behind > _MOST:
            raise self._error(f"a value is longer than {_MOST >> 20} MiB")
        data = self.stream.read(max(_READ, behind))
        self.ended = not data
        self.lines += self.buffer.count("\n", 0, self.place)
        try:
            self.buffer = self.buffer[self.place :] + self.decode.decode(data, final=self.ended)
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte 0x{error.object[error.start]:02x} is not UTF-8",
                file=self.file,
                place=f"line {self.lines + 1} or later",
                remedy="a trace as the profiler wrote it",
            ) from None
        self.place = 0

    def _syntax(self, error: json.JSONDecodeError) -> InputError:
        if error.pos >= len(self.buffer.rstrip()) or error.msg.startswith("Unterminated string"):
            return self._too_early()
        self.place = error.pos
        return self._error(f"not JSON: {error.msg[0].lower()}{error.msg[1:]}")

    def _too_early(self) -> InputError:
        self.place = len(self.buffer)
        return self._error("ends too early", "the file may be cut; export it again")

    def _error(self, problem: str, remedy: str = "") -> InputError:
        line = self.lines + self.buffer.count("\n", 0, self.place) + 1
        return InputError(problem, file=self.file, place=f"line {line}", remedy=remedy)


def _not_finite(name: str) -> Any:
    raise _NotFiniteError(name)
