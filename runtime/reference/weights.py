"""Where weights come from: a seed, or (:mod:`runtime.reference.checkpoint`) files; and how a process takes its share.

Names are Hugging Face's, so that both sources mean the same by them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runtime.reference.parallel import TensorParallel

ALL = slice(None)


class Weights(Protocol):
    """A source of named tensors, read one at a time, so that a process never holds another's layers."""

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        """A tensor of its own memory on the CPU: ``tensor[share]`` of the tensor ``name``, whole of this shape."""
        ...


@dataclass(frozen=True, slots=True)
class SeededWeights:
    """Random weights that depend on the seed and a tensor's name only: any split over processes is one model.

    Matrices are normal with deviation 1 / sqrt(columns), norm gains near 1, biases near 0.
    """

    seed: int = 0

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        """The share of a tensor of normal numbers, in float32. The whole one is made on the way."""
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        normal = torch.randn(shape, generator=generator, dtype=torch.float32)
        if len(shape) > 1:
            normal *= 1 / math.sqrt(shape[-1])
        elif name.endswith("bias"):
            normal *= 0.1
        else:
            normal = 1 + 0.1 * normal
        return normal[tuple(share)].clone()


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads a process's share of the weights into its device's memory."""

    weights: Weights
    tp: TensorParallel
    dtype: torch.dtype
    device: torch.device

    def matrix(self, name: str, rows: int, columns: int, *, row: slice = ALL, column: slice = ALL) -> Tensor:
        """Rows ``row`` and columns ``column`` of a matrix that has ``rows`` x ``columns`` (outputs x inputs)."""
        return self._placed(self.weights.read(f"{name}.weight", (rows, columns), (row, column)), self.dtype)

    def gain(self, name: str, length: int) -> Tensor:
        """The gain of a norm, [length]."""
        return self._placed(self.weights.read(f"{name}.weight", (length,), (ALL,)), self.dtype)

    def bias(self, name: str, length: int) -> Tensor:
        """A vector that stays in float32, [length]."""
        return self._placed(self.weights.read(name, (length,), (ALL,)), torch.float32)

    def _placed(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(device=self.device, dtype=dtype)
