"""The floating-point operations and cache bytes of a layer, for a chunk of n tokens behind a prefix of p.

A multiplication and an addition are two operations. With pairs(n, p, topk) = sum over i = 1..n of min(p + i, topk):

===============  ========================================================  ==========================================
part             operations                                                source
===============  ========================================================  ==========================================
projections,     2 n (parameters that multiply a token)                    Kaplan et al. 2020 (arXiv:2001.08361), 2.1
feed-forward
attention        2 heads (qk_dim + v_dim) pairs(n, p)                      scores, then weighted values; PaLM
                                                                           (arXiv:2204.02311), appendix B, forward
rebuild (MLA)    2 kv_rank heads (nope_dim + v_dim) p                      DeepSeek-V2 (arXiv:2405.04434), 2.1.2: keys
                                                                           and values of the prefix from its latents,
                                                                           once a chunk
attention (DSA)  2 heads (kv_rank + rope_dim + kv_rank) pairs(n, p, topk)  DeepSeek-V3.2-Exp report, 2: MLA in its MQA
                                                                           form, on the latents themselves
indexer (DSA)    2 index_heads index_head_dim pairs(n, p)                  the same report, equation 1; full layers
===============  ========================================================  ==========================================

In the MQA form the key and value projections are multiplied into query and output: as many operations a token as
to rebuild its keys and values, so that the first line holds for both forms. Softmax, norms, rotary embedding and
routing are not counted: they move bytes rather than multiply. Causal attention is counted as what is needed,
(query, key) pairs that see each other, not as the full rectangle that some counters take.
"""

from __future__ import annotations

from vppc.costs.model import pairs
from vppc.models.spec import GroupedQuery, Latent, LayerKind, ModelSpec
from vppc.models.weights import Sharding, active_parameters, layer_weights

KV_BYTES = 2
"""Bytes of a value in the KV cache, which is kept in 16 bits."""


def layer_flops(spec: ModelSpec, kind: LayerKind, n: int, p: int) -> int:
    """Operations of one layer of a kind on n tokens behind a prefix of p, over all devices."""
    total = 2 * active_parameters(layer_weights(spec, kind)) * n
    total += pair_flops(spec, kind) * pairs(n, p, topk(spec, kind)) + rebuild_flops(spec, kind) * p
    return total + indexer_flops(spec, kind) * pairs(n, p)


def model_flops(spec: ModelSpec, n: int, p: int = 0) -> int:
    """Operations of all decoder layers on n tokens behind a prefix of p, without the head."""
    return sum(kind.count * layer_flops(spec, kind, n, p) for kind in spec.kinds)


def topk(spec: ModelSpec, kind: LayerKind) -> int:
    """How many keys a query sees at most; 0: all."""
    return spec.indexer.topk if spec.indexer is not None and kind.indexer != "none" else 0


def pair_flops(spec: ModelSpec, kind: LayerKind) -> int:
    """Operations of all heads for one (query, key) pair that is attended to."""
    match spec.attention:
        case GroupedQuery(heads=heads, head_dim=width):
            return 2 * heads * 2 * width
        case Latent() as latent if topk(spec, kind):
            return 2 * latent.heads * (latent.cached + latent.kv_rank)
        case Latent() as latent:
            return 2 * latent.heads * (latent.qk_dim + latent.v_dim)


def indexer_flops(spec: ModelSpec, kind: LayerKind) -> int:
    """Operations of the indexer for one (query, key) pair, 0 where a layer has none of its own."""
    if spec.indexer is None or kind.indexer != "full":
        return 0
    return 2 * spec.indexer.heads * spec.indexer.head_dim


def rebuild_flops(spec: ModelSpec, kind: LayerKind) -> int:
    """Operations that rebuild the keys and values of one prefix token from its latent, once a chunk."""
    if not isinstance(spec.attention, Latent) or topk(spec, kind):
        return 0
    latent = spec.attention
    return 2 * latent.kv_rank * latent.heads * (latent.nope_dim + latent.v_dim)


def kv_bytes(spec: ModelSpec, kind: LayerKind, sharding: Sharding) -> int:
    """Bytes that one layer's cache takes a token on one device.

    Latents and indexer keys have no heads to divide: every TP rank holds them whole.
    """
    index_key = spec.indexer.head_dim if spec.indexer is not None and kind.indexer == "full" else 0
    match spec.attention:
        case GroupedQuery(kv_heads=kv_heads, head_dim=width):
            return 2 * (kv_heads // sharding.ways("kv_heads", spec)) * width * KV_BYTES
        case Latent() as latent:
            return (latent.cached + index_key) * KV_BYTES
