"""Sets of intervals on a profiler's clock: their length, and what two of them share.

Times are whole picoseconds. Profilers write microseconds since 1970 with up to six decimals, for which a 64-bit
float has not enough digits: it would round to a quarter of a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]

SECOND = 10**12
"""Picoseconds in a second."""
_MICROSECONDS = re.compile(r"(\d{1,20})(?:\.(\d{0,20}))?", re.ASCII)


def picoseconds(text: str) -> int | None:
    """A decimal number of microseconds, not negative and without an exponent, as picoseconds; None for other text."""
    match = _MICROSECONDS.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) * 10**6 + int(((match[2] or "") + "000000")[:6])


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same set as disjoint intervals in order; n log n."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        elif end > start:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The sum of the lengths of disjoint intervals, in seconds."""
    return sum(end - start for start, end in intervals) / SECOND


def overlap(left: list[Interval], right: list[Interval]) -> float:
    """The length, in seconds, of what two sets share; both as :func:`union` makes them."""
    shared = place = 0
    for start, end in left:
        while place < len(right) and right[place][1] <= start:
            place += 1
        at = place
        while at < len(right) and right[at][0] < end:
            shared += min(end, right[at][1]) - max(start, right[at][0])
            at += 1
    return shared / SECOND
