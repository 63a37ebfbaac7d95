"""Strict JSON: text to values, with the line, or the JSON path, of what is wrong.

Stricter than :mod:`json`: a key may not appear twice in an object, NaN and infinity are not numbers, and a
number must fit a float. So that two readers of one file cannot understand it differently.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from vppc.errors import InputError

Location: TypeAlias = Sequence[str | int]
"""The keys and indices that lead to a value."""

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|-?Infinity|NaN', re.DOTALL
)
"""What :mod:`json` takes for a string, a number or a constant, whatever comes behind it."""


class _BadLiteralError(Exception):
    """A number or a constant that is not allowed; its text is the argument."""


def loads(text: str, file: str = "", *, line: int = 1, in_place_of_nan: Iterable[Any] = ()) -> Any:
    """The value of a JSON text; ``file`` and the number of its first ``line`` are for messages.

    ``in_place_of_nan`` are values for the NaNs of a text from which parts were cut, one after another.
    Raises InputError for everything else that is not strict JSON.
    """
    replacements = iter(in_place_of_nan)
    doubles: list[tuple[dict[str, Any], str]] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            doubles.append((value, next(key for key, count in counts.items() if count > 1)))
        return value

    def constant(name: str) -> Any:
        for replacement in replacements if name == "NaN" else ():
            return replacement
        raise _BadLiteralError(name)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_float=_finite, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _syntax_error(error, file, line) from None
    except RecursionError:
        raise InputError("values are nested too deeply", file=file, remedy="at most some hundred levels") from None
    except _BadLiteralError as error:
        raise _literal_error(text, error.args[0], file, line) from None
    except ValueError:  # what json leaves to int(): more digits than it converts
        raise _literal_error(text, None, file, line) from None
    if doubles:
        raise _double_key(value, doubles, file)
    return value


def dumps(value: Any) -> str:
    """The JSON text of a value, on one line, in ASCII. Raises InputError when it is nested too deeply."""
    try:
        return json.dumps(value, allow_nan=False)
    except RecursionError:
        raise InputError("values are nested too deeply to be written", remedy="at most some hundred levels") from None


def path_text(location: Location) -> str:
    """A location as people write it: ``programs[1].instructions[17].buffer``."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _IDENTIFIER.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text


def shown(value: Any) -> str:
    """A value in a message: as JSON, and short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of over 30 digits"
    try:
        text = json.dumps(value)
    except TypeError:
        text = repr(value)
    return _cut(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _BadLiteralError(text)
    return value


def _syntax_error(error: json.JSONDecodeError, file: str, line: int) -> InputError:
    written = error.doc.rstrip()
    if not written:
        return InputError("is empty", file=file, remedy="a JSON document")
    position = min(error.pos, len(written))  # and not behind line ends, on a line that is not there
    row, column = written.count("\n", 0, position) + line, position - written.rfind("\n", 0, position)
    place = f"line {row}, column {column}"
    if error.pos >= len(written) or error.msg.startswith("Unterminated string"):
        return InputError(
            "the JSON text ends too early", file=file, place=place, remedy="the file may be truncated; make it again"
        )
    if error.msg.startswith("Extra data") and column == 1 and row > line:
        return InputError(
            "not JSON: another value begins on this line",
            file=file,
            place=place,
            remedy="one document is read here, not one a line, as requests may be, which --requests takes",
        )
    problem = error.msg.removesuffix(" at")
    return InputError(f"not JSON: {problem[0].lower()}{problem[1:]}", file=file, place=place)


def _literal_error(text: str, literal: str | None, file: str, line: int) -> InputError:
    """The error of a literal at its first use, or (None) of the first integer with too many digits."""
    longest = sys.get_int_max_str_digits()

    def guilty(token: str) -> bool:
        digits = token.lstrip("-")
        return token == literal if literal else digits.isdigit() and len(digits) > longest

    start = next(token.start() for token in _TOKEN.finditer(text) if guilty(token[0]))
    row, column = text.count("\n", 0, start) + line, start - text.rfind("\n", 0, start)
    return InputError(
        f"{_cut(literal)} is not a finite number" if literal else f"an integer has more than {longest} digits",
        file=file,
        place=f"line {row}, column {column}",
        remedy="numbers that fit 64 bits",
    )


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _double_key(root: Any, doubles: list[tuple[dict[str, Any], str]], file: str) -> InputError:
    # An object with a double key may have been dropped for being the value of another one; not the outermost.
    keys = {id(value): key for value, key in doubles}
    location, value = next((where, value) for where, value in _objects(root) if id(value) in keys)
    return InputError(
        f"the key {json.dumps(keys[id(value)])} appears twice",
        file=file,
        place=path_text(location),
        remedy="every key of an object once",
    )


def _objects(root: Any) -> Iterator[tuple[Location, dict[str, Any]]]:
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), root)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            yield where, value
            waiting.extend(((*where, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend(((*where, index), value[index]) for index in reversed(range(len(value))))
