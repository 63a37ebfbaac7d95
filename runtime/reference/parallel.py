"""Tensor and expert parallelism inside a stage: who holds which share, and how partial results become whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vppc.errors import InputError


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This process's place in a group of ``size`` processes that hold a stage together.

    Heads, feed-forward columns, experts and the vocabulary are split; the residual stream is the same on all.
    ``all_reduce`` sums a tensor over the group, in place, with the same bits everywhere (routers decide on them).
    """

    rank: int = 0
    size: int = 1
    all_reduce: Callable[[Tensor], None] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")
        if self.size > 1 and self.all_reduce is None:
            raise ValueError("a group of several processes needs an all_reduce")

    def share(self, total: int, what: str) -> slice:
        """This process's run of ``total`` things, as equal as can be; InputError when there are too few."""
        if total < self.size:
            raise InputError(
                f"{total} {what} cannot be split over {self.size} processes",
                file="--tp",
                remedy=f"at most {total}",
            )
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def sum(self, partial: Tensor) -> Tensor:
        """The sum of the group's ``partial`` tensors; ``partial`` is overwritten."""
        if self.all_reduce is not None:
            self.all_reduce(partial)
        return partial


ALONE = TensorParallel()
"""No group: one process holds the whole stage."""


def length(share: slice) -> int:
    """How many things a share holds."""
    return int(share.stop) - int(share.start)
