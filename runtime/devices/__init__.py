"""Devices: the CPU with gloo, CUDA with NCCL, and Ascend NPUs with HCCL, each imported only when asked for."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.devices.protocol import Device


def find_device(name: str) -> Device:
    """The device of that name for this process; ``auto`` takes an NPU before a GPU before the CPU.

    A machine's processes take its devices in the order of their LOCAL_RANK. Raises InputError when there is none.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = _best()
    if name == "npu":
        from runtime.devices.npu import open_npu

        return open_npu(local_rank)
    if name == "cuda":
        from runtime.devices.cuda import open_cuda

        return open_cuda(local_rank)
    from runtime.devices.cpu import CpuDevice

    return CpuDevice()


def _best() -> str:
    if importlib.util.find_spec("torch_npu") is not None:
        from runtime.devices.npu import import_torch_npu

        return "npu" if import_torch_npu().npu.is_available() else "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
