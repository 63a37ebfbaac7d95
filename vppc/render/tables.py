"""Numbers with units and aligned tables, the same in every command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """A duration in the unit that suits it, four significant digits: ``36 s``, ``12.50 ms``, ``-3.100 us``.

    Whole seconds are exact, so that closed forms are recognisable; above 1000 s there are no decimals.
    """
    if not math.isfinite(value) or value == round(value):
        return f"{value + 0.0:.0f} s"  # + 0.0 so that -0.0 shows no sign
    scale, unit = next(((s, u) for s, u in _UNITS if abs(value) >= 0.99995 * s), _UNITS[-1])
    scaled = value / scale
    decimals = min(3, max(0, 3 - math.floor(math.log10(abs(scaled) * 1.00005))))
    return f"{scaled:.{decimals}f} {unit}"


def signed(value: float) -> str:
    """A difference of durations, with its sign: ``+1.500 s``, ``-20 ms``, ``0 s``."""
    return f"{'+' if value > 0 else ''}{seconds(value)}"


def percent(ratio: float) -> str:
    """A ratio as a percentage: one decimal, two when it is under 1% (``8.6%``, ``0.42%``, ``0.0%``)."""
    decimals = 2 if 0 < abs(ratio) < 0.00995 else 1
    return f"{100 * ratio:.{decimals}f}%"


def signed_percent(ratio: float) -> str:
    """A gain or a loss as a percentage with its sign: ``+8.6%``, ``-0.3%``, and ``0.0%`` for what is neither."""
    text = f"{100 * ratio:+.1f}%"
    return "0.0%" if text[1:] == "0.0%" else text


def count(number: int, noun: str = "") -> str:
    """A whole number with thousands separated, and what it counts: ``24,576``, ``1 chunk``, ``8 chunks``."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def printable(text: str) -> str:
    """Text from a file on one line of a terminal: characters that it would obey, or could not show, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Table(NamedTuple):
    """A table, to be shown as text or otherwise; ``align`` as :func:`table` has it."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str

    def text(self) -> str:
        return table(*self)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Rows of text under their headers, a rule between, columns two spaces apart, no trailing spaces or newline.

    ``align`` has one of ``<``, ``>`` and ``^`` a column; columns it does not reach are right-aligned. Without
    it the first column is left-aligned. Every row is as long as ``headers``.
    """
    body = [tuple(map(printable, row)) for row in rows]
    columns = list(zip(headers, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    sides = (align or "<").ljust(len(headers), ">")
    lines = [tuple(headers), tuple("-" * width for width in widths), *body]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in lines
    )
