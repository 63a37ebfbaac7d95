"""A chunk as the model sees it: made once, then the same for every stage, whatever is prepared in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from runtime.reference.rope import Tables


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one request: absolute positions [start, end), at ``rows`` of the computed tensors."""

    request: int
    start: int
    end: int
    rows: slice


@dataclass(frozen=True, slots=True)
class Batch:
    """``tokens`` rows of a buffer, of which those at ``rows`` are computed (None: all of them, [computed] indices).

    ``rope`` are the computed rows' rotary tables. ``samples`` are the (request, buffer row, position of the next
    token) from which a token is made.
    """

    tokens: int
    rows: Tensor | None
    spans: tuple[Span, ...]
    rope: Tables
    samples: Sequence[tuple[int, int, int]]
