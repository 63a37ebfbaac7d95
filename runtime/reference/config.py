"""What a model looks like, as plain data: everything that its layers are built from."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.reference.rope import Rope


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Attention in which ``heads / kv_heads`` query heads share one key and value head.

    ``norms``: queries and keys are normalised over a head's dimensions (Qwen3).
    """

    heads: int
    kv_heads: int
    head_dim: int
    norms: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek's MLA: keys and values are rebuilt from a latent of ``kv_rank`` numbers a token and a rotary key.

    ``query_rank`` None: queries come straight from the hidden state. ``interleaved``: how rotary pairs lie.
    ``softmax_scale`` multiplies 1 / sqrt(query dimensions) (YaRN's mscale).
    """

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None
    interleaved: bool = True
    softmax_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class SoftmaxGate:
    """Qwen3-MoE: softmax over the experts, the ``top_k`` best, their weights made to sum to 1 if ``normalise``."""

    top_k: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class SigmoidGate:
    """DeepSeek-V3: sigmoid scores; a learnt bias helps to choose, not to weigh. Of ``groups`` of experts the
    ``top_groups`` whose two best are best stay; among them the ``top_k`` best, weighed with ``scale``."""

    top_k: int
    normalise: bool
    groups: int
    top_groups: int
    scale: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """Feed-forward layers of ``experts`` experts ``intermediate`` wide, and ``shared`` ones that all tokens use.

    ``layers`` are the layers that have it; the others are dense.
    """

    experts: int
    intermediate: int
    shared: int
    gate: SoftmaxGate | SigmoidGate
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: ``layers`` times attention and feed-forward around an embedding and a head.

    ``tied``: the head's matrix is the embedding's. ``norm_eps`` belongs to the RMSNorms of the residual stream.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    attention: GroupedAttention | LatentAttention
    rope: Rope
    mixture: Mixture | None = None
    norm_eps: float = 1e-6
    tied: bool = False


def small_model(layers: int) -> ModelConfig:
    """The model that runs when none is given: at 16K tokens most of its time is attention, on one CPU core."""
    return ModelConfig(
        name="small",
        layers=layers,
        hidden=256,
        intermediate=512,
        vocabulary=2048,
        attention=GroupedAttention(heads=4, kv_heads=2, head_dim=64),
        rope=Rope(dim=64, theta=1e6),
    )
