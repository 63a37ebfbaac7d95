"""layout: the stages, the rank and the layers of each, and the channels between ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vppc.errors import InputError
from vppc.ir.partition import SPLITS, Ranges, check_ranges
from vppc.ir.placement import edges, stage_ranks
from vppc.ir.schedule import Channel, Schedule, Stage
from vppc.passes.balanced_split import BalancedSplit

MOST_OPERATIONS = 2**22
"""(chunk, stage) pairs of a schedule at most, some ten million instructions: all that follows takes their time."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Lays the model's layers on ``pp`` ranks with ``vp`` stages each.

    ``ranges`` are the half-open layer ranges of the stages, in stage order; without them ``split`` says how to
    share the layers out: the name "vllm" or "upstream", or by costs. None is what the engines do by themselves:
    vLLM's split for one stage a rank, upstream's for more. There is one channel for each direction in which
    consecutive stages pass between two ranks, so that the two never block each other; a fold needs none.

    Raises InputError for a placement without such ``vp``, an unknown split, a split beside ranges, ranges that
    are not the model's layers in order, more stages than layers, and too many operations.
    """

    name: ClassVar[str] = "layout"
    placement: str
    vp: int
    split: str | BalancedSplit | None = None
    ranges: Ranges | None = None

    def __call__(self, schedule: Schedule) -> Schedule:
        if schedule.pp < 1:
            raise InputError(f"{schedule.pp} pipeline ranks", remedy="give at least 1")
        ranks = stage_ranks(self.placement, schedule.pp, self.vp)
        operations = len(schedule.chunks) * len(ranks)
        if operations > MOST_OPERATIONS:
            raise InputError(
                f"{len(schedule.chunks):,} chunks on {len(ranks):,} stages are {operations:,} operations",
                remedy=f"at most {MOST_OPERATIONS:,}: use larger chunks or fewer stages",
            )
        ranges = self._ranges(ranks, schedule)
        stages = tuple(Stage(s, rank, layers) for s, (rank, layers) in enumerate(zip(ranks, ranges, strict=True)))
        channels = tuple(Channel(id, src, dst) for id, (src, dst) in enumerate(edges(ranks)))
        return replace(schedule, vp=self.vp, stages=stages, channels=channels)

    def _ranges(self, ranks: tuple[int, ...], schedule: Schedule) -> Ranges:
        layers = schedule.model.layers
        if self.ranges is not None:
            if self.split is not None:
                split = self.split if isinstance(self.split, str) else "by costs"
                raise InputError(f"both layer ranges and the layer split {split}", remedy="give one of the two")
            return check_ranges(self.ranges, ranks, layers)
        if isinstance(self.split, BalancedSplit):
            return check_ranges(self.split(schedule, ranks), ranks, layers)
        split = self.split or ("vllm" if self.vp == 1 else "upstream")
        if split not in SPLITS:
            raise InputError(
                f"unknown layer split {split!r}", remedy=f"choose one of {', '.join(SPLITS)}, or give layer ranges"
            )
        return SPLITS[split](layers, len(ranks))
