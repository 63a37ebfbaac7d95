"""How an activation that all processes of a rank have crosses a cut: each sends a share, and who receives gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Shares:
    """Over vLLM's tensor-parallel group; a share has the values of a tensor from ``rank / size`` on, [share].

    Where what processes have is not ``alike``, each sends all of its own.
    """

    def __init__(self, group: Any, *, alike: bool = True) -> None:
        self._group = group
        self.rank: int = group.rank_in_group if alike else 0
        self.size: int = group.world_size if alike else 1

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """That of a share of a tensor of shape ``whole``, which divides into ``size``."""
        return tuple(whole) if self.size == 1 else (math.prod(whole) // self.size,)

    def part(self, tensor: Tensor) -> Tensor:
        """This process's share of a tensor that all have alike."""
        return tensor if self.size == 1 else tensor.contiguous().view(self.size, -1)[self.rank]

    def whole(self, part: Tensor, shape: Sequence[int]) -> Tensor:
        """The tensor of that shape; all processes of the rank call it together."""
        if self.size == 1:
            return part
        gathered: Tensor = self._group.all_gather(part.reshape(-1), 0)
        return gathered.view(*shape)
