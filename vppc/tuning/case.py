"""One placement under search: what the numbers of a point come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from vppc.ir.placement import stage_ranks
from vppc.ir.schedule import Order
from vppc.sums import plain_sum
from vppc.tuning.dispatch import dispatch
from vppc.tuning.prices import Prices
from vppc.tuning.room import Room
from vppc.tuning.wiring import Goal, Wiring
from vppc.tuning.workload import Cutting


@dataclass(frozen=True, slots=True)
class Point:
    """Chunk sizes (tokens, runs in order), layers of every stage, and an order; what they come to, in seconds.

    While a search moves them, sizes and counts may be fractions.
    """

    sizes: tuple[float, ...]
    counts: tuple[float, ...]
    order: Order
    value: float


@dataclass(frozen=True, slots=True)
class Quote:
    """The prices at a point: seconds of every operation and of every chunk's hop, and what they were made from, one
    layer's seconds by kind and chunk, and the layers of every stage by kind."""

    seconds: list[float]
    transfers: list[float]
    layers: list[list[float]]
    mixes: list[list[float]]


@dataclass(frozen=True, slots=True)
class Admit:
    """How orders are made: chunks in flight, and whether earlier prompts go first or earlier stages."""

    in_flight: int
    prompts_first: bool = False


@dataclass(frozen=True)
class Case:
    """A workload cut into a number of chunks, on a placement of ``pp`` ranks; ``share`` of the goal is mean TTFT.

    ``max_in_flight`` bounds the chunks entered and not finished, and ``room`` the layers, if that is asked for.
    """

    prices: Prices
    cutting: Cutting
    placement: str
    pp: int
    vp: int
    share: float = 0.0
    max_in_flight: int | None = None
    room: Room | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return stage_ranks(self.placement, self.pp, self.vp)

    @cached_property
    def rank_stages(self) -> tuple[tuple[int, ...], ...]:
        """The stages of every rank."""
        stages = range(len(self.ranks))
        return tuple(tuple(stage for stage in stages if self.ranks[stage] == rank) for rank in range(self.pp))

    @cached_property
    def goal(self) -> Goal:
        """What an order is to make small."""
        stages = len(self.ranks)
        tokens = tuple(((chunk + 1) * stages - 1, many) for chunk, many in enumerate(self.cutting.sampled) if many)
        arrivals = [request.arrival for request in self.cutting.workload.requests]
        return Goal(self.share, tokens, plain_sum(arrivals) / len(arrivals), min(arrivals))

    def allows(self, counts: Sequence[float]) -> bool:
        """Whether all ranks have memory for so many layers."""
        return self.room is None or self.room.allows(counts, self.ranks)

    def quote(self, sizes: Sequence[float], counts: Sequence[float]) -> Quote:
        """The prices of chunks of these sizes on stages of so many layers."""
        cost, stages = self.prices.cost, len(counts)
        layers = self.prices.layer_seconds(self.cutting.spans(sizes))
        mixes = self.prices.mixes(counts)
        transfers = [cost.transfer.fixed + cost.transfer.per_token * size for size in sizes]
        if len(layers) == 1:
            seconds = [count * layer for layer in layers[0] for count in counts]
        else:
            seconds = [
                plain_sum([count * layer for count, layer in zip(mix, chunk, strict=True)])
                for chunk in zip(*layers, strict=True)
                for mix in mixes
            ]
        if cost.launch:
            seconds = [each + cost.launch for each in seconds]
        if cost.interference:
            for stage, crossings in enumerate(self._crossings):
                for chunk, transfer in enumerate(transfers):
                    seconds[chunk * stages + stage] += self._drag * crossings * transfer
        if cost.embed.fixed or cost.embed.per_token:
            for chunk, size in enumerate(sizes):
                seconds[chunk * stages] += cost.embed.fixed + cost.embed.per_token * size
        for op, many in self.goal.tokens:
            seconds[op] += cost.head.fixed + cost.head.per_token * many
        return Quote(seconds, transfers, layers, mixes)

    def at(self, sizes: Sequence[float], counts: Sequence[float], order: Order) -> Point:
        """The point with these sizes, layers and order."""
        quote = self.quote(sizes, counts)
        value = self.wired(order).value(quote.seconds, quote.transfers)
        return Point(tuple(sizes), tuple(counts), order, value)

    def start(self, sizes: Sequence[float], counts: Sequence[float], admits: Sequence[Admit]) -> Point:
        """The point with these sizes and layers, and the best of the orders made in these ways."""
        quote = self.quote(sizes, counts)
        points = [self.at(sizes, counts, self.listed(quote, admit)) for admit in admits]
        return min(points, key=lambda point: point.value)

    def listed(self, quote: Quote, admit: Admit) -> Order:
        """The order of a list schedule at these prices."""
        priority = self._by_prompt if admit.prompts_first else None
        return dispatch(self.ranks, quote.seconds, quote.transfers, self.cutting.arrivals, admit.in_flight, priority)

    @cached_property
    def _by_prompt(self) -> list[float]:
        """Priorities of operations: those of earlier prompts first, then earlier stages."""
        stages = len(self.ranks)
        return [float(run * stages + stage) for run in self.cutting.run_of for stage in range(stages)]

    def resequenced(self, point: Point, rounds: int) -> Point:
        """The point with its order made better, if that is found, by scheduling to and fro.

        Backwards from the end, what ended last goes first, so that everything comes as late as it may; then forwards
        again in the order of those latest starts. (Forward-backward improvement: Li and Willis, An iterative
        scheduling technique for resource-constrained project scheduling, 1992.)
        """
        quote = self.quote(point.sizes, point.counts)
        count, chunks = len(quote.seconds), len(self.cutting)
        ranks, at_once = self.ranks[::-1], [0.0] * chunks
        in_flight = self.max_in_flight or chunks
        seconds, transfers = quote.seconds[::-1], quote.transfers[::-1]
        order, best = point.order, point
        for _ in range(rounds):
            ends = self.wired(order).ends(quote.seconds, quote.transfers)[:count]
            back = dispatch(ranks, seconds, transfers, at_once, chunks, [-end for end in reversed(ends)])
            late = Wiring.of(back, ranks, at_once, self.goal).ends(seconds, transfers)[:count]
            starts = [-end for end in reversed(late)]
            order = dispatch(self.ranks, quote.seconds, quote.transfers, self.cutting.arrivals, in_flight, starts)
            value = self.wired(order).value(quote.seconds, quote.transfers)
            if value < best.value:
                best = Point(point.sizes, point.counts, order, value)
        return best

    def wired(self, order: Order) -> Wiring:
        """The network of an order."""
        return Wiring.of(order, self.ranks, self.cutting.arrivals, self.goal)

    def token_slopes(
        self, sizes: Sequence[float], quote: Quote, slopes: Sequence[float], slow: Sequence[float]
    ) -> list[float]:
        """The goal's slope in every chunk's size, a longer chunk pushing the later ones of its prompt back.

        ``slopes`` are those in every operation's seconds, ``slow`` in every chunk's transfer.
        """
        cost, stages = self.prices.cost, len(self.ranks)
        by_kind = [self._by_chunk(slopes, [mix[kind] for mix in quote.mixes]) for kind in range(len(quote.layers))]
        per_token = cost.transfer.per_token
        result = [per_token * each for each in slow]
        if cost.interference:
            dragged = self._by_chunk(slopes, [self._drag * crossings for crossings in self._crossings])
            result = [each + per_token * more for each, more in zip(result, dragged, strict=True)]
        if cost.embed.per_token:
            result = [each + cost.embed.per_token * slope for each, slope in zip(result, slopes[::stages], strict=True)]
        spans = self.cutting.spans(sizes)
        for first, last in self.cutting.movable:
            for kind, weights in zip(self.prices.kinds, by_kind, strict=True):
                behind = 0.0  # the slope in the boundaries that a longer chunk pushes back
                at_end = kind.slope(spans[last - 1][0][1])
                for chunk in range(last - 1, first - 1, -1):
                    behind += weights[chunk] * at_end
                    result[chunk] += behind
                    at_end = kind.slope(spans[chunk][0][0])  # where the chunk before ends
                    behind += weights[chunk] * (kind.per_prefix_token - at_end)
        return result

    def layer_slopes(self, counts: Sequence[float], quote: Quote, slopes: Sequence[float]) -> list[float]:
        """The goal's slope in every stage's layers, a thicker stage pushing the later ones back."""
        stages = len(counts)
        by_kind = [  # [kind][stage]: if the stage had one more of these
            [plain_sum([s * x for s, x in zip(slopes[stage::stages], row, strict=True)]) for stage in range(stages)]
            for row in quote.layers
        ]
        if len(by_kind) == 1:
            return by_kind[0]
        result = [0.0] * stages
        behind, cut = 0.0, float(self.prices.layers)
        for stage in range(stages - 1, -1, -1):  # what layer moves across the end of the stage, and of later ones
            kind = self.prices.kind_of[min(max(int(cut - 1e-9), 0), self.prices.layers - 1)]
            behind += by_kind[kind][stage]
            result[stage] = behind
            cut -= counts[stage]
            kind = self.prices.kind_of[min(max(int(cut - 1e-9), 0), self.prices.layers - 1)]
            behind -= by_kind[kind][stage]
        return result

    def _by_chunk(self, slopes: Sequence[float], weights: Sequence[float]) -> list[float]:
        stages = len(weights)
        total = [0.0] * len(self.cutting)
        for stage, weight in enumerate(weights):
            if weight:
                total = [t + weight * s for t, s in zip(total, slopes[stage::stages], strict=True)]
        return total

    @cached_property
    def _crossings(self) -> list[int]:
        """For every stage, how many of its two ends are transfers."""
        hops = [before != after for before, after in pairwise(self.ranks)]
        return [before + after for before, after in zip([False, *hops], [*hops, False], strict=True)]

    @property
    def _drag(self) -> float:
        """The part of a transfer's time that interference adds to a FORWARD which runs beside it."""
        interference = self.prices.cost.interference
        return interference / (1.0 + interference)
