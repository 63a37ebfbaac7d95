"""Numbers on the command line."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_COUNT = re.compile(r"([+-]?(?:\d{1,12}|\d{1,3}(?:,\d{3}){1,3}))([KM]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20}


class Number(click.FloatRange):
    """A number in a range; NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number, ``least`` or more: 131072, 131,072, or in units of 1024 and 1024 x 1024, such as 128K and 1M."""

    name = "count"

    def __init__(self, least: int = 1) -> None:
        super().__init__(least, 2**31 - 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given = _COUNT.fullmatch(str(value))
        if given is None:
            self.fail(f"{value!r} is not a whole number, such as 131072, 131,072, 128K (x 1024) or 1M", param, ctx)
        return super().convert(int(given[1].replace(",", "")) * _UNITS[given[2].upper()], param, ctx)


COUNT = Count()
"""Tokens, layers, chunks, ...: what a schedule has at least one of."""


class Moment(Number):
    """A time from 0 on, in seconds or with a unit: 1.5, 20ms, 300us."""

    name = "time"
    _UNITS = (("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("s", 1.0))

    def __init__(self) -> None:
        super().__init__(0.0, 1e12)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip()
        unit, size = next(((unit, size) for unit, size in self._UNITS if text.endswith(unit)), ("", 1.0))
        try:
            float(text.removesuffix(unit))
        except ValueError:
            self.fail(f"{value!r} is not a time, such as 1.5 (seconds), 1.5s, 20ms, 300us or 40ns", param, ctx)
        return super().convert(text.removesuffix(unit), param, ctx) * size


class Gibibytes(Number):
    """An amount of memory in GiB, or with a unit: 40, 40GiB, 80GB (of 10**9 bytes)."""

    name = "memory"
    _UNITS = (("gib", 1.0), ("gb", 1e9 / 2**30), ("mib", 2**-10), ("mb", 1e6 / 2**30))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip().lower()
        unit, size = next(((unit, size) for unit, size in self._UNITS if text.endswith(unit)), ("", 1.0))
        try:
            amount = float(text.removesuffix(unit))
        except ValueError:
            self.fail(
                f"{value!r} is not a memory, such as 40 (GiB), 40GiB, 80GB (of 10^9 bytes) or 65536MiB", param, ctx
            )
        return super().convert(amount * size, param, ctx)


MOMENT = Moment()
"""Seconds from the start of a run."""
