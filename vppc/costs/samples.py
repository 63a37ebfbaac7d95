"""What was measured, in the terms of the cost model: forwards, transfers and heads, and for which layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vppc.costs.model import LayerCost, pairs
from vppc.ir.schedule import Chunk


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model by kind: kind ``k`` is called ``names[k]`` and sees ``topks[k]`` keys (0: all).

    ``runs`` are (kind, how many in a row), in layer order.
    """

    names: tuple[str, ...]
    topks: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def alike(cls, count: int, topk: int = 0) -> Layers:
        """``count`` layers of one kind."""
        return cls(("layer",), (topk,), ((0, count),))

    @classmethod
    def of(cls, costs: Iterable[LayerCost]) -> Layers:
        """The kinds that a cost model tells apart, numbered as they come."""
        found: list[tuple[float, ...]] = []
        topks: list[int] = []
        runs: list[tuple[int, int]] = []
        for cost in costs:
            constants = (
                cost.topk,
                cost.fixed,
                cost.per_token,
                cost.per_pair,
                cost.per_prefix_token,
                cost.indexer_per_pair,
                cost.collective_fixed,
                cost.collective_per_token,
            )
            if constants not in found:
                found.append(constants)
                topks.append(cost.topk)
            runs.append((found.index(constants), cost.count))
        names = ("layer",) if len(found) == 1 else tuple(f"kind {kind}" for kind in range(len(found)))
        return cls(names, tuple(topks), tuple(runs))

    @property
    def count(self) -> int:
        """How many layers the model has."""
        return sum(count for _, count in self.runs)

    def between(self, first: int, last: int) -> tuple[int, ...]:
        """How many of the layers [first, last) are of each kind."""
        counts = [0] * len(self.names)
        start = 0
        for kind, count in self.runs:
            counts[kind] += max(0, min(last, start + count) - max(first, start))
            start += count
        return tuple(counts)


@dataclass(frozen=True, slots=True)
class Forward:
    """One measured forward: ``seconds`` for ``layers`` of each kind on a chunk, and where that was read.

    The chunk is what the cost model sees of it: its ``tokens``, its parts' ``prefix`` tokens in sum, its ``dense``
    pairs and, of each kind of layers, the pairs that its attention ``seen``. ``embeds``: the embedding is in it.
    ``collective`` seconds lie beside ``seconds``; None where the two were not told apart.
    """

    place: str
    seconds: float
    layers: tuple[int, ...]
    tokens: int
    prefix: int
    dense: int
    seen: tuple[int, ...]
    embeds: bool = False
    collective: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One measured transfer of the activations of ``tokens`` tokens."""

    place: str
    seconds: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Head:
    """One measured sampling of ``rows`` tokens."""

    place: str
    seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that was measured of a model with these layers; ``name`` is the model's, if it is known.

    ``by_products`` are the fits, by name, that nobody set out to measure: they need not be good.
    """

    layers: Layers
    forwards: tuple[Forward, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    heads: tuple[Head, ...] = ()
    name: str = ""
    by_products: frozenset[str] = frozenset()

    def __add__(self, other: Measurements) -> Measurements:
        return Measurements(
            self.layers,
            self.forwards + other.forwards,
            self.transfers + other.transfers,
            self.heads + other.heads,
            self.name or other.name,
            self.by_products | other.by_products,
        )


def forward(
    place: str,
    seconds: float,
    parts: Iterable[tuple[int, int]],
    layers: tuple[int, ...],
    topks: tuple[int, ...],
    *,
    embeds: bool = False,
    collective: float | None = None,
) -> Forward:
    """A measured forward on a chunk whose parts have (tokens, prefix)."""
    known = list(parts)
    by_topk = {topk: sum(pairs(n, p, topk) for n, p in known) for topk in {0, *topks}}
    return Forward(
        place,
        seconds,
        layers,
        sum(n for n, _ in known),
        sum(p for _, p in known),
        by_topk[0],
        tuple(by_topk[topk] for topk in topks),
        embeds,
        collective,
    )


def chunk_parts(chunk: Chunk) -> list[tuple[int, int]]:
    """(tokens, prefix) of the parts of a chunk."""
    return [(part.tokens, part.start) for part in chunk.parts]
