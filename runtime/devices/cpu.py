"""Processes on CPUs, with gloo between them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from runtime.clock import Clock
from runtime.devices.links import GroupLink


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The host itself: work is done when a call returns."""

    name: str = "cpu"
    backend: str = "gloo"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def link(self, group: Any, peer: int) -> GroupLink:
        return GroupLink(group, peer)

    def synchronize(self) -> None:
        """Nothing is queued."""

    def progress(self, clock: Clock, report: Callable[[float, float], None] | None = None) -> None:
        """Nothing is queued, so the host's own place in the program is the device's."""

    def describe(self) -> str:
        threads = torch.get_num_threads()
        return f"{platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"

    def communicator_bytes(self, channels: int, tp: int) -> None:
        """On no device."""

    def free_memory(self) -> None:
        """Shared with everything else on the machine."""
