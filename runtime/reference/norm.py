"""RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """The last dimension divided by its root mean square, in float32, times ``gain``."""

    gain: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised ``x``, of its shape and dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.gain
