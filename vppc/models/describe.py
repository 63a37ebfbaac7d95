"""What a model was understood to be: as JSON values, and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from vppc.models.flops import indexer_flops, kv_bytes, pair_flops, rebuild_flops, topk
from vppc.models.payload import payload_bytes, widest_payload
from vppc.models.spec import Dense, GroupedQuery, LayerKind, ModelSpec
from vppc.models.weights import (
    Sharding,
    active_parameters,
    embedding_weights,
    layer_weights,
    mtp_weights,
    parameters,
    total_active,
    total_parameters,
    weight_bytes,
)
from vppc.render.tables import count, table

_LEGEND = "of one layer; a pair: a token of the prompt, and one at or before it that it attends to"
"""What the table of the kinds of layers is about."""


def describe(spec: ModelSpec, sharding: Sharding, weight_dtype: str) -> dict[str, Any]:
    """The JSON of ``vppc model --json``. Bytes are those of one device; FLOPs those of all.

    Raises InputError when the model cannot be shared out so, or the weight dtype is not known.
    """
    sharding.check(spec)
    return {
        "name": spec.name,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "vocabulary": spec.vocabulary,
        "context": spec.context,
        "tied": spec.tied,
        "attention": {"kind": spec.attention_kind, **asdict(spec.attention)},
        "indexer": asdict(spec.indexer) if spec.indexer else None,
        "parameters": total_parameters(spec),
        "active_parameters": total_active(spec),
        "embedding_parameters": parameters(embedding_weights(spec)),
        "mtp_layers": spec.mtp,
        "mtp_parameters": parameters(mtp_weights(spec)),
        "tp": sharding.tp,
        "ep": sharding.ep,
        "weight_dtype": weight_dtype,
        "payload": widest_payload(spec, tp=sharding.tp),
        "kinds": [_kind(spec, kind, sharding, weight_dtype) for kind in distinct_kinds(spec)],
    }


def distinct_kinds(spec: ModelSpec) -> tuple[LayerKind, ...]:
    """The kinds of a model's layers in order of first use, each once, with how many layers of it there are."""
    counts: dict[LayerKind, int] = {}
    for kind in spec.kinds:
        one = replace(kind, count=1)
        counts[one] = counts.get(one, 0) + kind.count
    return tuple(replace(one, count=total) for one, total in counts.items())


def description(spec: ModelSpec, sharding: Sharding, weight_dtype: str) -> str:
    """The same as text: a few lines about the model, then a table of its kinds of layers."""
    facts = describe(spec, sharding, weight_dtype)
    width = max(map(len, (label for label, _ in _lines(spec, facts))))
    lines = [f"{label:<{width}}  {text}" for label, text in _lines(spec, facts)]
    return "\n".join([*lines, "", _kind_table(spec, facts["kinds"]), _LEGEND])


def _kind(spec: ModelSpec, kind: LayerKind, sharding: Sharding, dtype: str) -> dict[str, Any]:
    weights = layer_weights(spec, kind)
    return {
        "count": kind.count,
        "feed_forward": {"kind": _feed_forward_kind(kind), **asdict(kind.feed_forward)},
        "indexer": kind.indexer,
        "topk": topk(spec, kind),
        "parameters": parameters(weights),
        "active_parameters": active_parameters(weights),
        "flops_per_token": 2 * active_parameters(weights),
        "flops_per_pair": pair_flops(spec, kind),
        "flops_per_indexer_pair": indexer_flops(spec, kind),
        "flops_per_prefix_token": rebuild_flops(spec, kind),
        "weight_bytes": weight_bytes(spec, weights, sharding, dtype),
        "kv_bytes_per_token": kv_bytes(spec, kind, sharding),
    }


def _lines(spec: ModelSpec, facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    yield (
        "model",
        f"{spec.name}: {count(spec.layers, 'layer')}, hidden {count(spec.hidden)}"
        + (f", context {count(spec.context)}" if spec.context else ""),
    )
    yield "attention", _attention(spec)
    if spec.indexer:
        index = spec.indexer
        yield "indexer", f"{count(index.heads, 'head')} of {index.head_dim}, the best {count(index.topk)} keys a query"
    head = "head tied to the embedding" if spec.tied else "head of its own"
    yield "vocabulary", f"{count(spec.vocabulary)}, {head}"
    yield (
        "parameters",
        (
            f"{_billions(facts['parameters'])}; {_billions(facts['active_parameters'])} multiply a token, and a row of "
            f"the embedding's {_billions(facts['embedding_parameters'])} is looked up"
        ),
    )
    if spec.mtp:
        yield "MTP", f"{count(spec.mtp, 'layer')} more, {_billions(facts['mtp_parameters'])}; no part of prefill"
    tensors = facts["payload"]
    names = " + ".join(tensor["name"] for tensor in tensors)
    yield (
        "payload",
        (f"{names}: {payload_bytes(tensors, facts['tp']):,.0f} bytes a token and device, at the widest cut"),
    )
    published = f" (published in {spec.published_dtype})" if spec.published_dtype else ""
    yield "shared", f"by tp {facts['tp']}, experts by ep {facts['ep']}; weights in {facts['weight_dtype']}{published}"


def _attention(spec: ModelSpec) -> str:
    attention = spec.attention
    heads = f"{spec.attention_kind}, {count(attention.heads, 'head')}"
    if isinstance(attention, GroupedQuery):
        return f"{heads} on {count(attention.kv_heads, 'KV head')} of {attention.head_dim}"
    return (
        f"{heads}, queries and keys of {attention.nope_dim} + {attention.rope_dim}, values of {attention.v_dim}; "
        f"latent of {attention.kv_rank} + {attention.rope_dim}, of the queries {attention.q_rank or 'none'}"
    )


def _kind_table(spec: ModelSpec, kinds: list[dict[str, Any]]) -> str:
    headers = [
        "layers",
        "feed-forward",
        "parameters",
        "active",
        "weights a device",
        "KV a token, device",
        "FLOP a pair",
    ]
    latent, indexed = any(kind["flops_per_prefix_token"] for kind in kinds), spec.indexer is not None
    headers += ["FLOP a prefix token"] if latent else []
    headers += ["indexer", "FLOP an indexer pair"] if indexed else []
    rows = []
    for kind in kinds:
        row = [
            count(kind["count"]),
            _feed_forward(kind["feed_forward"]),
            _millions(kind["parameters"]),
            _millions(kind["active_parameters"]),
            _bytes(kind["weight_bytes"]),
            f"{count(kind['kv_bytes_per_token'])} B",
            count(kind["flops_per_pair"]),
        ]
        row += [f"{kind['flops_per_prefix_token'] / 1e6:,.2f} M"] if latent else []
        row += [kind["indexer"], count(kind["flops_per_indexer_pair"])] if indexed else []
        rows.append(row)
    return table(headers, rows, "><")


def _feed_forward_kind(kind: LayerKind) -> str:
    return "dense" if isinstance(kind.feed_forward, Dense) else "experts"


def _feed_forward(facts: dict[str, Any]) -> str:
    if facts["kind"] == "dense":
        return f"dense {count(facts['width'])}"
    shared = f" + shared {count(facts['shared_width'])}" if facts["shared_width"] else ""
    return f"{facts['per_token']} of {facts['count']} experts of {count(facts['width'])}{shared}"


def _bytes(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"


def _billions(number: int) -> str:
    return f"{number / 1e9:,.2f} B"


def _millions(number: int) -> str:
    return f"{number / 1e6:,.1f} M"
