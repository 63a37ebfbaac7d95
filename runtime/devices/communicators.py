"""The device memory that communicators take: counted before they are opened, for HCCL says only that there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vppc.errors import InputError

if TYPE_CHECKING:
    from runtime.devices.protocol import Device


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes that one process's end takes of its device: of a ``channel``, and of a tensor-parallel ``group``."""

    channel: int
    group: int

    def total(self, channels: int, tp: int) -> int:
        """Of so many channels, and of the group of ``tp`` processes, which one process alone does not have."""
        return channels * self.channel + (self.group if tp > 1 else 0)


def check_room(device: Device, channels: int, tp: int) -> None:
    """Whether a process's communicators fit into what is free. Raises InputError, with the sum, when they do not."""
    needed, free = device.communicator_bytes(channels, tp), device.free_memory()
    if needed is not None and free is not None and needed > free:
        group = f" and a tensor-parallel group of {tp}" if tp > 1 else ""
        raise InputError(
            f"the communicators of {channels} {'channel' if channels == 1 else 'channels'}{group} take "
            f"{needed / 2**20:.0f} MiB of device memory, and {free / 2**20:.0f} MiB are free",
            file=f"--device {device.name}",
            remedy="smaller P2P_HCCL_BUFFSIZE and HCCL_BUFFSIZE (MB), or end what else is on the device",
        )
