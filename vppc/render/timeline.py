"""A timeline for the terminal: a lane a rank, time to scale, every operation a block with its chunk's number.

Blocks are filled by the direction of the sweep they belong to and, in colour, tinted by request. Operations that
are narrower than a column share it: it shows how busy it is, as the height of a bar. Bubbles show as dots.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from vppc.analysis.breakdown import both_ends_posted, clock_start, makespan
from vppc.analysis.times import Timing
from vppc.ir.instruction import FORWARD, WAIT
from vppc.ir.schedule import Schedule
from vppc.render.tables import count, percent


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters to draw with. ``edge`` begins a block in text, ``seam`` in colour; ``bars`` ascend."""

    even: str
    odd: str
    edge: str
    seam: str
    bubble: str
    exposed: str
    bars: str
    line: str
    tick: str


UNICODE = Glyphs("░", "▓", "│", "▏", "·", "~", "▁▂▃▄▅▆▇█", "─", "┬")
ASCII = Glyphs("-", "=", "|", "|", ".", "~", "_oO@", "-", "+")

_TINTS = ((24, 117), (94, 222), (22, 114), (54, 183), (23, 80), (88, 217))
"""For every request in turn: the colours, of the 256 that terminals have, of even sweeps (dark) and odd (light)."""
_LISTED = 8
"""So many requests are named."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_ON_DARK, _ON_LIGHT, _FAINT, _WARNING = 231, 16, 244, 208


class _Block(NamedTuple):
    """An operation on a rank; times are in columns."""

    start: float
    end: float
    chunk: int
    stage: int


class _Cell(NamedTuple):
    """What a column shows: a piece of a block (by number), or a glyph that is no block of its own."""

    block: int
    glyph: str


@dataclass(frozen=True, slots=True)
class _Lane:
    """A rank's run, column by column: the shares that are busy and exposed, and the block with the largest part.

    A block narrower than ``finest`` columns is not drawn by itself.
    """

    blocks: list[_Block]
    busy: list[float]
    exposed: list[float]
    owner: list[int]

    @property
    def finest(self) -> float:
        return 0.75 if 4 * len(self.blocks) <= len(self.busy) else 2.0

    @property
    def crowded(self) -> bool:
        """Whether some blocks are too narrow."""
        return any(block.end - block.start < self.finest for block in self.blocks)


def timeline(
    schedule: Schedule,
    timing: Timing,
    *,
    width: int = 100,
    color: bool = False,
    glyphs: Glyphs = UNICODE,
    window: tuple[float, float] | None = None,
) -> str:
    """Draw a simulated or measured run in lines of ``width`` characters (at least 40), no newline at the end.

    With ``color`` the lines hold escape sequences for a terminal of 256 colours. ``window`` is the part of the run to
    draw, in seconds from the clock's start; the bubbles are then those in it.
    """
    drawing = _Drawing(schedule, timing, max(width, 40), color, glyphs, window)
    return "\n".join(line.rstrip() for line in drawing.lines())


_SHORTEST = 1e-300
"""Seconds of a run that can be drawn to scale: a shorter one, whose scale would be no finite number, takes none."""


class _Drawing:
    def __init__(
        self,
        schedule: Schedule,
        timing: Timing,
        width: int,
        color: bool,
        glyphs: Glyphs,
        window: tuple[float, float] | None,
    ) -> None:
        self.schedule, self.timing, self.width, self.color, self.glyphs = schedule, timing, width, color, glyphs
        self.margin = len(f"rank {len(schedule.programs) - 1}  ")
        self.columns = width - self.margin - len("  100.0%")
        self.first, last = window or (0.0, makespan(schedule, timing))
        self.origin, self.seconds = clock_start(schedule) + self.first, last - self.first
        if self.seconds < _SHORTEST:
            self.seconds = 0.0
        self.scale = self.columns / self.seconds if self.seconds else 0.0  # columns a second
        self.posted = both_ends_posted(schedule, timing)

    def lines(self) -> Iterator[str]:
        """Axis, lanes, and what they mean."""
        ticks = list(axis_ticks(self.seconds, self.columns // 12, self.first))
        lanes = [self._lane(rank) for rank in range(len(self.schedule.programs))]
        yield self._labels("", ticks)
        yield self._axis(ticks)
        cells = [[self._cell(lane, column) for column in range(self.columns)] for lane in lanes]
        for rank, lane in enumerate(lanes):
            idle = self.columns - sum(lane.busy) - sum(lane.exposed) if self.seconds else 0.0
            bubble = percent(max(idle, 0.0) / self.columns)
            yield f"{f'rank {rank}':<{self.margin}}{self._drawn(lane, cells[rank])}  {bubble:>6}"
        crowded = any(lane.crowded for lane in lanes)
        if crowded:
            yield from self._progress(ticks, lanes)
        yield ""
        yield from self._legend(crowded, {cell.glyph for row in cells for cell in row})
        yield from self._requests()

    def _lane(self, rank: int) -> _Lane:
        lane = _Lane([], [0.0] * self.columns, [0.0] * self.columns, [-1] * self.columns)
        most = [0.0] * self.columns
        starts, ends, posted = self.timing.starts[rank], self.timing.ends[rank], self.posted[rank]
        for index, (op, chunk, stage, x, _, _) in enumerate(self.schedule.programs[rank].rows()):
            if op == FORWARD:
                start, end = self._column(starts[index]), self._column(ends[index])
                for column, part in self._overlaps(start, end):
                    lane.busy[column] += part
                    if part > most[column]:
                        most[column] = part
                        lane.owner[column] = len(lane.blocks)
                lane.blocks.append(_Block(start, end, chunk, stage))
            elif op == WAIT:
                start, end = self._column(max(starts[index], posted[x])), self._column(ends[index])
                for column, part in self._overlaps(start, end):
                    lane.exposed[column] += part
        return lane

    def _column(self, seconds: float) -> float:
        return (seconds - self.origin) * self.scale

    def _overlaps(self, start: float, end: float) -> Iterator[tuple[int, float]]:
        """The columns that a stretch of time touches, and how much of each it covers."""
        for column in range(max(0, int(start)), min(math.ceil(end), self.columns)):
            yield column, min(end, column + 1) - max(start, column)

    def _drawn(self, lane: _Lane, cells: Sequence[_Cell]) -> str:
        """The lane as text, one character a column."""
        return "".join(self._piece(lane, cell, sum(1 for _ in columns)) for cell, columns in groupby(cells))

    def _cell(self, lane: _Lane, column: int) -> _Cell:
        busy, exposed, owner = lane.busy[column], lane.exposed[column], lane.owner[column]
        if owner >= 0 and lane.blocks[owner].end - lane.blocks[owner].start < lane.finest:
            bars = self.glyphs.bars
            level = min(math.ceil(busy * len(bars) - 0.5), len(bars))
            if level:
                return _Cell(owner, bars[level - 1])
        elif busy >= 0.5:
            return _Cell(owner, "")
        return _Cell(-1, self.glyphs.exposed if exposed > 1 - busy - exposed else self.glyphs.bubble)

    def _piece(self, lane: _Lane, cell: _Cell, length: int) -> str:
        """``length`` columns that show the same."""
        if cell.block < 0:
            return self._styled(cell.glyph * length, _FAINT if cell.glyph == self.glyphs.bubble else _WARNING)
        block = lane.blocks[cell.block]
        dark, light = self._tint(block.chunk)
        odd = self._odd(block.stage)
        if cell.glyph:
            return self._styled(cell.glyph * length, dark)
        name, more = str(block.chunk), f".s{block.stage}"
        if self.color:
            text = _labelled(name, more, length, self.glyphs.seam, " ")
            return self._styled(text, *((_ON_LIGHT, light) if odd else (_ON_DARK, dark)))
        return _labelled(name, more, length, self.glyphs.edge, self.glyphs.odd if odd else self.glyphs.even)

    def _odd(self, stage: int) -> bool:
        return stage // self.schedule.pp % 2 == 1

    def _tint(self, chunk: int) -> tuple[int, int]:
        parts = self.schedule.chunks[chunk].parts
        return _TINTS[parts[0].request % len(_TINTS)]

    def _styled(self, text: str, foreground: int, background: int | None = None) -> str:
        if not self.color:
            return text
        behind = "" if background is None else f";48;5;{background}"
        return f"\x1b[38;5;{foreground}{behind}m{text}\x1b[0m"

    def _labels(self, name: str, labels: Iterable[tuple[float, str]]) -> str:
        """A line with labels at times; one that has no room behind the one before is left out."""
        line = f"{name:<{self.margin}}"
        for seconds, label in labels:
            at = self.margin + min(round(seconds * self.scale), self.columns - 1)
            if at == self.margin or at > len(line):
                line = line.ljust(at) + label
        return line

    def _axis(self, ticks: Iterable[tuple[float, str]]) -> str:
        line = [self.glyphs.line] * self.columns
        for seconds, _ in ticks:
            line[min(round(seconds * self.scale), self.columns - 1)] = self.glyphs.tick
        return f"{'':<{self.margin}}{''.join(line)}  bubble"

    def _progress(self, ticks: Sequence[tuple[float, str]], lanes: Sequence[_Lane]) -> Iterator[str]:
        """At every tick the newest chunk that has entered the first stage, and that has left the last."""
        last = len(self.schedule.stages) - 1
        entered = sorted((block.start, block.chunk) for lane in lanes for block in lane.blocks if not block.stage)
        left = sorted((block.end, block.chunk) for lane in lanes for block in lane.blocks if block.stage == last)
        for name, events in (("in", entered), ("out", left)):
            before = [bisect_right(events, seconds * self.scale + 1e-9, key=itemgetter(0)) for seconds, _ in ticks]
            labels = [str(events[count - 1][1]) if count else "-" for count in before]
            yield self._labels(name, zip((seconds for seconds, _ in ticks), labels, strict=True))

    def _legend(self, crowded: bool, shown: Set[str]) -> Iterator[str]:
        """What blocks mean, and the glyphs ``shown`` beside them."""
        pp, glyphs, stages = self.schedule.pp, self.glyphs, len(self.schedule.stages)
        sweeps = [f"s{first}-s{first + pp - 1}" if pp > 1 else f"s{first}" for first in range(0, stages, pp)]
        fills = zip((glyphs.even, glyphs.odd), _TINTS[0], (sweeps[::2], sweeps[1::2]), strict=True)
        keys = ["blocks: chunk.stage"]
        keys += [f"{self._swatch(fill, tint)} {', '.join(names)}" for fill, tint, names in fills if names]
        waits = ((glyphs.bubble, "bubble"), (glyphs.exposed, "exposed transfer"))
        keys += [f"{glyph} {name}" for glyph, name in waits if glyph in shown]
        if crowded:
            keys += [
                f"{glyphs.bars[0]} to {glyphs.bars[-1]} how busy",
                "in: newest chunk begun",
                "out: newest chunk done",
            ]
        yield from self._folded(keys, "   ")

    def _requests(self) -> Iterator[str]:
        """Which chunks belong to which request, when there are several; many requests are cut."""
        spans: dict[int, tuple[int, int]] = {}
        for index, chunk in enumerate(self.schedule.chunks):
            for part in chunk.parts:
                spans[part.request] = (spans.get(part.request, (index, index))[0], index)
        if len(spans) < 2:
            return
        names = ["requests in chunks:"]
        for request, (first, last) in list(spans.items())[:_LISTED]:
            name = f"{_printable(self.schedule.requests[request].id)} {first}{f'-{last}' if last > first else ''}"
            names.append(f"{self._swatch('', _TINTS[request % len(_TINTS)][0])} {name}" if self.color else name)
        if len(spans) > _LISTED:
            names.append(f"and {count(len(spans) - _LISTED)} more")
        yield from self._folded(names, "  ")

    def _folded(self, texts: Iterable[str], gap: str) -> Iterator[str]:
        """The texts on as few lines as they fit."""
        line = ""
        for text in texts:
            longer = f"{line}{gap}{text}" if line else text
            if line and len(_ESCAPE.sub("", longer)) > self.width:
                yield line
                longer = text
            line = longer
        yield line

    def _swatch(self, fill: str, tint: int) -> str:
        return self._styled(" ", tint, tint) if self.color else fill


def _printable(name: str) -> str:
    """An id from a file, without what could upset a terminal or a line."""
    name = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= 24 else f"{name[:21]}..."


def _labelled(name: str, more: str, length: int, edge: str, fill: str) -> str:
    """A block of ``length`` characters: its edge, as much of its name as fits, and the fill."""
    if length == 1:
        return name if len(name) == 1 else fill
    text = next((text for text in (name + more + fill, name, "") if len(text) < length), "")
    return f"{edge}{text}".ljust(length, fill)


def axis_ticks(seconds: float, most: int, first: float = 0.0) -> Iterator[tuple[float, str]]:
    """About ``most`` times at most from ``first`` to ``seconds`` later, a round number apart, with labels in one unit.

    The unit is that in which the last label is 1 or more; times are from ``first`` on, labels from 0.
    """
    if not seconds:
        yield 0.0, f"{first:g} s"
        return
    step = round_step(seconds / max(most, 1))
    begin, end = math.ceil(first / step - 1e-6), math.floor((first + seconds) / step + 1e-6)
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if end * step >= s), ("ns", 1e-9))
    decimals = max(0, -math.floor(math.log10(step / size) + 1e-9))
    for number in range(begin, end + 1):
        yield max(0.0, number * step - first), f"{round(number * step / size, decimals):.12g} {unit}"


def round_step(least: float) -> float:
    """The least round number (1, 2 or 5 times a power of ten) that is not below ``least``."""
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= least * 0.999)
