"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number in a range; NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number, at least 1, also in units of 1024 and 1024 x 1024: 128K, 1M."""

    name = "count"

    def __init__(self) -> None:
        super().__init__(1, 2**31 - 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text: Any = str(value)
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:].upper(), 1)
        count = super().convert(text[:-1] if unit > 1 else text, param, ctx)
        return super().convert(count * unit, param, ctx)


COUNT = Count()
"""Tokens, layers, chunks, ...: what a schedule has at least one of."""
