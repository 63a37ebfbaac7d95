"""The KV cache: for every request and layer, rows allocated once for all its tokens and given back together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.plan import Lookup
from runtime.reference.batch import Span


class KvCache:
    """Rows of keys and values, or of latents and rotary keys, by request, layer and position.

    ``rows`` are the shapes of one token's tensors in one layer; ``capacities`` the tokens of each request.
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, ...]],
        capacities: Lookup[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._rows, self._capacities = rows, capacities
        self._dtype, self._device = dtype, device
        self._held: dict[int, dict[int, tuple[Tensor, ...]]] = {}

    def extend(self, layer: int, span: Span, new: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Writes the span's rows ``new`` [tokens, *row] at its positions; the request's rows [span.end, *row]."""
        held = self._tensors(span.request, layer)
        for tensor, rows in zip(held, new, strict=True):
            tensor[span.start : span.end] = rows
        return tuple(tensor[: span.end] for tensor in held)

    def release(self, request: int) -> None:
        """Frees a request's rows in all layers; one that never had any (cancelled early) has nothing to free."""
        self._held.pop(request, None)

    @property
    def requests(self) -> frozenset[int]:
        """The requests that hold memory."""
        return frozenset(self._held)

    @property
    def nbytes(self) -> int:
        """The bytes allocated now."""
        return sum(t.nbytes for layers in self._held.values() for held in layers.values() for t in held)

    def _tensors(self, request: int, layer: int) -> tuple[Tensor, ...]:
        layers = self._held.setdefault(request, {})
        if layer not in layers:
            capacity = self._capacities[request]
            layers[layer] = tuple(
                torch.empty((capacity, *row), dtype=self._dtype, device=self._device) for row in self._rows
            )
        return layers[layer]
