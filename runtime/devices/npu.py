"""Ascend NPUs, with HCCL between them. torch_npu is imported only when an NPU is asked for.

Written against torch_npu 2.10.0 (the wheel, its ``npu/streams.py`` and ``npu/utils.py``, and the C++ of its events
and of ProcessGroupHCCL); docs/devices.md says what has run where.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from runtime.devices.accelerator import Accelerator
from runtime.devices.cuda import check_index
from vppc.errors import InputError


def import_torch_npu() -> Any:
    """The module torch_npu. Raises InputError, which names what is missing, when it cannot be imported."""
    try:
        return importlib.import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise
        raise InputError(
            "an NPU needs torch_npu, which is not installed", file="--device", remedy="pip install '.[npu]'"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:  # CANN's libraries, a second accelerator, other versions
        raise InputError(
            f"torch_npu cannot be imported: {error}",
            file="--device",
            remedy="source set_env.sh of the CANN toolkit, install the torch that goes with it, or take --device cpu",
        ) from None


def open_npu(local_rank: int) -> Accelerator:
    """The NPU of this machine's process number ``local_rank``. Raises InputError when there is none."""
    torch_npu = import_torch_npu()
    if not torch_npu.npu.is_available():
        raise InputError(
            "no NPU can be used on this machine",
            file="--device",
            remedy="look at `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES, or take --device cpu",
        )
    check_index(local_rank, torch_npu.npu.device_count(), "ASCEND_RT_VISIBLE_DEVICES")
    torch_npu.npu.set_device(local_rank)
    return Accelerator("npu", "hccl", torch_npu.npu, local_rank, torch.device("npu", local_rank))


def cann_version() -> str:
    """The version of CANN that torch_npu runs on, empty when it does not say."""
    return str(import_torch_npu().npu.utils.get_cann_version("CANN"))
