"""User data against pydantic's types; what does not fit becomes one InputError with the place and what is allowed.

Files are described by typed dictionaries: they validate several times faster than models, and the validated
values stay plain JSON, so that keys this version does not know are carried along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from vppc.errors import InputError
from vppc.formats import looks_like, mistaken
from vppc.ir.instruction import LARGEST
from vppc.json_text import Location, path_text, shown

T = TypeVar("T")

OPEN = ConfigDict(strict=True, extra="allow")
"""The configuration of an object that may hold unknown keys; true and 1.0 are no integers."""
CLOSED = ConfigDict(strict=True, extra="forbid")
"""The configuration of an object whose unknown keys are mistakes."""
_ALIKE = 0.85
"""Keys so alike are one and its misspelling: prompt_token is prompt_tokens, but output_length not input_length."""

Index: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST, strict=True)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST, strict=True)]
Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""Bytes and other amounts that need not be whole."""
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""Seconds, also per token: bounded so that sums and products of them stay finite."""


def validate(
    adapter: TypeAdapter[T],
    value: Any,
    *,
    file: str = "",
    prefix: str = "",
    known: Callable[[Location], Iterable[str]] | None = None,
) -> T:
    """A copy of ``value``, integers made floats where floats belong. Raises InputError when it does not fit.

    ``prefix`` is put before the JSON path of what is wrong, its separator included (``cost.``, ``line 3: ``).
    ``known`` gives the keys that an object has a meaning for, by its location, to say what another key should be.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        location: Location = first["loc"]
        if first["type"] == "missing":
            *location, key = location
            keys = known(location) if known else ()
            problem, remedy = f"the key {shown(key)} is missing", _misspelt(str(key), first["input"], keys)
        elif first["type"] == "extra_forbidden":
            *location, key = location
            problem, remedy = _unknown_key(str(key), known(location) if known else ())
        else:
            problem, remedy = _value_error(first["type"], first["input"], first.get("ctx", {}), first["msg"])
        raise InputError(
            problem + (f" (and {len(others)} more)" if others else ""),
            file=file,
            place=(prefix + path_text(location)).rstrip(".: "),
            remedy=remedy,
        ) from None


def check_spelling(value: Any, known: Iterable[str], *, file: str = "", place: str = "") -> None:
    """Raises InputError for a key of an object that is all but a ``known`` one which the object does not have.

    For objects that may hold unknown keys: a misspelt one would say nothing.
    """
    if not isinstance(value, dict):
        return
    absent = [key for key in known if key not in value]
    for key in value:
        close = _closest(key, absent, _ALIKE) if key not in known else None
        if close is not None:
            raise InputError(f"the key {shown(key)} is unknown", file=file, place=place, remedy=_meant(close))


def check_format(document: Any, name: str, version: int, *, file: str = "", place: str = "") -> dict[str, Any]:
    """The document, when it is an object of this format, and not of a version that this reader does not know.

    Raises InputError that says which versions it does.
    """
    prefix = f"{place}." if place else ""
    if error := looks_like(document, name, file=file, place=place):
        raise error
    if not isinstance(document, dict):
        raise InputError(
            f"{shown(document)} is not a {name} document",
            file=file,
            place=place,
            remedy=f'an object with "format": "{name}" and "version": {version}',
        )
    for key, allowed in (("format", f'"{name}"'), ("version", str(version))):
        if key not in document:
            raise InputError(f'the key "{key}" is missing', file=file, place=place, remedy=f'"{key}": {allowed}')
    found = document["format"]
    if error := mistaken(found, name, file=file, place=place):
        raise error
    if found != name:
        raise InputError(
            f"{shown(found)} is not the format that is read here",
            file=file,
            place=f"{prefix}format",
            remedy=f'"{name}"',
        )
    found = document["version"]
    if type(found) is not int or found < 1:
        raise InputError(f"{shown(found)} is not a version", file=file, place=f"{prefix}version", remedy=str(version))
    if found > version:
        raise InputError(
            f"version {shown(found)} is newer than this program",
            file=file,
            place=f"{prefix}version",
            remedy=f"it reads {name} up to version {version}; a newer vppc reads more",
        )
    return document


def json_schema(adapter: TypeAdapter[Any], title: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what ``adapter`` describes.

    One thing it cannot say: that a float without a fraction, such as 3.0, is no integer.
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter.json_schema(), "title": title}


def _unknown_key(key: str, known: Iterable[str]) -> tuple[str, str]:
    close = _closest(key, known, 0.6)
    remedy = _meant(close) if close is not None else f"known keys: {', '.join(known)}"
    return f"the key {shown(key)} is unknown", remedy


def _misspelt(missing: str, value: Any, known: Iterable[str]) -> str:
    """What to do about a missing key: rename one that looks like it, or else one that is not ``known``."""
    close = _closest(missing, [key for key in value if isinstance(key, str)], _ALIKE)
    if close is not None:
        return f"there is {shown(close)}: {_meant(missing)}"
    others = [shown(key) for key in value if key not in known] if known else []
    return f"there is {', '.join(others)}; the keys are {', '.join(known)}" if others else ""


def _closest(word: str, words: Iterable[str], likeness: float) -> str | None:
    """The word most like ``word``, if one is enough so (1.0: the same)."""
    from difflib import get_close_matches  # which most runs do not need

    return next(iter(get_close_matches(word, words, n=1, cutoff=likeness)), None)


def _meant(key: str) -> str:
    return f'did you mean "{key}"?'


def _value_error(kind: str, value: Any, context: dict[str, Any], message: str) -> tuple[str, str]:
    """Problem and remedy for pydantic's error kinds that our types can meet."""
    match kind:
        case "int_type":
            return f"{shown(value)} is not an integer", "an integer, without quotes or a decimal point"
        case "float_type" if type(value) is int:
            return f"{shown(value)} is too large", "a number that fits 64 bits"
        case "float_type":
            return f"{shown(value)} is not a number", "a number, without quotes"
        case "finite_number":
            return f"{shown(value)} is not a finite number", "a finite number"
        case "bool_type":
            return f"{shown(value)} is not a truth value", "true or false"
        case "string_type":
            return f"{shown(value)} is not a string", "a string in quotes"
        case "list_type":
            return f"{shown(value)} is not a list", "a list in [ ]"
        case "dict_type":
            return f"{shown(value)} is not an object", "an object in { }"
        case "greater_than_equal":
            return f"{shown(value)} is too small", f"at least {context['ge']:.15g}"
        case "less_than_equal":
            return f"{shown(value)} is too large", f"at most {context['le']:.15g}"
        case "too_short":
            return f"a list of {context['actual_length']} is too short", f"at least {context['min_length']}"
        case "too_long":
            return f"a list of {context['actual_length']} is too long", f"at most {context['max_length']}"
        case "literal_error":
            return f"{shown(value)} is not allowed", str(context["expected"]).replace("'", '"')
    return f"{shown(value)}: {message}", ""
