"""How an activation that all processes of a rank have crosses a cut: each sends a share, and who receives gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Shares:
    """Over vLLM's tensor-parallel group: a share is the values of a tensor from ``rank / size`` on, [share]."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.size = group.rank_in_group, group.world_size

    def part(self, tensor: Tensor) -> Tensor:
        """This process's share of a tensor that all have alike, of ``size`` equal ones."""
        return tensor if self.size == 1 else tensor.contiguous().view(self.size, -1)[self.rank]

    def whole(self, part: Tensor, shape: Sequence[int]) -> Tensor:
        """The tensor of that shape; all processes of the rank call it together."""
        if self.size == 1:
            return part
        gathered: Tensor = self._group.all_gather(part.reshape(-1), 0)
        return gathered.view(*shape)
