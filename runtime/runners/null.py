"""The null runner: computes nothing. What is left is the runtime's own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from runtime.plan import Plan, samples_of
from runtime.runners.protocol import Buffer, TensorSpec


class NullRunner:
    """Moves one number a token; the token of every request is 0."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("hidden", (1,), torch.float32),)

    def prepare(self, chunk: int, skip: frozenset[int]) -> Any:
        return chunk, skip

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        """Nothing."""

    def sample(self, prepared: Any, inputs: Buffer) -> Sequence[tuple[int, int]]:
        chunk, skip = prepared
        made = samples_of(self.plan.chunks[chunk], self.plan.requests)
        return [(request, 0) for request in made if request not in skip]

    def release(self, request: int) -> None:
        """Nothing is held."""
