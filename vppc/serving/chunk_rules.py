"""The chunk rules of the strategies, for requests that keep coming.

Fixed chunks; vLLM-Ascend's dynamic ones, planned from its start-up profile alone or calibrated while it serves
(:mod:`vppc.passes.online_chunking`); and SGLang's. A rule that learns keeps what it has learnt, so one that has
served before is a warm one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vppc.costs.model import CostModel
from vppc.passes.chunking import FixedChunks
from vppc.passes.dynamic_chunking import DcppChunks, DcppRule, SglangRule
from vppc.passes.layout import Layout
from vppc.passes.online_chunking import Batch, Behind, Calibration, OnlineChunks
from vppc.passes.strategies import Options, chunking, layout_of
from vppc.serving.batching import ChunkRule, Fixed


@dataclass(frozen=True, slots=True)
class Planned:
    """vLLM-Ascend's rule with its start-up profile; a chunk's parts share the target time."""

    rule: DcppRule

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        """See :class:`vppc.serving.batching.ChunkRule`."""
        return self.rule.next_chunk(prefix, left, sum(self.rule.model.growth(*part) for part in taken))

    def record(self, batch: Batch) -> None:
        """A plan does not learn."""


@dataclass(frozen=True, slots=True)
class Learning:
    """vLLM-Ascend's rule as it calibrates itself from its own times, or from times that include waiting."""

    calibration: Calibration
    measured: str

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        """See :class:`vppc.serving.batching.ChunkRule`."""
        return self.calibration.next_chunk(prefix, left, taken)

    def record(self, batch: Batch) -> None:
        """See :class:`vppc.serving.batching.ChunkRule`."""
        self.calibration.record(batch.sample(self.measured))


@dataclass(frozen=True, slots=True)
class PlannedBySglang:
    """SGLang's rule: a chunk is as large as its first part would be alone, and others fill what it leaves."""

    rule: SglangRule

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        """See :class:`vppc.serving.batching.ChunkRule`."""
        if not taken:
            return self.rule.next_chunk(prefix, left)
        size = self.rule.next_chunk(taken[0][1], self.rule.budget)
        return min(left, max(0, size - sum(tokens for tokens, _ in taken)))

    def record(self, batch: Batch) -> None:
        """A plan does not learn."""


def chunk_rule(options: Options, cost: CostModel) -> ChunkRule:
    """The rule of a strategy, which has served nothing yet. Raises InputError for options that do not go together."""
    placement, vp, _ = layout_of(options)
    match chunking(options, cost, Layout(placement, vp, options.split, options.ranges)):
        case FixedChunks() as fixed:
            return Fixed(fixed.chunk_size)
        case DcppChunks() as startup:
            return Planned(startup.rule(startup.profile(options.pp)))
        case OnlineChunks(startup=startup, measured=measured):
            return Learning(Calibration(startup.rule(startup.profile(options.pp))), measured)
        case sglang:
            return PlannedBySglang(sglang.rule(sglang.profile(options.pp)))
