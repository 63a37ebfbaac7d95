"""The parts of a decoder-only language model that decide what its prefill costs.

Numbers only: names of layers, activation functions and rotary tables cost nothing here. :mod:`vppc.models.config`
reads them from a Hugging Face config, :mod:`vppc.models.weights` and :mod:`vppc.models.flops` count with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class GroupedQuery:
    """Attention whose cache holds the keys and values of ``kv_heads`` heads; MHA when there are as many as ``heads``.

    ``bias``: the q, k and v projections have one. ``qk_norm``: queries and keys are normalised head by head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    qk_norm: bool = False

    @property
    def kind(self) -> str:
        return "MHA" if self.heads == self.kv_heads else "GQA"


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA, DeepSeek-V2): the cache holds one latent a token, shared by all heads.

    A query and a key have ``nope_dim`` values of their own and ``rope_dim`` rotary ones (the key's are shared), a
    value ``v_dim``. Keys and values are rebuilt from the latent of ``kv_rank`` values; queries come from one of
    ``q_rank`` values (0: straight from the hidden state).
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def kind(self) -> str:
        return "MLA"

    @property
    def qk_dim(self) -> int:
        """How wide a query and a key are."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """How many values the cache holds a token: the latent and the shared rotary key."""
        return self.kv_rank + self.rope_dim


Attention: TypeAlias = GroupedQuery | Latent


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse attention (DSA, DeepSeek-V3.2): it scores every key for every query with
    ``heads`` heads of ``head_dim``, and attention then sees the ``topk`` keys with the highest scores."""

    heads: int
    head_dim: int
    topk: int


IndexerMode: TypeAlias = Literal["none", "full", "shared"]
"""Of a layer: dense attention; an indexer of its own; the selection of the last full layer before it (GLM-5.2)."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A gated feed-forward network: three matrices of hidden x ``width``."""

    width: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of ``count`` gated experts of ``width``, of which a token runs through ``per_token``.

    Every token also runs through a shared expert of ``shared_width`` (0: none), weighed by a gate where there is a
    ``shared_gate``. ``bias``: the router has one (it balances the load without a loss).
    """

    count: int
    per_token: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    bias: bool = False


FeedForward: TypeAlias = Dense | Experts


@dataclass(frozen=True, slots=True)
class LayerKind:
    """``count`` equal decoder layers in a row."""

    count: int
    feed_forward: FeedForward
    indexer: IndexerMode = "none"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model. ``kinds`` are its decoder layers, run-length in layer order; ``mtp`` layers for multi-token
    prediction come on top and are no part of prefill.

    ``weight_dtype`` is what the config says that the weights are kept in, ``tied`` whether the head is the
    embedding, ``context`` the longest prompt the model was made for (0: not said), by a ``rotary`` scaling
    ("": none), which, where it is YaRN, stretches ``trained`` tokens, and ``published_dtype`` what a preset's
    published weights are kept in, when that is not ``weight_dtype`` ("": it is).
    """

    name: str
    hidden: int
    vocabulary: int
    attention: Attention
    kinds: tuple[LayerKind, ...]
    indexer: Indexer | None = None
    tied: bool = False
    mtp: int = 0
    context: int = 0
    rotary: str = ""
    trained: int = 0
    weight_dtype: str = "bf16"
    published_dtype: str = ""

    @property
    def layers(self) -> int:
        """Decoder layers, those for multi-token prediction not counted."""
        return sum(kind.count for kind in self.kinds)

    @property
    def attention_kind(self) -> str:
        """``MHA``, ``GQA``, ``MLA`` or ``MLA + DSA``."""
        return self.attention.kind + (" + DSA" if self.indexer else "")

    def between(self, first: int, last: int) -> tuple[tuple[int, LayerKind], ...]:
        """How many layers of which kinds the half-open range [first, last) has, in order."""
        found = []
        start = 0
        for kind in self.kinds:
            count = min(last, start + kind.count) - max(first, start)
            if count > 0:
                found.append((count, kind))
            start += kind.count
        return tuple(found)
