"""The certificate: what a proof found out, so that a reader need not search for it again, only check it.

Standard library only, for a runtime that accepts no schedule without its proof.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from vppc.errors import InputError
from vppc.json_text import dumps

STEP, LIFETIME = 2, 3
"""Integers in a step of the order, and in a lifetime."""
_ENTRIES = 4096
"""In one piece of written text."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A possible order of all instructions, and how long every buffer holds what.

    ``order`` are steps, two integers each, rank and upto: the rank runs the instructions before ``upto`` that it
    has not run yet. No WAIT in it comes before what it waits for, so nobody ever blocks, even by rendezvous.
    ``lifetimes`` are, for every rank, three integers each, buffer, first and last: instruction ``first`` writes the
    buffer, ``last`` frees it. There are about as many as instructions: they are flat arrays. ``extra`` keeps
    unknown JSON keys.
    """

    order: array[int]
    lifetimes: tuple[array[int], ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, document: Any, file: str = "", place: str = "certificate") -> Certificate:
        """The certificate in a parsed JSON value. Raises InputError when that has another shape."""
        if not isinstance(document, dict):
            raise InputError("is not an object", file=file, place=place, remedy='{"order": [..], "lifetimes": [..]}')
        try:
            order = flat(document.get("order"), STEP)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                "is not a list of steps", file=file, place=f"{place}.order", remedy="[rank, upto] each"
            ) from None
        try:
            lifetimes = tuple([flat(each, LIFETIME) for each in _list(document.get("lifetimes"))])
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                "is not a list of lifetimes for every rank",
                file=file,
                place=f"{place}.lifetimes",
                remedy="for each rank a list of [buffer, first, last]",
            ) from None
        extra = {key: value for key, value in document.items() if key not in ("order", "lifetimes")}
        return cls(order, lifetimes, extra)

    def text(self) -> Iterator[str]:
        """The JSON text of the certificate, on one line, in pieces."""
        yield '{"order": ['
        yield from _table_text(self.order, STEP)
        yield '], "lifetimes": ['
        for rank, each in enumerate(self.lifetimes):
            yield ", [" if rank else "["
            yield from _table_text(each, LIFETIME)
            yield "]"
        yield f"], {dumps(self.extra)[1:]}" if self.extra else "]}"


def entries(table: array[int], width: int) -> Iterator[tuple[int, ...]]:
    """The steps of an order, or the lifetimes of a rank, one by one."""
    each = iter(table)
    return zip(*[each] * width, strict=True)


def flat(value: Any, width: int) -> array[int]:
    """A list of lists of ``width`` integers as one array. Raises TypeError, ValueError or OverflowError."""
    if not ({list}.issuperset(map(type, _list(value))) and {width}.issuperset(map(len, value))):
        raise TypeError
    integers = list(chain.from_iterable(value))
    if not {int}.issuperset(map(type, integers)):  # the array would take true for 1
        raise TypeError
    return array("i", integers)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _table_text(table: array[int], width: int) -> Iterator[str]:
    rest = entries(table, width)
    for first in range(0, len(table) // width, _ENTRIES):
        yield (", " if first else "") + dumps(list(islice(rest, _ENTRIES)))[1:-1]
