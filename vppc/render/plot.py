"""Runs as pictures, in SVG: the paper's Logic View and its Timeline View, to scale.

Logic View: a lane a rank, chunks as blocks that are labelled by chunk and stage, transfers as arrows. Timeline View:
under each rank's lane one more for every channel that leaves it, with the transfers as blocks. In both, bubbles are
hatched and exposed transfers are dotted. Several runs lie one below the other on one scale. What does not fit into
one row goes on in the next, as music does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from vppc.render.lanes import Block, Hop, Lane, Run
from vppc.render.legend import legend
from vppc.render.page import picture
from vppc.render.palette import HUES, stylesheet
from vppc.render.panel import APART, CHANNEL, CROSSING, LANE, Panel, Row, describe, describe_gap, describe_hop, within
from vppc.render.svg import element, text, title
from vppc.render.tables import percent
from vppc.render.timeline import axis_ticks

LEFT, RIGHT, TOP = 70.0, 16.0, 14.0
HEADING, AXIS = 22.0, 34.0
BLOCK = 15.0
"""So many pixels a block has in the middle, where there is room for enough rows."""
TALLEST = 4000.0
_ARROW = 9.0
"""Arrows that lie closer, in pixels, are left out."""
_FINEST = 0.7
"""Blocks that are narrower, in pixels, are drawn together."""


@dataclass(frozen=True, slots=True)
class Style:
    """How to draw. ``rows`` 0: as many as are readable; ``theme`` is light, dark, or auto, the reader's choice."""

    view: str = "logic"
    width: int = 1200
    rows: int = 0
    theme: str = "auto"


def plot(runs: Sequence[Run], style: Style) -> str:
    """The picture as the text of an SVG file. A page's width is ``style.width`` pixels; its height follows."""
    return _Drawing([Panel(run, style.view) for run in runs], style).svg()


class _Drawing:
    def __init__(self, panels: list[Panel], style: Style) -> None:
        self.panels, self.style = panels, style
        self.columns = style.width - LEFT - RIGHT
        self.seconds = max(panel.seconds for panel in panels)
        self.rows = style.rows or self._fitting_rows()
        self.scale = self.columns * self.rows / self.seconds if self.seconds else 0.0  # pixels a second
        self.blurred = False  # whether arrows were left out
        span = self.seconds / self.rows
        last = self.rows - 1
        self.stretches = [
            Row(number, number * span, (number + 1) * span if number < last else math.inf)
            for number in range(self.rows)
        ]
        self.ticks = list(axis_ticks(self.seconds, max(1, int(self.rows * self.columns / 100))))

    def svg(self) -> str:
        """Rows from top to bottom, then the legend."""
        body: list[str] = []
        y = TOP
        for row in self.stretches:
            for panel in self.panels:
                if row.number == 0 or len(self.panels) > 1:
                    body += self._heading(panel, row, y)
                    y += HEADING
                body += self._panel(panel, row, y)
                y += panel.lane_tops()[-1] - (CROSSING if panel.view == "logic" else APART) + 8
            body += self._axis(row, y)
            y += AXIS + (12 if self.crowded else 0)
        drawn, y = legend([panel.run for panel in self.panels], self.style.view, self.blurred, self.style.width, y + 6)
        body += drawn
        names = ", ".join(panel.run.name for panel in self.panels)
        return picture(f"vppc plot: {names}", body, self.style.width, y, stylesheet(self.style.theme))

    def _fitting_rows(self) -> int:
        """Rows in which a block of middling width can be read, as far as the picture does not become too tall."""
        most = max((len(lane.blocks) for panel in self.panels for lane in panel.lanes), default=0)
        height = AXIS + sum(HEADING + panel.lane_tops()[-1] for panel in self.panels)
        return max(1, min(math.ceil(most * BLOCK / self.columns), int(TALLEST / height)))

    @cached_property
    def crowded(self) -> bool:
        """Whether the axis says which chunk has begun, since some blocks are too narrow to be labelled."""
        narrow = (
            (block.end - block.start) * self.scale < 9
            for panel in self.panels
            for lane in panel.lanes
            for block in lane.blocks
        )
        return len(self.panels) == 1 and any(narrow)

    def _x(self, row: Row, moment: float) -> float:
        return LEFT + (min(max(moment, row.start), row.end) - row.start) * self.scale

    def _heading(self, panel: Panel, row: Row, y: float) -> Iterator[str]:
        size = 13 if row.number == 0 else 11
        yield text(panel.run.name, LEFT, y + 12, class_="ink b", font_size=size)
        if row.number == 0:
            offset = LEFT + 12 + 0.72 * size * len(panel.run.name)
            yield text(panel.summary(), offset, y + 12, class_="faint", font_size=11)

    def _panel(self, panel: Panel, row: Row, y: float) -> Iterator[str]:
        tops = [y + top for top in panel.lane_tops()]
        for lane, top in zip(panel.lanes, tops, strict=False):
            yield text(f"rank {lane.rank}", LEFT - 8, top + 16, class_="ink e", font_size=11)
            if row.number == 0:
                yield text(f"{percent(panel.idle(lane))} idle", LEFT - 8, top + 29, class_="faint e", font_size=9)
            yield from self._gaps(panel, lane, row, top)
            yield from self._blocks(panel, lane, row, top)
        for channel in panel.run.schedule.channels:
            below = [each.id for each in panel.channels(channel.src)]
            if below:
                top = tops[channel.src] + LANE + 3 + CHANNEL * below.index(channel.id)
                yield text(f"to rank {channel.dst}", LEFT - 8, top + 8.5, class_="faint e", font_size=8)
        carried = list(within(panel.hops, row, panel.origin))
        densest = max(Counter(hop.channel.id for hop in carried).values(), default=0)
        arrows = densest * _ARROW <= self.columns
        self.blurred |= not arrows
        for hop in carried:
            if panel.view == "timeline":
                place = [each.id for each in panel.channels(hop.channel.src)].index(hop.channel.id)
                yield self._carried(panel, hop, row, tops[hop.channel.src] + LANE + 3 + CHANNEL * place)
            elif arrows:
                down = hop.channel.dst > hop.channel.src
                edges = (LANE, 0.0) if down else (0.0, LANE)
                ends = tops[hop.channel.src] + edges[0], tops[hop.channel.dst] + edges[1]
                yield self._arrow(panel, hop, row, *ends)

    def _gaps(self, panel: Panel, lane: Lane, row: Row, top: float) -> Iterator[str]:
        for gap in within(lane.gaps, row, panel.origin):
            left, right = self._x(row, gap.start - panel.origin), self._x(row, gap.end - panel.origin)
            if right - left < _FINEST / 2:
                continue
            why = title(describe_gap(panel, lane, gap))
            fill = "url(#exposed)" if gap.exposed else "url(#bubble)"
            yield element("rect", why, x=left, y=top, width=right - left, height=LANE, fill=fill)

    def _blocks(self, panel: Panel, lane: Lane, row: Row, top: float) -> Iterator[str]:
        drawn = LEFT
        for blocks in self._together(within(lane.blocks, row, panel.origin)):
            first, last = blocks[0], blocks[-1]
            left, right = self._x(row, first.start - panel.origin), self._x(row, last.end - panel.origin)
            if right - left < _FINEST and right - drawn < _FINEST:
                continue  # lies in a pixel that is drawn already
            drawn = right
            width = max(right - left, _FINEST)
            sweep = _sweep(panel, first)
            cut = 0.5 if width > 3 else 0.0  # blocks side by side stay apart
            shape = element(
                "rect",
                class_=f"r{_hue(panel, first.chunk)}{sweep}",
                x=left,
                y=top,
                width=width - cut,
                height=LANE,
                **({"rx": 2} if width > 8 else {}),
            )
            shares = self._shares(panel, first, left, width - cut, top) if len(blocks) == 1 else ()
            label = _label(first, left, width, top, sweep) if len(blocks) == 1 else ()
            yield element("g", title(describe(panel, lane, blocks)), shape, *shares, *label, class_="g")

    def _together(self, blocks: Iterable[Block]) -> Iterator[list[Block]]:
        """The blocks one by one, but those that lie in a pixel together."""
        group: list[Block] = []
        for block in blocks:
            if group and (block.end - group[0].start) * self.scale > 1.0:
                yield group
                group = []
            group.append(block)
        if group:
            yield group

    def _shares(self, panel: Panel, block: Block, left: float, width: float, top: float) -> Iterator[str]:
        """A strip with the hues of all requests of a chunk that has parts of several."""
        chunk = panel.run.schedule.chunks[block.chunk]
        if width < 6 or len({part.request for part in chunk.parts}) < 2:
            return
        for part in chunk.parts:
            share = width * part.tokens / chunk.tokens
            fill = f"r{part.request % len(HUES)}{1 - _sweep(panel, block)}"
            yield element("rect", class_=fill, x=left, y=top + LANE - 5, width=share, height=5)
            left += share

    def _carried(self, panel: Panel, hop: Hop, row: Row, top: float) -> str:
        left, right = self._x(row, hop.start - panel.origin), self._x(row, hop.end - panel.origin)
        fill, wide = f"c{_hue(panel, hop.chunk)}", max(right - left, 1.5)
        box = element("rect", class_=fill, x=left, y=top, width=wide, height=CHANNEL - 2)
        name = f"C{hop.chunk}"
        label = text(name, (left + right) / 2, top + 7.5, class_="paper m", font_size=8)
        fits = right - left > 5.5 * len(name) + 2
        return element("g", title(describe_hop(panel, hop)), box, *([label] if fits else []), class_="g")

    def _arrow(self, panel: Panel, hop: Hop, row: Row, y1: float, y2: float) -> str:
        """An arrow from lane to lane, as far as it lies in the row."""
        start, end = hop.start - panel.origin, hop.end - panel.origin
        span = end - start

        def y(moment: float) -> float:
            return y1 + (y2 - y1) * ((moment - start) / span)

        first, last = max(start, row.start), min(end, row.end)
        ends = (y(first), y(last)) if span > 0 else (y1, y2)
        head = {"marker_end": "url(#head)"} if last == end else {}
        return element(
            "line",
            title(describe_hop(panel, hop)),
            class_="arrow",
            x1=self._x(row, first),
            y1=ends[0],
            x2=self._x(row, last),
            y2=ends[1],
            **head,
        )

    def _axis(self, row: Row, y: float) -> Iterator[str]:
        last = LEFT + min(self.columns, (self.seconds - row.start) * self.scale)
        yield element("line", class_="line", x1=LEFT, y1=y, x2=last, y2=y)
        begun = self._begun if self.crowded else []
        for moment, label in self.ticks:
            if not row.holds(moment, moment):
                continue
            x = self._x(row, moment)
            yield element("line", class_="line", x1=x, y1=y, x2=x, y2=y + 5)
            inside = min(x, self.style.width - 4 - 3.2 * len(label))  # that of the last may have no room to its right
            yield text(label, inside, y + 17, class_="faint m", font_size=10)
            if begun:
                before = bisect_right(begun, (moment + 1e-9 * self.seconds, math.inf))
                newest = f"C{begun[before - 1][1]}" if before else "-"
                yield text(newest, x, y + 29, class_="faint m", font_size=9)
        if begun:
            yield text("newest chunk", LEFT - 14, y + 29, class_="faint e", font_size=7.5)

    @cached_property
    def _begun(self) -> list[tuple[float, int]]:
        """When every chunk begins, of a picture of one run."""
        [panel] = self.panels
        return sorted(
            (block.start - panel.origin, block.chunk)
            for lane in panel.lanes
            for block in lane.blocks
            if block.stage == 0
        )


def _hue(panel: Panel, chunk: int) -> int:
    """The number of a chunk's hue, that of the first request in it."""
    return panel.run.schedule.chunks[chunk].parts[0].request % len(HUES)


def _sweep(panel: Panel, block: Block) -> int:
    """0 where the block's sweep over the ranks is an even one, 1 where it is odd; a SAMPLE is as the last stage."""
    stage = block.stage if block.stage >= 0 else len(panel.run.schedule.stages) - 1
    return stage // panel.run.schedule.pp % 2


def _label(block: Block, left: float, width: float, top: float, sweep: int) -> Iterator[str]:
    """Chunk and stage, on two lines where they fit, else turned, else not at all."""
    chunk, stage = f"C{block.chunk}", f"s{block.stage}" if block.stage >= 0 else "token"
    middle = left + width / 2
    if width >= max(8.8 * len(chunk), 6.4 * len(stage)) + 3:
        yield _centred(chunk, middle, top + 16, sweep, 12, bold=True)
        yield _centred(stage, middle, top + 29, sweep, 10)
    elif width >= 9:
        words = f"{chunk} {stage}"
        size = min(8.5, 1.62 * LANE / len(words))
        x, y = middle + 0.36 * size, top + LANE / 2
        turned = f"rotate(-90 {x:.2f} {y:.2f})"
        yield text(words, x, y, class_=f"t{sweep} m", font_size=size, transform=turned)


def _centred(words: str, x: float, y: float, sweep: int, size: float, *, bold: bool = False) -> str:
    return text(words, x, y, class_=f"t{sweep} m{' b' if bold else ''}", font_size=size)
