"""Charts in SVG: a frame with an axis of values, groups of bars that may be stacked, and lines over a few places."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vppc.render.svg import element, number, text, title
from vppc.render.timeline import round_step

_TICK = 34.0
"""Pixels between the values on an axis, at least."""
_WIDEST = 96.0
"""Pixels of a bar, at most: those of one group alone fill half of the frame, and few look like bars still."""
_LABEL = 5.6
"""Pixels of a letter of a label."""


class Series(NamedTuple):
    """How something looks in all charts of a picture: its hue, and which of how many of that hue it is."""

    name: str
    hue: int
    variant: int = 0
    variants: int = 1

    @property
    def opacity(self) -> float:
        """Of a filled shape: the last of a hue is solid, those before it are lighter."""
        return 1.0 - 0.7 * (self.variants - 1 - self.variant) / self.variants

    @property
    def dashes(self) -> str:
        """Of a line: that of the last of a hue has no gaps."""
        return ("", "6 3", "2 3", "8 3 2 3")[(self.variants - 1 - self.variant) % 4]

    def swatch(self) -> str:
        """The key of a legend, 18 by 12 pixels: how it is filled, and its line's mark."""
        return _box(0, 0, 18, 12, self) + _mark(9, 6, self, edge=1.4)


class Part(NamedTuple):
    """A part of a bar: its value, what it is filled with (a pattern's name, or none: the series' hue), and words."""

    value: float
    pattern: str
    words: str


class Bar(NamedTuple):
    """Parts from the bottom up; what stands above them, and below the axis."""

    series: Series
    parts: tuple[Part, ...]
    above: str = ""
    below: str = ""

    @property
    def value(self) -> float:
        """Where the bar ends."""
        return sum(part.value for part in self.parts)


class Point(NamedTuple):
    """A point of a line: its place from 0 on, its value, and words."""

    place: int
    value: float
    words: str
    best: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The area of a chart in pixels, and the values from its bottom to its top."""

    left: float
    top: float
    width: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Where a value lies."""
        return self.top + self.height * (self.high - value) / (self.high - self.low)

    def axis(self, heading: str) -> Iterator[str]:
        """The heading above the frame, and a line and a label at round values."""
        yield text(heading, self.left, self.top - 10, class_="ink", font_size=11)
        step = round_step((self.high - self.low) * _TICK / self.height)
        for index in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1):
            y = self.y(index * step)
            yield element("line", class_="hatch", x1=self.left, y1=y, x2=self.left + self.width, y2=y, stroke_width=0.6)
            yield text(number(index * step), self.left - 6, y + 3.5, class_="faint e", font_size=10)

    def groups(self, groups: Sequence[tuple[str, Sequence[Bar]]]) -> Iterator[str]:
        """Groups of bars side by side, each with its name below."""
        room = self.width / len(groups)
        for index, (name, bars) in enumerate(groups):
            wide = min(_WIDEST, 0.86 * room / max(len(bars), 1))
            left = self.left + room * (index + 0.5) - wide * len(bars) / 2
            for place, bar in enumerate(bars):
                yield from self._bar(bar, left + place * wide, wide)
            yield text(name, self.left + room * (index + 0.5), self.y(self.low) + 28, class_="ink m", font_size=11)
        yield self._base()

    def line(self, series: Series, points: Sequence[Point], places: int) -> Iterator[str]:
        """A line through the points; gaps where places have none. The best point has a ring."""
        xs = {point.place: self.left + self.width * (point.place + 0.5) / places for point in points}
        path = ""
        for before, point in zip((None, *points), points, strict=False):
            joined = before is not None and before.place == point.place - 1
            path += f"{'L' if joined else 'M'}{number(xs[point.place])} {number(self.y(point.value))}"
        dashes = {"stroke_dasharray": series.dashes} if series.dashes else {}
        yield element("path", class_=f"l{series.hue}", d=path, stroke_width=1.8, **dashes)
        for point in points:
            x, y = xs[point.place], self.y(point.value)
            ring = element("circle", class_=f"l{series.hue}", cx=x, cy=y, r=6.5, stroke_width=1.2) if point.best else ""
            yield element("g", title(point.words), ring, _mark(x, y, series), class_="g")

    def places(self, names: Sequence[str]) -> Iterator[str]:
        """The names of the places below the frame."""
        for index, name in enumerate(names):
            x = self.left + self.width * (index + 0.5) / len(names)
            yield text(name, x, self.y(self.low) + 15, class_="faint m", font_size=10)
        yield self._base()

    def _bar(self, bar: Bar, left: float, wide: float) -> Iterator[str]:
        low, end = self.low, self.y(self.low + bar.value)
        yield element("rect", class_="paper", x=left, y=end, width=wide - 2, height=self.y(low) - end)
        for part in bar.parts:
            top, bottom = self.y(low + part.value), self.y(low)
            shape = _box(left, top, wide - 2, bottom - top, bar.series, part.pattern)
            yield element("g", title(part.words), shape, class_="g")
            low += part.value
        middle = left + wide / 2 - 1
        for words, y, style in (
            (bar.above, self.y(bar.value) - 4, "ink m"),
            (bar.below, self.y(self.low) + 13, "faint m"),
        ):
            if words and len(words) * _LABEL <= wide + 3:
                yield text(words, middle, y, class_=style, font_size=9)

    def _base(self) -> str:
        y = self.y(self.low)
        return element("line", class_="line", x1=self.left, y1=y, x2=self.left + self.width, y2=y)


def _box(x: float, y: float, width: float, height: float, series: Series, pattern: str = "") -> str:
    """A rectangle in a series' colour, or with a pattern."""
    size = {"x": x, "y": y, "width": width, "height": max(height, 0.0)}
    if pattern:
        return element("rect", class_="hatch", fill=f"url(#{pattern})", **size)
    return element("rect", class_=f"s{series.hue}", fill_opacity=series.opacity, **size)


def _mark(x: float, y: float, series: Series, *, edge: float = 0.8) -> str:
    """The mark of a series' points: a disc, a square and so on for the variants of a hue."""
    shapes = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-3.5 -3.5h7v7h-7z", "M0 -5L5 4H-5z", "M0 -5L5 0L0 5L-5 0z")
    shape = shapes[(series.variants - 1 - series.variant) % len(shapes)]
    where = f"translate({x:.2f} {y:.2f})"
    return element("path", class_=f"s{series.hue} edge", d=shape, transform=where, stroke_width=edge)


def legend(
    series: Iterable[Series], patterns: Iterable[tuple[str, str]], left: float, right: float, y: float
) -> tuple[list[str], float]:
    """Names of the series, and of patterns by what they stand for, in lines from ``y`` on; and where they end."""
    keys = [(each.name, each.swatch()) for each in series]
    for name, pattern in patterns:
        keys.append((name, element("rect", class_="hatch", fill=f"url(#{pattern})", width=18, height=12)))
    pieces = []
    x = left
    for name, swatch in keys:
        wide = 24 + 6.2 * len(name)
        if x > left and x + wide > right:
            x, y = left, y + 18
        pieces.append(element("g", swatch, transform=f"translate({x:.2f} {y:.2f})"))
        pieces.append(text(name, x + 24, y + 10, class_="ink", font_size=10))
        x += wide + 18
    return pieces, y + 20
