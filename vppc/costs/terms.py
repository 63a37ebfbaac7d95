"""The constants of the cost model as columns of a least-squares problem, and which of them measurements can tell.

A constant whose column is a combination of the columns of others would take any value: it is left out and said to
be unknown, with the reason. Constants are tried in an order, so that of two that cannot be told apart the one that
extrapolates better stays: work that grows with tokens before work that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vppc.costs.least_squares import DEPENDENT, Vector, normal_equations, outside, solve
from vppc.costs.samples import Forward, Head, Layers, Transfer
from vppc.sums import plain_sum

_DISTINCT = 1e-3
"""Kinds of layers, and what is paid once a forward, must differ by so much from the rest to have constants of their
own: with 30 and 31 layers a forward, noise alone would decide what is paid by the layer and what by the forward."""
_SHARE = 0.01
"""A column that others reproduce takes more than this from each that is named as its stand-in."""


@dataclass(frozen=True, slots=True)
class Term:
    """A constant, for these kinds of layers (none: it is not a layer's), and what it is multiplied by, row by row."""

    name: str
    kinds: tuple[int, ...]
    column: Vector


@dataclass(frozen=True, slots=True)
class Candidate:
    """A constant to try: one term a kind of layers, and when those cannot be told apart, ``pooled``, one for all.

    ``absent`` says what the measurements lack when the constant plays no part in them at all, ``advice`` what to
    measure when it cannot be told from others. ``needs``: see :func:`vppc.costs.least_squares.outside`.
    """

    name: str
    separate: tuple[Term, ...]
    pooled: Term
    absent: str
    advice: str
    needs: float = DEPENDENT


@dataclass(frozen=True, slots=True)
class Unknown:
    """A constant that the measurements do not tell, and why."""

    name: str
    reason: str


def choose(candidates: Sequence[Candidate], seconds: Vector) -> tuple[tuple[Term, ...], tuple[Unknown, ...]]:
    """The terms that ``seconds``, relative errors all alike, can tell apart; and the constants that they cannot."""
    offered = [term for candidate in candidates for term in (*candidate.separate, candidate.pooled)]
    scaled = [[value / time for value, time in zip(term.column, seconds, strict=True)] for term in offered]
    gram = normal_equations(scaled, [0.0] * len(seconds)).gram
    places = {id(term): place for place, term in enumerate(offered)}
    chosen: list[int] = []
    unknown: list[Unknown] = []
    for candidate in candidates:
        separate = [places[id(term)] for term in candidate.separate]
        pooled = places[id(candidate.pooled)]
        if len(separate) > 1 and all(
            outside(gram, place, chosen + separate[:earlier]) > _DISTINCT for earlier, place in enumerate(separate)
        ):
            chosen += separate
        elif not gram[pooled][pooled]:
            unknown.append(Unknown(candidate.name, candidate.absent))
        elif outside(gram, pooled, chosen) > candidate.needs:
            chosen.append(pooled)
        else:
            shares = solve(gram, gram[pooled], chosen)
            likes = [offered[place].name for place, share in zip(chosen, shares, strict=True) if abs(share) > _SHARE]
            names = " and ".join(dict.fromkeys(likes))
            unknown.append(Unknown(candidate.name, f"cannot be told from {names}; {candidate.advice}"))
    return tuple(offered[place] for place in chosen), tuple(unknown)


def forward_candidates(forwards: Sequence[Forward], layers: Layers) -> list[Candidate]:
    """The constants of compute, in the order in which they are tried."""
    sparse = tuple(kind for kind, topk in enumerate(layers.topks) if topk)
    every = tuple(range(len(layers.names)))

    def a_layer(
        name: str,
        amount: Callable[[Forward, int], float],
        absent: str,
        advice: str,
        kinds: tuple[int, ...] = every,
    ) -> Candidate:
        columns = [[each.layers[kind] * amount(each, kind) for each in forwards] for kind in kinds]
        separate = tuple(Term(name, (kind,), column) for kind, column in zip(kinds, columns, strict=True))
        pooled = Term(name, kinds, [plain_sum(row) for row in zip(*columns, strict=True)])
        return Candidate(name, separate, pooled, absent, advice)

    def once(name: str, amount: Callable[[Forward], float], absent: str, advice: str) -> Candidate:
        term = Term(name, (), [amount(each) for each in forwards])
        return Candidate(name, (), term, absent, advice, _DISTINCT)

    sizes = "measure chunks of several sizes"
    no_embedding = "no measured forward has the embedding in it"
    candidates = [
        a_layer("per_token", lambda f, _: f.tokens, "", ""),
        a_layer("per_pair", lambda f, kind: f.seen[kind], "", f"{sizes}, behind short prefixes too"),
        a_layer("fixed", lambda f, _: 1.0, "", sizes),
        a_layer("per_prefix_token", lambda f, _: f.prefix, "no measured chunk has a prefix", sizes),
        once("launch", lambda f: 1.0, "", "measure forwards through fewer and more layers"),
        once("embed.fixed", lambda f: float(f.embeds), no_embedding, "measure stages without it, of the same layers"),
        once("embed.per_token", lambda f: f.embeds * f.tokens, no_embedding, sizes),
    ]
    if sparse:
        indexer = a_layer("indexer_per_pair", lambda f, _: f.dense, "", f"{sizes}, behind several prefixes", sparse)
        candidates.insert(2, indexer)
    return candidates


def collective_candidates(forwards: Sequence[Forward]) -> list[Candidate]:
    """The constants of exposed collectives; the same for all kinds of layers."""
    kinds = tuple(range(len(forwards[0].layers))) if forwards else ()
    tokens = [float(sum(each.layers) * each.tokens) for each in forwards]
    layers = [float(sum(each.layers)) for each in forwards]
    return [
        _alone("collective_per_token", tokens, kinds),
        _alone("collective_fixed", layers, kinds, "measure chunks of several sizes"),
    ]


def transfer_candidates(transfers: Sequence[Transfer]) -> list[Candidate]:
    """The constants of a transfer."""
    return [
        _alone("transfer.per_token", [each.tokens for each in transfers]),
        _alone("transfer.latency", [1.0] * len(transfers), (), "measure transfers of several sizes"),
    ]


def head_candidates(heads: Sequence[Head]) -> list[Candidate]:
    """The constants of the head: most of it is reading its weights, however few the rows."""
    return [
        _alone("head.fixed", [1.0] * len(heads)),
        _alone("head.per_token", [float(each.rows) for each in heads], (), "sample several prompts in one chunk"),
    ]


def _alone(name: str, column: Vector, kinds: tuple[int, ...] = (), advice: str = "") -> Candidate:
    return Candidate(name, (), Term(name, kinds, column), "", advice)
