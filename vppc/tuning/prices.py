"""What chunks cost, as a function of where a prompt is cut and of where the layers are, with slopes.

A layer's seconds on the tokens [s, e) of a prompt split into a function of the end and one of the start:

    seconds = fixed + G(e) - G(s) + per_prefix_token s
    G(x)    = per_token x + per_pair sum over i = 1..x of min(i, topk)

since the pairs of consecutive chunks add up. So a chunk is priced from its two boundaries, and its slope in either
is as cheap. The parts of a chunk add up, with one fixed. The search lets boundaries lie between tokens, and between
layers: a part of a layer costs that part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from vppc.costs.model import CostModel, LayerCost
from vppc.sums import plain_sum

Span = tuple[float, float]
"""The start and the end of a part, in tokens of its prompt."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The seconds of one layer of a kind, as above, collectives included; ``sparse`` pairs are of ``topk`` keys."""

    fixed: float
    per_token: float
    per_pair: float
    per_prefix_token: float
    sparse: float
    topk: int

    @classmethod
    def of(cls, kind: LayerCost) -> Growth:
        """The growth of a kind of layer."""
        sparse = kind.per_pair if kind.topk else 0.0
        return cls(
            kind.fixed + kind.collective_fixed,
            kind.per_token + kind.collective_per_token,
            kind.indexer_per_pair + kind.per_pair - sparse,
            kind.per_prefix_token,
            sparse,
            kind.topk,
        )

    def upto(self, x: float) -> float:
        """G(x)."""
        total = x * (self.per_token + self.per_pair * (x + 1) / 2)
        if self.sparse:
            dense = min(x, self.topk)
            total += self.sparse * (dense * (dense + 1) / 2 + (x - dense) * self.topk)
        return total

    def slope(self, x: float) -> float:
        """G'(x), seconds a token."""
        slope = self.per_token + self.per_pair * (x + 0.5)
        return slope + self.sparse * min(x + 0.5, self.topk) if self.sparse else slope


@dataclass(frozen=True, slots=True)
class Prices:
    """A cost model arranged for the search: its kinds of layers, the kind of every layer, and how many layers of
    each kind come before a layer."""

    cost: CostModel
    kinds: tuple[Growth, ...]
    kind_of: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, cost: CostModel) -> Prices:
        """The prices of a cost model."""
        growths = [(layer.count, Growth.of(layer)) for layer in cost.layers]
        kinds = tuple(dict.fromkeys(growth for _, growth in growths))
        kind_of = tuple(kinds.index(growth) for count, growth in growths for _ in range(count))
        before = [(0,) * len(kinds)]
        for number in kind_of:
            before.append(tuple(count + (kind == number) for kind, count in enumerate(before[-1])))
        return cls(cost, kinds, kind_of, tuple(before))

    @property
    def layers(self) -> int:
        return len(self.kind_of)

    def mixes(self, counts: Iterable[float]) -> list[list[float]]:
        """For every stage, how many layers of each kind it has, when stages in turn take so many layers."""
        if len(self.kinds) == 1:
            return [[count] for count in counts]
        cuts = [self._before(cut) for cut in accumulate(counts, initial=0.0)]
        return [[b - a for a, b in zip(first, last, strict=True)] for first, last in pairwise(cuts)]

    def _before(self, cut: float) -> list[float]:
        whole = min(int(cut + 1e-9), self.layers)
        counts: list[float] = list(self.before[whole])
        if whole < self.layers:
            counts[self.kind_of[whole]] += max(0.0, cut - whole)
        return counts

    def layer_seconds(self, chunks: Sequence[Sequence[Span]]) -> list[list[float]]:
        """``[kind][chunk]``: the seconds of one layer, for chunks of these parts."""
        rows = []
        for kind in self.kinds:
            upto, fixed, prefix = kind.upto, kind.fixed, kind.per_prefix_token
            rows.append([fixed + plain_sum([upto(e) - upto(s) + prefix * s for s, e in spans]) for spans in chunks])
        return rows
