"""Processes on CPUs, with gloo between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from runtime.devices.protocol import Link


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The host itself: work is done when a call returns."""

    name: str = "cpu"
    backend: str = "gloo"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def link(self, group: Any, peer: int) -> Link:
        return _GlooLink(group, peer)

    def synchronize(self) -> None:
        """Nothing is queued."""


class _GlooTransfer:
    __slots__ = ("works",)

    def __init__(self, works: Sequence[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class _GlooLink:
    """Posts straight to the process group: the checks of torch.distributed's own functions cost more than a post."""

    def __init__(self, group: Any, peer: int) -> None:
        self.group, self.peer = group, peer

    def send(self, tensors: Sequence[torch.Tensor]) -> _GlooTransfer:
        return _GlooTransfer([self.group.send([tensor], self.peer, 0) for tensor in tensors])

    def recv(self, tensors: Sequence[torch.Tensor]) -> _GlooTransfer:
        return _GlooTransfer([self.group.recv([tensor], self.peer, 0) for tensor in tensors])
