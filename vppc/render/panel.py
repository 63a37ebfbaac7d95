"""A run laid out for a picture: its lanes in pixels from top to bottom, its time in rows, and words for its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from vppc.analysis.breakdown import clock_start
from vppc.ir.schedule import Channel
from vppc.render.lanes import Block, Gap, Hop, Lane, Run, end_of, hops, lanes, reason
from vppc.render.tables import count, percent, seconds

LANE, CROSSING, APART, CHANNEL = 36.0, 24.0, 10.0, 11.0
"""Pixels of a lane, between lanes for arrows, between lanes without, and of a channel's lane."""

Item = TypeVar("Item", Block, Gap, Hop)


class Row(NamedTuple):
    """A row's stretch of time, in seconds from the clock's start."""

    number: int
    start: float
    end: float

    def holds(self, start: float, end: float) -> bool:
        """Whether something of a stretch of time, or a moment, lies in the row; a moment lies in one row."""
        return start < self.end and (end > self.start or start == end >= self.start)


@dataclass(frozen=True)
class Panel:
    """A run, and what of it is drawn."""

    run: Run
    view: str

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        return lanes(self.run)

    @cached_property
    def hops(self) -> list[Hop]:
        return list(hops(self.run))

    @cached_property
    def origin(self) -> float:
        return clock_start(self.run.schedule)

    @cached_property
    def seconds(self) -> float:
        return end_of(self.run) - self.origin

    def channels(self, rank: int) -> list[Channel]:
        """The channels that have a lane below the rank's."""
        if self.view == "logic":
            return []
        return [channel for channel in self.run.schedule.channels if channel.src == rank]

    def lane_tops(self) -> list[float]:
        """Where each rank's lane begins, from the first; then where the next would."""
        tops, gap = [0.0], CROSSING if self.view == "logic" else APART
        for lane in self.lanes:
            below = self.channels(lane.rank)
            tops.append(tops[-1] + LANE + gap + (3 + CHANNEL * len(below) if below else 0))
        return tops

    def summary(self) -> str:
        """Facts for the heading."""
        schedule = self.run.schedule
        idle = [self.idle(lane) for lane in self.lanes]
        low, high = percent(min(idle)), percent(max(idle))
        share = low if low == high else f"{low} to {high}"
        ranks, stages = count(schedule.pp, "rank"), count(schedule.vp, "stage")
        return (
            f"{ranks} x {stages}, {count(len(schedule.chunks), 'chunk')}, {seconds(self.seconds)}, ranks idle {share}"
        )

    def idle(self, lane: Lane) -> float:
        """The share of the run that is bubble on a rank."""
        idle = sum(gap.end - gap.start for gap in lane.gaps if not gap.exposed)
        return idle / self.seconds if self.seconds else 0.0


def within(items: Iterable[Item], row: Row, origin: float) -> Iterator[Item]:
    """Those of which something lies in the row."""
    for item in items:
        if row.holds(item.start - origin, item.end - origin):
            yield item


def describe(panel: Panel, lane: Lane, blocks: list[Block]) -> str:
    """What to say of a block, or of several that are drawn as one."""
    first, last = blocks[0], blocks[-1]
    when = _times(panel, first.start, last.end)
    if len(blocks) > 1:
        names = f"C{first.chunk} s{first.stage} to C{last.chunk} s{last.stage}"
        return f"rank {lane.rank}: {count(len(blocks), 'operation')}, {names}\n{when}"
    schedule = panel.run.schedule
    parts = (
        f"\n{schedule.requests[part.request].id}: {count(part.tokens, 'token')} behind {count(part.start)}"
        for part in schedule.chunks[first.chunk].parts
    )
    what = f"s{first.stage}" if first.stage >= 0 else "token"
    return f"C{first.chunk} {what} on rank {lane.rank}, instruction {first.instruction}\n{when}{''.join(parts)}"


def describe_hop(panel: Panel, hop: Hop) -> str:
    """What to say of a transfer."""
    tokens = count(panel.run.schedule.chunks[hop.chunk].tokens, "token")
    ends = f"rank {hop.channel.src} to rank {hop.channel.dst}"
    return f"C{hop.chunk} for s{hop.stage}, {ends}, {tokens}\n{_times(panel, hop.start, hop.end)}"


def describe_gap(panel: Panel, lane: Lane, gap: Gap) -> str:
    """What to say of a gap."""
    why = reason(panel.run.schedule, lane.rank, gap)
    return f"rank {lane.rank} {why}\n{_times(panel, gap.start, gap.end)}"


def _times(panel: Panel, start: float, end: float) -> str:
    return f"{seconds(start - panel.origin)} to {seconds(end - panel.origin)}: {seconds(end - start)}"
