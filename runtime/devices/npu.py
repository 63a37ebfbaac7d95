"""Ascend NPUs, with HCCL between them. torch_npu is imported only when an NPU is asked for.

Written against torch_npu 2.10.0 (the wheel, its ``npu/streams.py`` and ``npu/utils.py``, and the C++ of its events
and of ProcessGroupHCCL); docs/devices.md says what has run where.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from runtime.devices.accelerator import Accelerator
from runtime.devices.communicators import Buffers
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
    device = torch.device("npu", local_rank)
    return Accelerator("npu", "hccl", torch_npu.npu, local_rank, device, communicator_buffers(os.environ))


def communicator_buffers(environment: Mapping[str, str]) -> Buffers:
    """What HCCL's communicators take of an NPU: two buffers each, of which the environment says the size in MB.

    A communicator of two ranks that only send and receive has buffers of P2P_HCCL_BUFFSIZE, unless that is 0; all
    others have buffers of HCCL_BUFFSIZE (torch_npu 2.10.0, ProcessGroupHCCL). Raises InputError for what is no size.
    """
    collective = _megabytes(environment, "HCCL_BUFFSIZE", 200)
    channel = _megabytes(environment, "P2P_HCCL_BUFFSIZE", 20) or collective
    return Buffers(2 * channel, 2 * collective)


def _megabytes(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a number of MB", file=name, remedy=f"unset it for {default}")
    return int(text) * 2**20


def cann_version() -> str:
    """The version of CANN that torch_npu runs on, empty when it does not say."""
    return str(import_torch_npu().npu.utils.get_cann_version("CANN"))
