"""What crosses a cut between two stages, in the schema of the schedule file's ``payload``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from vppc.errors import InputError
from vppc.models.spec import ModelSpec

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int8": 1}


def payload(spec: ModelSpec, *, tp: int = 1, cut: int | None = None) -> list[dict[str, Any]]:
    """The tensors that stage-to-stage transfers carry: the hidden state and the residual that it is not yet added to.

    Over ``tp`` > 1 devices they are ``sharded``: each TP rank sends its share of the tokens, as vLLM does. ``cut``
    is the first layer behind the cut; when it shares the selection of an earlier layer (GLM-5.2), the selection
    has to come along. Without a cut the tensors are those that every cut has.
    """
    layout = "sharded" if tp > 1 else "replicated"

    def tensor(name: str, width: int, dtype: str) -> dict[str, Any]:
        return {"name": name, "shape": ["tokens", width], "dtype": dtype, "layout": layout}

    dtype = "float32" if spec.weight_dtype == "fp32" else "bfloat16"
    tensors = [tensor("hidden", spec.hidden, dtype), tensor("residual", spec.hidden, dtype)]
    if cut is not None and spec.indexer is not None and _shares(spec, cut):
        tensors.append(tensor("topk_indices", spec.indexer.topk, "int32"))
    return tensors


def widest_payload(spec: ModelSpec, *, tp: int = 1) -> list[dict[str, Any]]:
    """The payload of the cut that has the most to carry."""
    shared = (cut for cut in range(1, spec.layers) if _shares(spec, cut))
    return payload(spec, tp=tp, cut=next(shared, None))


def payload_bytes(tensors: Iterable[Mapping[str, Any]], tp: int = 1) -> float:
    """Bytes a token that one of ``tp`` TP ranks holds and sends. Raises InputError for an unknown dtype."""
    total = 0.0
    for tensor in tensors:
        if tensor["dtype"] not in _BYTES:
            raise InputError(
                f"the dtype {tensor['dtype']!r} has no known size", place="payload", remedy=", ".join(_BYTES)
            )
        values = math.prod(width for width in tensor["shape"] if isinstance(width, int))
        total += values * _BYTES[tensor["dtype"]] / (tp if tensor["layout"] == "sharded" else 1)
    return total


def _shares(spec: ModelSpec, layer: int) -> bool:
    return any(kind.indexer == "shared" for _, kind in spec.between(layer, layer + 1))
