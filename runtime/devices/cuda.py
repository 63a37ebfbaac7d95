"""NVIDIA GPUs, with NCCL between them."""

from __future__ import annotations

import torch

from runtime.devices.accelerator import Accelerator
from vppc.errors import InputError


def open_cuda(local_rank: int) -> Accelerator:
    """The GPU of this machine's process number ``local_rank``. Raises InputError when there is none."""
    if not torch.cuda.is_available():
        raise InputError("no CUDA device can be used on this machine", file="--device", remedy="--device cpu")
    check_index(local_rank, torch.cuda.device_count(), "CUDA_VISIBLE_DEVICES")
    torch.cuda.set_device(local_rank)
    return Accelerator("cuda", "nccl", torch.cuda, local_rank, torch.device("cuda", local_rank))


def check_index(local_rank: int, devices: int, variable: str) -> None:
    """Raises InputError when a machine has fewer devices than processes: two on one device cannot talk."""
    if local_rank >= devices:
        raise InputError(
            f"process {local_rank} of this machine has no device: {devices} can be seen",
            file="--device",
            remedy=f"start as many processes as there are devices, or show more of them with {variable}",
        )
