"""The cost model: how many seconds an operation and a transfer take.

For a layer of a given kind and a chunk whose parts have n tokens behind a prefix of p:

    compute    = fixed + sum over parts of (per_token n + per_pair pairs(n, p, topk)
                                            + indexer_per_pair pairs(n, p) + per_prefix_token p)
    collective = collective_fixed + collective_per_token (all tokens of the chunk)

with pairs(n, p, topk) = sum over i = 1..n of min(p + i, topk). Plain data and arithmetic, no dependencies,
so that the runtime's timed runner uses the same numbers; :mod:`vppc.costs.document` reads the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vppc.ir.schedule import Chunk, Part, Request, Schedule, Stage
from vppc.sums import plain_sum


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds of one layer of a kind, ``count`` such layers in a row. ``topk`` 0: attention to all tokens."""

    count: int
    fixed: float = 0.0
    per_token: float = 0.0
    per_pair: float = 0.0
    per_prefix_token: float = 0.0
    indexer_per_pair: float = 0.0
    topk: int = 0
    collective_fixed: float = 0.0
    collective_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Linear:
    """``fixed`` + ``per_token`` n seconds: the embedding, the head, a transfer (fixed is its latency)."""

    fixed: float = 0.0
    per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of a model on a machine. ``launch`` is paid once a FORWARD; ``interference`` slows compute down
    while a transfer of its rank is under way: it then advances at 1 / (1 + interference) of its speed."""

    layers: tuple[LayerCost, ...]
    embed: Linear = field(default_factory=Linear)
    head: Linear = field(default_factory=Linear)
    transfer: Linear = field(default_factory=Linear)
    launch: float = 0.0
    interference: float = 0.0
    name: str = ""

    @property
    def layer_count(self) -> int:
        return sum(kind.count for kind in self.layers)

    def transfer_seconds(self, tokens: int) -> float:
        """Seconds that the activations of ``tokens`` tokens take on a channel."""
        return self.transfer.fixed + self.transfer.per_token * tokens


def pairs(n: int, p: int, topk: int = 0) -> int:
    """(query, key) pairs of n causal tokens behind a prefix of p, each query seeing at most ``topk`` keys."""
    if topk and p + n > topk:
        dense = max(0, topk - p)  # the queries that still see fewer than topk keys
        return dense * p + dense * (dense + 1) // 2 + (n - dense) * topk
    return n * p + n * (n + 1) // 2


@dataclass(frozen=True, slots=True)
class OpCosts:
    """Seconds of every operation and transfer of a schedule; lists are indexed by operation, or by chunk.

    ``compute`` includes launch, embedding and head; ``collective`` is the exposed communication inside a
    FORWARD; ``seconds`` is their sum. ``transfer[c]`` is one hop of chunk c.
    """

    seconds: list[float]
    collective: list[float]
    transfer: list[float]

    @classmethod
    def of(cls, schedule: Schedule, cost: CostModel) -> OpCosts:
        """Price every (chunk, stage) of a schedule that has chunks and stages."""
        return Prices(schedule.stages, cost).of(schedule.chunks, [r.prompt_tokens for r in schedule.requests])


class Prices:
    """What chunks cost on given stages, for chunks that come one after another."""

    def __init__(self, stages: Sequence[Stage], cost: CostModel) -> None:
        self.cost = cost
        stage_kinds = [_kinds_between(cost.layers, *stage.layers) for stage in stages]
        topks = sorted({kind.topk for kinds in stage_kinds for _, kind in kinds if kind.topk})
        self._stages = [_coefficients(kinds, topks, cost.launch) for kinds in stage_kinds]

    def of(self, chunks: Iterable[Chunk], ends: Sequence[int] | Mapping[int, int]) -> OpCosts:
        """Price the chunks; ``ends`` are the prompt tokens of their requests, by index."""
        cost, stages = self.cost, self._stages
        seconds: list[float] = []
        collective: list[float] = []
        transfer: list[float] = []
        for chunk in chunks:
            n = p = dense = sampled = 0
            for part in chunk.parts:
                tokens, start = part.tokens, part.start
                n += tokens
                p += start
                dense += tokens * start + tokens * (tokens + 1) // 2
                sampled += part.decode or start + tokens == ends[part.request]
            first = len(seconds)
            for fixed, per_token, per_prefix, per_pair, sparse, talk_fixed, talk_per_token in stages:
                talk = talk_fixed + talk_per_token * n
                work = fixed + per_token * n + per_prefix * p + per_pair * dense
                for topk, per_seen in sparse:
                    work += per_seen * sum([pairs(part.tokens, part.start, topk) for part in chunk.parts])
                collective.append(talk)
                seconds.append(work + talk)
            seconds[first] += cost.embed.fixed + cost.embed.per_token * n
            if sampled:
                seconds[-1] += cost.head.fixed + cost.head.per_token * sampled
            transfer.append(cost.transfer.fixed + cost.transfer.per_token * n)
        return OpCosts(seconds, collective, transfer)


def layer_seconds(cost: CostModel, first: int, last: int, parts: Iterable[Part]) -> float:
    """Compute and collective seconds of layers [first, last) on one chunk with these parts, without launch."""
    chunk = Chunk(tuple(parts))
    total = 0.0
    for count, kind in _kinds_between(cost.layers, first, last):
        work = kind.fixed + kind.collective_fixed + kind.collective_per_token * chunk.tokens
        for part in chunk.parts:
            n, p = part.tokens, part.start
            work += kind.per_token * n + kind.per_prefix_token * p
            work += kind.per_pair * pairs(n, p, kind.topk) + kind.indexer_per_pair * pairs(n, p)
        total += count * work
    return total


def ideal_seconds(cost: CostModel, requests: Iterable[Request], pp: int) -> float:
    """The work of the unchunked prompts without per-chunk costs (per_token, per_pair and indexer terms), over pp."""
    total = 0.0
    for request in requests:
        n, p = request.prompt_tokens - request.cached_tokens, request.cached_tokens
        for kind in cost.layers:
            total += kind.count * (
                kind.per_token * n + kind.per_pair * pairs(n, p, kind.topk) + kind.indexer_per_pair * pairs(n, p)
            )
    return total / pp


def _kinds_between(layers: tuple[LayerCost, ...], first: int, last: int) -> list[tuple[int, LayerCost]]:
    found = []
    start = 0
    for kind in layers:
        count = min(last, start + kind.count) - max(first, start)
        if count > 0:
            found.append((count, kind))
        start += kind.count
    return found


def _coefficients(
    kinds: list[tuple[int, LayerCost]], topks: list[int], launch: float
) -> tuple[float, float, float, float, list[tuple[int, float]], float, float]:
    """A stage's seconds a FORWARD, a token, a prefix token, a pair (of dense attention and of indexers), a pair of
    sparse attention by its topk, and its collectives' a FORWARD and a token."""
    return (
        launch + plain_sum(m * k.fixed for m, k in kinds),
        plain_sum(m * k.per_token for m, k in kinds),
        plain_sum(m * k.per_prefix_token for m, k in kinds),
        plain_sum(m * (k.indexer_per_pair + (0.0 if k.topk else k.per_pair)) for m, k in kinds),
        [(topk, plain_sum(m * k.per_pair for m, k in kinds if k.topk == topk)) for topk in topks],
        plain_sum(m * k.collective_fixed for m, k in kinds),
        plain_sum(m * k.collective_per_token for m, k in kinds),
    )
