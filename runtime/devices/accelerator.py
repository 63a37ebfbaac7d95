"""A device that works through streams of queued work: what CUDA and Ascend NPUs have in common in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runtime.clock import Clock
from runtime.devices.communicators import Buffers
from runtime.devices.links import GroupLink
from runtime.devices.progress import StreamProgress

RUN_AHEAD = 16
"""Instructions that may be queued and not finished: enough that launching is hidden behind a few FORWARDs, and few
enough that a cancellation soon takes effect."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device behind ``module``: ``torch.cuda``, or ``torch_npu.npu``, which has the same functions.

    All is queued on the module's current stream, the compute stream. ``buffers`` is what communicators take, None
    where that is not known.
    """

    name: str
    backend: str
    module: Any
    index: int
    torch_device: torch.device
    buffers: Buffers | None = None
    run_ahead: int = RUN_AHEAD

    def link(self, group: Any, peer: int) -> GroupLink:
        return GroupLink(group, peer)

    def synchronize(self) -> None:
        self.module.synchronize()

    def progress(self, clock: Clock, report: Callable[[float, float], None] | None = None) -> StreamProgress:
        return StreamProgress(self.module, self.index, self.run_ahead, clock, report)

    def describe(self) -> str:
        _, total = self.module.mem_get_info()
        return f"{self.module.get_device_name(self.index)}, {total / 2**30:.1f} GiB"

    def communicator_bytes(self, channels: int, tp: int) -> int | None:
        return None if self.buffers is None else self.buffers.total(channels, tp)

    def free_memory(self) -> int:
        free, _ = self.module.mem_get_info()
        return int(free)
