"""A lower bound on the makespan over all ways to cut prompts, on given stages.

**What is bounded.** Any schedule in which every chunk has ``max_chunk`` tokens at most and holds a part of one
prompt or whole prompts, parts but whole prompts have ``min_chunk`` tokens at least, and stage s has the layers it is
given, on its rank. G, fixed and per_prefix_token are those of :mod:`vppc.tuning.prices`, added up over layers.

**Work.** Cut as one likes, the tokens and pairs of a prompt are the same: G(end) - G(start). There are no fewer than
K = ceil(tokens / max_chunk) chunks, and each adds ``fixed`` (and ``launch``). The i-th last part of a prompt starts
at max(start, end - i max_chunk) or later, so the prefixes of its parts add up to no less than the sum of these.

**Ends.** On rank r, what runs first at its first stage is the first part of some prompt, and it has come through all
stages before; what runs last at its last stage is the last part of some prompt, and all stages after are still to come.
A first part of n tokens starts at its prompt's start, so it costs least where n is least. A last part of n tokens
costs fixed + G(end) - G(end - n) + per_prefix_token (end - n) in a layer, which is concave in n (G is convex),
hence least at one of the two ends of its range. Rank r is busy for its work in between, so

    makespan >= least way before + work of r + least way after.                                       (1)

**Few chunks or many.** With N chunks of one prompt, N >= K, (1) holds with N for K. And the longest of them has at
least ceil(tokens / N) = n tokens. Say it starts at x. Before it enters, stage 0 has run all tokens before x; then it
goes through all stages; and then the last stage has all tokens behind x + n to run, which it does after the chunk. So

    makespan >= G_0(x) - G_0(start) + sum over s of (fixed + G_s(x + n) - G_s(x) + per_prefix_token x)
                + transfers + G_last(end) - G_last(x + n)                                              (2)

for some x; a longer longest chunk only adds. Every term but the last grows with x and the last one shrinks, so over
an interval of x the right side is no less than with its lower end in the former and its upper end in the latter; the
least over a partition of all x is a bound. The makespan is at least the larger of (1) and (2) for its own N, hence at
least the least of these over all N; (1) grows with N, so N need not go further than where (1) alone is above that.

For several prompts (1) with the fewest chunks is used. No order, and no number of buffers, enters any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from vppc.ir.partition import Ranges
from vppc.tuning.prices import Prices
from vppc.tuning.workload import Limits, Workload

_PARTITION = 64


@dataclass(frozen=True, slots=True)
class _Stage:
    """The layers of a stage by kind, with what a FORWARD takes beside."""

    mix: tuple[float, ...]
    fixed: float

    def upto(self, prices: Prices, x: float) -> float:
        return sum(many * kind.upto(x) for many, kind in zip(self.mix, prices.kinds, strict=True))

    def prefix(self, prices: Prices) -> float:
        return sum(many * kind.per_prefix_token for many, kind in zip(self.mix, prices.kinds, strict=True))


def best_possible(prices: Prices, workload: Workload, ranks: Sequence[int], ranges: Ranges) -> float:
    """Seconds that no chunking of the workload takes less than, in any order, from the earliest arrival on."""
    problem = _Problem(prices, workload, ranks, ranges)
    spans = problem.spans
    fewest = -(-sum(end - start for start, end in spans) // workload.limits.most)
    if len(spans) > 1:
        return problem.ranks_bound(fewest)
    best = float("inf")
    [(start, end)] = spans
    chunks = fewest
    while chunks <= end - start:
        on_ranks = problem.ranks_bound(chunks)
        if on_ranks >= best:
            break
        best = min(best, max(on_ranks, problem.path_bound(chunks)))
        chunks += 1
    return best


class _Problem:
    def __init__(self, prices: Prices, workload: Workload, ranks: Sequence[int], ranges: Ranges) -> None:
        self.prices, self.ranks = prices, ranks
        self.limits: Limits = workload.limits
        self.spans = [span for run in workload.runs for span in run.spans]
        mixes = prices.mixes([last - first for first, last in ranges])
        self.stages = [
            _Stage(
                tuple(mix),
                prices.cost.launch + sum(m * kind.fixed for m, kind in zip(mix, prices.kinds, strict=True)),
            )
            for mix in mixes
        ]
        self.hops = [0.0] + [float(a != b) for a, b in pairwise(ranks)]

    def ranks_bound(self, chunks: int) -> float:
        """(1), the largest over all ranks."""
        stages = range(len(self.stages))
        first = [min(self._first(stage, span) for span in self.spans) for stage in stages]
        last = [min(self._last(stage, span) for span in self.spans) for stage in stages]
        hop = self.prices.cost.transfer_seconds(min(self._least(span) for span in self.spans))
        before = list(accumulate((first[s] for s in stages), initial=0.0))
        after = list(accumulate((last[s] for s in reversed(stages)), initial=0.0))[::-1]
        hops = list(accumulate(self.hops))
        bound = 0.0
        for rank in set(self.ranks):
            mine = [stage for stage in stages if self.ranks[stage] == rank]
            way = before[mine[0]] + after[mine[-1] + 1] + hop * (hops[mine[0]] + hops[-1] - hops[mine[-1]])
            bound = max(bound, way + sum(self._work(stage, chunks) for stage in mine))
        return bound

    def path_bound(self, chunks: int) -> float:
        """(2), the least over where the longest of so many chunks starts."""
        prices, stages = self.prices, self.stages
        [(start, end)] = self.spans
        longest = -(-(end - start) // chunks)
        hops = sum(self.hops) * prices.cost.transfer_seconds(longest)
        fixed = sum(stage.fixed for stage in stages) + hops
        first, last = stages[0], stages[-1]
        room = end - start - longest
        bound = float("inf")
        for part in range(_PARTITION):
            low = start + room * part / _PARTITION
            high = start + room * (part + 1) / _PARTITION
            through = sum(
                stage.upto(prices, low + longest) - stage.upto(prices, low) + stage.prefix(prices) * low
                for stage in stages
            )
            before = first.upto(prices, low) - first.upto(prices, start)
            after = last.upto(prices, end) - last.upto(prices, high + longest)
            bound = min(bound, before + fixed + through + after)
        return bound

    def _least(self, span: tuple[int, int]) -> int:
        """The fewest tokens of a part of this prompt."""
        return min(span[1] - span[0], self.limits.min_chunk)

    def _first(self, stage: int, span: tuple[int, int]) -> float:
        start, _ = span
        return self._part(stage, start, start + self._least(span))

    def _last(self, stage: int, span: tuple[int, int]) -> float:
        start, end = span
        return min(self._part(stage, end - n, end) for n in (self._least(span), min(self.limits.most, end - start)))

    def _part(self, stage: int, start: int, end: int) -> float:
        one = self.stages[stage]
        return one.fixed + one.upto(self.prices, end) - one.upto(self.prices, start) + one.prefix(self.prices) * start

    def _work(self, stage: int, chunks: int) -> float:
        one, most = self.stages[stage], self.limits.most
        total = one.fixed * chunks
        for start, end in self.spans:
            parts = -(-(end - start) // most)
            prefixes = sum(max(start, end - (part + 1) * most) for part in range(parts))
            total += one.upto(self.prices, end) - one.upto(self.prices, start) + one.prefix(self.prices) * prefixes
        return total
