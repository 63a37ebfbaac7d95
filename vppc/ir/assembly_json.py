"""The JSON on lines of assembly: values of top-level keys, and the unknown keys of what a line describes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from vppc.errors import InputError

_TRANSFER = frozenset(("op", "chunk", "stage", "peer", "channel", "buffer"))
_OWN: Mapping[str, frozenset[str]] = {
    "model": frozenset(("name", "layers")),
    "stage": frozenset(("stage", "rank", "layers")),
    "channel": frozenset(("id", "src", "dst")),
    "request": frozenset(("id", "prompt_tokens", "cached_tokens", "arrival")),
    "part": frozenset(("request", "start", "tokens", "decode")),
    "rank": frozenset(("rank", "buffers", "instructions")),
    "FORWARD": frozenset(("op", "chunk", "stage", "in", "out")),
    "SEND": _TRANSFER,
    "RECV": _TRANSFER,
    "WAIT": frozenset(("op", "of")),
    "SAMPLE": frozenset(("op", "chunk", "buffer")),
    "schedule": frozenset(
        ("format", "version", "strategy", "model", "pp", "vp", "stages", "channels", "requests", "chunks", "programs")
    ),
}
"""The keys that what a line describes has in a schedule file, which say themselves in a form of their own."""


def check_keys(word: str, keys: Iterable[str]) -> None:
    """Raises InputError where the unknown keys on a line are not unknown: which of the two values would hold?"""
    for key in keys:
        if key in _OWN.get(word, ()):
            raise InputError(
                f"the key {shown(key)} of a {word} is said twice", remedy="say it in the form of the line, not in JSON"
            )


def json_value(line: str, start: int) -> Any:
    """The JSON value that a line ends with, from column ``start`` on. Raises InputError."""
    try:
        value, end = _DECODER.raw_decode(line, start)
    except json.JSONDecodeError as error:
        problem = f"no JSON value in {shown(line[start:])}: {error.msg} at column {error.pos + 1}"
        raise InputError(problem, remedy="the line ends in one JSON value, whole and on this line") from None
    except (RecursionError, ValueError):
        problem = "JSON nested too deeply, or with a number of thousands of digits"
        raise InputError(
            problem, remedy="keep to some hundred levels, and to numbers that a machine computes with"
        ) from None
    rest = line[end:].strip()
    if rest and not rest.startswith(";"):
        raise InputError(f"{shown(rest)} after the JSON value", remedy="only a comment may follow it")
    return value


def shown(text: str) -> str:
    """A text in a message: quoted, and short."""
    return json.dumps(text if len(text) <= 60 else f"{text[:57]}...", ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    raise InputError(f"{constant} is no JSON number", remedy="numbers in JSON are finite")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise InputError(f"the key {shown(key)} appears twice", remedy="every key of an object once")
        value[key] = item
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique)
