"""Sums of floats that are the same on every Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add


def plain_sum(numbers: Iterable[float]) -> float:
    """The sum of some floats, added one after another.

    Since Python 3.12 the builtin ``sum`` also adds what rounding lost. That is more exact, but then a cost file would
    have one tuned plan on 3.11 and another on what is newer: a search takes other turns from a price's last digit on.
    """
    return reduce(add, numbers, 0.0)
