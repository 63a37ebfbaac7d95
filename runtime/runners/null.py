"""The null runner: computes nothing. What is left is the runtime's own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from runtime.runners.protocol import Buffer, TensorSpec
from vppc.ir.schedule import Schedule


class NullRunner:
    """Moves one number a token; the token of every request is 0."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        ends = [request.prompt_tokens for request in schedule.requests]
        self.sampled = [
            tuple((p.request, 0) for p in chunk.parts if p.decode or p.end == ends[p.request])
            for chunk in schedule.chunks
        ]

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("hidden", (1,), torch.float32),)

    def prepare(self, chunk: int, skip: frozenset[int]) -> tuple[int, frozenset[int]]:
        return chunk, skip

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        """Nothing."""

    def sample(self, prepared: tuple[int, frozenset[int]], inputs: Buffer) -> Sequence[tuple[int, int]]:
        chunk, skip = prepared
        return [(request, token) for request, token in self.sampled[chunk] if request not in skip]

    def release(self, request: int) -> None:
        """Nothing is held."""
