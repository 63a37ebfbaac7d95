"""What vLLM is to compute of a chunk: for each request one run of tokens, and the rows of the activation they fill."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.plan import Items
from vppc.ir.schedule import Part, Request


@dataclass(frozen=True, slots=True)
class Slice:
    """``tokens`` tokens of a request (by index) behind the ``start`` that its KV cache holds."""

    request: int
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The slices of a chunk, one a request: those that decode first, then those with a context, then new ones.

    vLLM's attention may want a batch in that order (``reorder_batch_to_split_decodes_and_prefills``), and one that is
    in it, it leaves as it is.

    ``tokens`` are the rows of the whole chunk, ``rows`` those that the slices fill, in their order; None for all as
    they are. ``due`` are the requests that get a token.
    """

    slices: tuple[Slice, ...]
    tokens: int
    rows: Tensor | None
    due: frozenset[int]


def batch_of(
    parts: Iterable[Part], skip: Collection[int], requests: Items[Request], device: torch.device | None = None
) -> Batch:
    """The batch of a chunk without the requests in ``skip``; its rows are on the device.

    Several parts of a request in one chunk follow one another, so they are one slice.
    """
    slices: dict[int, Slice] = {}
    rows: dict[int, list[Tensor]] = {}
    due = set()
    total = 0
    for part in parts:
        if part.request not in skip:
            before = slices.setdefault(part.request, Slice(part.request, part.start, 0))
            slices[part.request] = replace(before, tokens=before.tokens + part.tokens)
            rows.setdefault(part.request, []).append(torch.arange(total, total + part.tokens))
            if part.decode or part.end == requests[part.request].prompt_tokens:
                due.add(part.request)
        total += part.tokens
    order = sorted(slices.values(), key=lambda each: _kind(each, requests[each.request]))
    filled = torch.cat([run for each in order for run in rows[each.request]] or [torch.arange(0)])
    whole = torch.equal(filled, torch.arange(total))
    return Batch(tuple(order), total, None if whole else filled.to(device), frozenset(due))


def _kind(each: Slice, request: Request) -> int:
    """0 for a decode, 1 for one token behind a context, 2 for more of them, 3 for a prompt's first tokens."""
    if not each.start:
        return 3
    if each.tokens > 1:
        return 2
    return 0 if each.start >= request.prompt_tokens else 1
