"""The weights of a model: how many, what multiplies each token, and how they are shared out over devices.

A layer is a list of :class:`Weight`. Its parameters, its FLOPs a token (two for each parameter that multiplies
the token, Kaplan et al. 2020, section 2.1) and its bytes on a device all come from that one list, so that they
cannot disagree. Counts are exact: normalisation weights and biases are in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from vppc.errors import InputError
from vppc.models.spec import Dense, Experts, FeedForward, GroupedQuery, Latent, LayerKind, ModelSpec

Split: TypeAlias = Literal["whole", "heads", "kv_heads", "experts"]
"""How tensor and expert parallelism divide a weight: not at all; over the TP ranks; over the TP ranks, but at most
by the number of KV heads; over all devices that share the experts."""

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1, "w8a8": 1}
"""Bytes of a parameter by weight dtype. Scales of the 8-bit ones (under 0.1%) are not counted."""

_PLAIN_BYTES = {"fp32": 4}
"""What is not quantised (embedding, head, router, norms) is kept in 16 bits, but for fp32 models."""


class Weight(NamedTuple):
    """``elements`` parameters, ``active`` of which multiply each token; ``quantized`` in an 8-bit dtype."""

    name: str
    elements: int
    active: int
    split: Split
    quantized: bool = True


@dataclass(frozen=True, slots=True)
class Sharding:
    """What the devices of one pipeline rank share: ``tp`` ways for heads and columns, ``ep`` for experts.

    ``ep`` divides ``tp`` (an expert is then cut too) or is a multiple of it (the experts of ep / tp replicas).
    """

    tp: int = 1
    ep: int = 1

    def check(self, spec: ModelSpec) -> None:
        """Raises InputError when the model cannot be shared out so."""
        for place, ways in (("--tp", self.tp), ("--ep", self.ep)):
            if ways < 1:
                raise InputError(f"{ways} is too small", place=place, remedy="at least 1")
        if spec.attention.heads % self.tp:
            problem = f"{spec.attention.heads} heads cannot be shared by {self.tp} devices"
            raise InputError(problem, place="--tp", remedy=f"a divisor of {spec.attention.heads}")
        if isinstance(spec.attention, GroupedQuery):
            kv_heads = spec.attention.kv_heads
            if kv_heads % self.tp and self.tp % kv_heads:
                problem = f"{kv_heads} KV heads cannot be shared by {self.tp} devices"
                raise InputError(problem, place="--tp", remedy=f"a divisor or a multiple of {kv_heads}")
        if self.ep > 1:
            self._check_experts(spec)

    def _check_experts(self, spec: ModelSpec) -> None:
        counts = {kind.feed_forward.count for kind in spec.kinds if isinstance(kind.feed_forward, Experts)}
        if not counts:
            raise InputError(f"{spec.name} has no experts to share", place="--ep", remedy="1")
        for count in counts:
            if count % self.ep:
                problem = f"{count} experts cannot be shared by {self.ep} devices"
                raise InputError(problem, place="--ep", remedy=f"a divisor of {count}")
        if self.tp % self.ep and self.ep % self.tp:
            problem = f"expert parallelism over {self.ep} devices does not fit tensor parallelism over {self.tp}"
            raise InputError(problem, place="--ep", remedy="a divisor or a multiple of --tp")

    def ways(self, split: Split, spec: ModelSpec) -> int:
        """Into how many parts a weight is divided."""
        match split:
            case "whole":
                return 1
            case "heads":
                return self.tp
            case "kv_heads":
                return min(self.tp, spec.attention.kv_heads) if isinstance(spec.attention, GroupedQuery) else 1
            case "experts":
                return max(self.tp, self.ep)

    def visits(self, feed_forward: FeedForward) -> float:
        """How many experts of one device a token visits, on average."""
        return feed_forward.per_token / min(self.tp, self.ep) if isinstance(feed_forward, Experts) else 0.0


def layer_weights(spec: ModelSpec, kind: LayerKind) -> list[Weight]:
    """The weights of one layer of a kind."""
    weights = _latent(spec, spec.attention) if isinstance(spec.attention, Latent) else _grouped(spec, spec.attention)
    if kind.indexer == "full":
        weights += _indexer(spec)
    match kind.feed_forward:
        case Dense(width):
            weights.append(_matrix("feed-forward", 3 * spec.hidden, width, "heads"))
        case experts:
            weights += _experts(spec.hidden, experts)
    return [*weights, _plain("norms", 2 * spec.hidden)]


def embedding_weights(spec: ModelSpec) -> list[Weight]:
    """What the first stage holds besides layers. A look-up multiplies nothing."""
    return [Weight("embedding", spec.vocabulary * spec.hidden, 0, "heads", quantized=False)]


def head_weights(spec: ModelSpec) -> list[Weight]:
    """What the last stage holds besides layers; a tied head is the embedding's matrix again."""
    head = _matrix("head", spec.vocabulary, spec.hidden, "heads", quantized=False)
    return [head, _plain("final norm", spec.hidden)]


def mtp_weights(spec: ModelSpec) -> list[Weight]:
    """The layers for multi-token prediction: each a last layer, a projection of two hidden states, three norms.

    Embedding and head are the model's.
    """
    if not spec.mtp:
        return []
    last = spec.kinds[-1]
    layer = layer_weights(spec, LayerKind(1, last.feed_forward, "full" if spec.indexer else "none"))
    extra = [_matrix("projection", 2 * spec.hidden, spec.hidden, "whole"), _plain("norms", 3 * spec.hidden)]
    return [*layer, *extra] * spec.mtp


def parameters(weights: Iterable[Weight]) -> int:
    """How many parameters weights have."""
    return sum(weight.elements for weight in weights)


def active_parameters(weights: Iterable[Weight]) -> int:
    """How many of them multiply each token."""
    return sum(weight.active for weight in weights)


def total_parameters(spec: ModelSpec) -> int:
    """The parameters of a model, without its layers for multi-token prediction, a tied matrix once."""
    layers = sum(kind.count * parameters(layer_weights(spec, kind)) for kind in spec.kinds)
    head = head_weights(spec)[spec.tied :]  # the matrix comes first
    return layers + parameters(embedding_weights(spec)) + parameters(head)


def total_active(spec: ModelSpec) -> int:
    """The parameters that a token is multiplied by: of layers and head; the embedding is only looked up."""
    layers = sum(kind.count * active_parameters(layer_weights(spec, kind)) for kind in spec.kinds)
    return layers + active_parameters(head_weights(spec))


def weight_bytes(spec: ModelSpec, weights: Iterable[Weight], sharding: Sharding, dtype: str) -> int:
    """Bytes that weights take on one device. Raises InputError for a weight dtype that is not known."""
    size = dtype_bytes(dtype)
    plain = _PLAIN_BYTES.get(dtype, 2)
    return sum(
        -(-weight.elements // sharding.ways(weight.split, spec)) * (size if weight.quantized else plain)
        for weight in weights
    )


def dtype_bytes(dtype: str) -> int:
    """Bytes of a parameter in a weight dtype. Raises InputError when it is not known."""
    if dtype not in WEIGHT_BYTES:
        raise InputError(
            f"the weight dtype {dtype!r} is not known",
            place="--weight-dtype",
            remedy=f"one of {', '.join(WEIGHT_BYTES)}",
        )
    return WEIGHT_BYTES[dtype]


def _matrix(name: str, rows: int, columns: int, split: Split, *, quantized: bool = True) -> Weight:
    return Weight(name, rows * columns, rows * columns, split, quantized)


def _plain(name: str, elements: int, split: Split = "whole") -> Weight:
    """A vector that scales or shifts: no multiplication of matrices."""
    return Weight(name, elements, 0, split, quantized=False)


def _grouped(spec: ModelSpec, attention: GroupedQuery) -> list[Weight]:
    query, key = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    return [
        _matrix("q", spec.hidden, query, "heads"),
        _matrix("k, v", spec.hidden, 2 * key, "kv_heads"),
        _matrix("o", query, spec.hidden, "heads"),
        _plain("q bias", query * attention.bias, "heads"),
        _plain("k, v bias", 2 * key * attention.bias, "kv_heads"),
        _plain("q, k norms", 2 * attention.head_dim * attention.qk_norm),
    ]


def _latent(spec: ModelSpec, attention: Latent) -> list[Weight]:
    heads, hidden = attention.heads, spec.hidden
    if attention.q_rank:
        queries = [
            _matrix("q down", hidden, attention.q_rank, "whole"),
            _plain("q norm", attention.q_rank),
            _matrix("q up", attention.q_rank, heads * attention.qk_dim, "heads"),
        ]
    else:
        queries = [_matrix("q", hidden, heads * attention.qk_dim, "heads")]
    return [
        *queries,
        _matrix("kv down", hidden, attention.cached, "whole"),
        _plain("kv norm", attention.kv_rank),
        _matrix("kv up", attention.kv_rank, heads * (attention.nope_dim + attention.v_dim), "heads"),
        _matrix("o", heads * attention.v_dim, hidden, "heads"),
    ]


def _indexer(spec: ModelSpec) -> list[Weight]:
    """An indexer is not divided: every TP rank selects the same keys."""
    indexer, attention = spec.indexer, spec.attention
    assert indexer is not None
    assert isinstance(attention, Latent)
    return [
        _matrix("indexer q", attention.q_rank, indexer.heads * indexer.head_dim, "whole"),
        _matrix("indexer k", spec.hidden, indexer.head_dim, "whole"),
        _plain("indexer k norm", 2 * indexer.head_dim),
        _matrix("indexer head weights", spec.hidden, indexer.heads, "whole", quantized=False),
    ]


def _experts(hidden: int, experts: Experts) -> list[Weight]:
    one = 3 * hidden * experts.width
    return [
        _matrix("router", hidden, experts.count, "whole", quantized=False),
        _plain("router bias", experts.count * experts.bias),
        Weight("experts", experts.count * one, experts.per_token * one, "experts"),
        _matrix("shared expert", 3 * hidden, experts.shared_width, "heads"),
        _matrix("shared expert gate", hidden, int(experts.shared_gate), "whole", quantized=False),
    ]
