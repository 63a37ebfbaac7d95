"""Rotary position embeddings: frequencies of the published scalings, tables of a chunk, and the rotation.

Formulas as in Hugging Face transformers' ``modeling_rope_utils`` (default, linear, llama3, yarn).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All positions divided by ``factor``."""

    factor: float

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies [dim / 2] after scaling."""
        return frequencies / self.factor

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: wavelengths beyond ``original / low`` are divided by ``factor``, those under ``original / high``
    kept, those between interpolated."""

    factor: float
    low: float
    high: float
    original: int

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies [dim / 2] after scaling."""
        turns = self.original * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071), with DeepSeek's ``mscale``. ``amplitude`` multiplies cosines and sines."""

    factor: float
    original: int
    amplitude: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def stretch(self, frequencies: Tensor, theta: float) -> Tensor:
        """The frequencies [dim / 2] after scaling: those that turn often in ``original`` positions are kept."""
        dim = 2 * len(frequencies)

        def dimension(turns: float) -> float:
            return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
        kept = 1 - ramp.clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """The magnitude by which YaRN scales attention for a context ``factor`` times longer."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


class Tables(NamedTuple):
    """Cosines and sines of a chunk's positions, [tokens, dim / 2] each."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of ``dim`` dimensions (even) with base ``theta``."""

    dim: int
    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    def frequencies(self) -> Tensor:
        """Radians a position for every pair of dimensions, [dim / 2] in float32."""
        plain = 1.0 / self.theta ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        return plain if self.scaling is None else self.scaling.stretch(plain, self.theta)

    def tables(self, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Tables]:
        """What makes the tables of positions [tokens]: angles in float32, tables in ``dtype``."""
        frequencies = self.frequencies().to(device)
        amplitude = 1.0 if self.scaling is None else self.scaling.amplitude

        def of(positions: Tensor) -> Tables:
            angles = positions.float()[:, None] * frequencies
            return Tables((angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype))

        return of


def rotate(x: Tensor, tables: Tables, *, interleaved: bool = False) -> Tensor:
    """``x`` [tokens, heads, dim] rotated by its positions' tables.

    A pair is (i, i + dim / 2), or (2i, 2i + 1) when ``interleaved`` (DeepSeek); the result always has the halves
    apart, which is the same for queries and keys and so leaves their products as they are.
    """
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    cos, sin = tables.cos[:, None], tables.sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
