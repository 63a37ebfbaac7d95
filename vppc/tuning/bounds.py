"""A lower bound on the makespan over all ways to cut prompts, on given stages.

**What is bounded.** Any schedule in which every chunk has ``max_chunk`` tokens at most and holds a part of one
prompt or whole prompts, parts but whole prompts have ``min_chunk`` tokens at least, and stage s has the layers it is
given, on its rank. G, fixed and per_prefix_token are those of :mod:`vppc.tuning.prices`, added up over layers.

**Work.** Cut as one likes, the tokens and pairs of a prompt are the same: G(end) - G(start). There are no fewer than
K = ceil(tokens / max_chunk) chunks, and each adds ``fixed`` (and ``launch``). Prompts that fit into a chunk may share
one: for them K counts their tokens in sum. The i-th last part of a prompt starts at max(start, end - i max_chunk) or
later, so the prefixes of its parts add up to no less than the sum of these.

**Ends.** On rank r, what runs first at its first stage is the first part of some prompt, and it has come through all
stages before; what runs last at its last stage is the last part of some prompt, and all stages after are still to come.
A first part of n tokens starts at its prompt's start, so it costs least where n is least. A last part of n tokens
costs fixed + G(end) - G(end - n) + per_prefix_token (end - n) in a layer, which is concave in n (G is convex),
hence least at one of the two ends of its range. Rank r is busy for its work in between, so

    makespan >= least way before + work of r + least way after.                                       (1)

**Few chunks or many.** With N chunks of one prompt, N >= K, (1) holds with N for K. Each of them, [x, y) and the k-th
last, has to be small enough for the rest to fit beside it. Let s <= t be stages. Before the chunk leaves stage s, its
rank has run all chunks up to it on its stages up to s. Then the chunk goes through the stages between; and then the
rank of t has all chunks from it on to run on its stages from t on. With what comes before the one rank's first
operation and after the other's last, as in (1),

    makespan >= least way before + sum over q <= s on the rank of s of (N - k + 1 chunks, all tokens before y)
                + sum over s < q < t of this chunk + sum over q >= t on the rank of t of (k chunks, all from x on)
                + transfers + least way after                                                           (2)

less the operation itself where s = t, which is in both sums. For a makespan T, (2) grows with y and falls with x, so
that the last chunk starts at some x or later, the one before it at another, and so on: going back from the end with the
longest chunks that (2) allows for all s and t, no cutting starts earlier, chunk by chunk. Where even min_chunk tokens
are too many for one that ends there, it may end later. That is of no use, and T not to be had, if by some s and t more
layers grow with y than fall with x, of every kind: then so many tokens take the more, the later they come. Else the
chunk starts later, too.
Where the way back takes n > N chunks to the start of the prompt, T is not to be had with N chunks, nor with any number
below n, since (2) also grows with N.
With n <= N, (1) is looked at once more, with these starts as the prefixes. T is bounded by bisection.

For several prompts, and of hundreds of chunks, (1) with the fewest chunks is used. No order, and no number of buffers,
enters any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations_with_replacement, pairwise

from vppc.ir.partition import Ranges
from vppc.sums import plain_sum
from vppc.tuning.prices import Prices
from vppc.tuning.workload import Limits, Workload

_HALVINGS = 14
"""Steps of bisection, of a makespan and of a chunk's start."""

_HUNDREDS = 500
"""Chunks beyond which (2) takes minutes, while filling and draining are a small part of the makespan."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Layers of some stages by kind, and what a FORWARD of each of these stages takes beside, in sum."""

    mix: tuple[float, ...]
    fixed: float

    def __add__(self, other: _Work) -> _Work:
        return _Work(tuple(a + b for a, b in zip(self.mix, other.mix, strict=True)), self.fixed + other.fixed)

    def __neg__(self) -> _Work:
        return _Work(tuple(-a for a in self.mix), -self.fixed)

    def of(self, rows: Sequence[float]) -> float:
        """The seconds, from those of one layer of each kind, without what is fixed."""
        return plain_sum([many * row for many, row in zip(self.mix, rows, strict=True)])

    def upto(self, prices: Prices, x: float) -> float:
        return self.of([kind.upto(x) for kind in prices.kinds])

    def prefix(self, prices: Prices) -> float:
        return self.of([kind.per_prefix_token for kind in prices.kinds])


@dataclass(frozen=True, slots=True)
class _Way:
    """Two stages s <= t in (2): ``seconds`` before, after and between, and the work of the three sums."""

    seconds: float
    head: _Work
    between: _Work
    tail: _Work


def best_possible(prices: Prices, workload: Workload, ranks: Sequence[int], ranges: Ranges) -> float:
    """Seconds that no chunking of the workload takes less than, in any order, from the earliest arrival on."""
    problem = _Problem(prices, workload, ranks, ranges)
    low = problem.ranks_bound(problem.fewest)
    if len(problem.spans) > 1 or problem.fewest > _HUNDREDS or problem.allows(low):
        return low
    high = 2.0 * low
    while not problem.allows(high):
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if problem.allows(middle) else (middle, high)
    return low


def _fewest_chunks(prompts: Sequence[int], most: int) -> int:
    """The fewest chunks that hold prompts of so many tokens; those that fit into one may share."""
    together = sum(tokens for tokens in prompts if tokens <= most)
    return -(-together // most) + sum(-(-tokens // most) for tokens in prompts if tokens > most)


class _Problem:
    def __init__(self, prices: Prices, workload: Workload, ranks: Sequence[int], ranges: Ranges) -> None:
        self.prices, self.ranks = prices, ranks
        self.limits: Limits = workload.limits
        self.spans = [span for run in workload.runs for span in run.spans]
        mixes = prices.mixes([last - first for first, last in ranges])
        self.stages = [
            _Work(
                tuple(mix),
                prices.cost.launch + plain_sum(m * kind.fixed for m, kind in zip(mix, prices.kinds, strict=True)),
            )
            for mix in mixes
        ]
        self.hops = list(accumulate((float(a != b) for a, b in pairwise(ranks)), initial=0.0))
        self.hop = prices.cost.transfer_seconds(min(map(self._least, self.spans)))
        self.fewest = _fewest_chunks([end - start for start, end in self.spans], self.limits.most)

    def ranks_bound(self, chunks: int) -> float:
        """(1), the largest over all ranks."""
        prefixes = sum(
            max(start, end - (part + 1) * self.limits.most)
            for start, end in self.spans
            for part in range(-(-(end - start) // self.limits.most))
        )
        return self._ranks_bound(chunks, prefixes)

    def _ranks_bound(self, chunks: int, prefixes: float) -> float:
        """(1), of so many chunks whose prefixes add up to so many tokens."""
        bound = 0.0
        for rank, stages in self._rank_stages.items():
            work = self._sum(stages)
            tokens = plain_sum(work.upto(self.prices, end) - work.upto(self.prices, start) for start, end in self.spans)
            alone = work.fixed * chunks + tokens + work.prefix(self.prices) * prefixes
            bound = max(bound, self._before[rank] + alone + self._after[rank])
        return bound

    def allows(self, makespan: float) -> bool:
        """Whether (1) and (2) leave a number of chunks with which one prompt could take so long."""
        chunks = self.fewest
        while True:
            starts = self._earliest(makespan, chunks)
            if starts is None:
                return False
            if len(starts) <= chunks:
                return self._ranks_bound(chunks, plain_sum(starts)) <= makespan
            chunks = len(starts)

    def _earliest(self, makespan: float, chunks: int) -> list[float] | None:
        """From the last on, where each of so many chunks starts at the earliest; None where one cannot be so small.

        More than so many, up to twice, where they do not reach the start of the prompt.
        """
        [(start, end)] = self.spans
        least, most = self._least((start, end)), self.limits.most
        starts: list[float] = []
        behind = float(end)
        while behind > start and len(starts) <= 2 * chunks:
            low, high = max(float(start), behind - most), max(float(start), behind - least)
            over = self._over(makespan, chunks, starts, behind)
            if any(over(high)):
                if any(over(high, rising=True)):
                    return None
                low = high
            elif any(over(low)):
                for _ in range(_HALVINGS):
                    middle = (low + high) / 2
                    low, high = (middle, high) if any(over(middle)) else (low, middle)
            starts.append(low)
            behind = low
        return starts

    def _over(
        self, makespan: float, chunks: int, starts: Sequence[float], behind: float
    ) -> Callable[..., Iterator[bool]]:
        """By the start of a chunk that ends at ``behind``, before those at ``starts``: of every s and t, whether (2) is
        over the makespan; of those that are ``rising``, it is over for all that end later, too."""
        kinds, most = self.prices.kinds, self.limits.most
        [(start, end)] = self.spans
        # what grows faster with the prefix than with tokens is left out, so that (2) falls with x
        per_prefix = [kind.per_prefix_token if kind.slope(start) >= kind.per_prefix_token else 0.0 for kind in kinds]
        number = len(starts) + 1
        ahead = max(1, chunks - number + 1)
        upto = [kind.upto(behind) for kind in kinds]
        prefixes = plain_sum(max(start, behind - (part + 1) * most) for part in range(ahead))
        heads = [u - kind.upto(start) + kind.per_prefix_token * prefixes for u, kind in zip(upto, kinds, strict=True)]
        tails = [kind.upto(end) + p * plain_sum(starts) for kind, p in zip(kinds, per_prefix, strict=True)]
        rows = [
            (
                way.seconds
                + way.head.fixed * ahead
                + way.head.of(heads)
                + way.between.fixed
                + way.between.of(upto)
                + way.tail.fixed * number
                + way.tail.of(tails)
                - makespan,
                way.between + way.tail,
                number == 1 or all(h >= t for h, t in zip(way.head.mix, way.tail.mix, strict=True)),
            )
            for way in self._ways
        ]

        def over(x: float, *, rising: bool = False) -> Iterator[bool]:
            falls = [kind.upto(x) - p * x for kind, p in zip(kinds, per_prefix, strict=True)]
            return (more > work.of(falls) for more, work, rises in rows if rises or not rising)

        return over

    @cached_property
    def _ways(self) -> list[_Way]:
        """All pairs of first and last stages of ranks: those between them ask for no more."""
        ends = sorted({stage for stages in self._rank_stages.values() for stage in (stages[0], stages[-1])})
        ways = []
        for s, t in combinations_with_replacement(ends, 2):
            first, last = self._rank_stages[self.ranks[s]], self._rank_stages[self.ranks[t]]
            ways.append(
                _Way(
                    self._before[self.ranks[s]] + self._after[self.ranks[t]] + self.hop * (self.hops[t] - self.hops[s]),
                    self._sum([stage for stage in first if stage <= s]),
                    self._sum(range(s + 1, t)) if s < t else -self.stages[s],
                    self._sum([stage for stage in last if stage >= t]),
                )
            )
        return ways

    @cached_property
    def _rank_stages(self) -> dict[int, list[int]]:
        stages: dict[int, list[int]] = {}
        for stage, rank in enumerate(self.ranks):
            stages.setdefault(rank, []).append(stage)
        return stages

    @cached_property
    def _before(self) -> dict[int, float]:
        """The least way to every rank's first stage."""
        first = [min(self._first(stage, span) for span in self.spans) for stage in range(len(self.stages))]
        return {
            rank: plain_sum(first[: stages[0]]) + self.hop * self.hops[stages[0]]
            for rank, stages in self._rank_stages.items()
        }

    @cached_property
    def _after(self) -> dict[int, float]:
        """The least way from every rank's last stage."""
        last = [min(self._last(stage, span) for span in self.spans) for stage in range(len(self.stages))]
        return {
            rank: plain_sum(last[stages[-1] + 1 :]) + self.hop * (self.hops[-1] - self.hops[stages[-1]])
            for rank, stages in self._rank_stages.items()
        }

    def _sum(self, stages: Iterable[int]) -> _Work:
        nothing = _Work((0.0,) * len(self.prices.kinds), 0.0)
        return sum((self.stages[stage] for stage in stages), start=nothing)

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
