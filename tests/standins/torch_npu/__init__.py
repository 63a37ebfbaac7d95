"""A stand-in for torch_npu: what the runtime calls of it, with the real names and signatures, over CPU tensors.

As the real package does, importing it names the device ``npu``, on which nothing can be allocated here, and registers
the backend ``hccl``, here over gloo (see :mod:`hccl_over_gloo`). With ``STANDIN_TENSORS=cpu`` the runtime, which
imports it when it opens a device, gets the CPU for its tensors.
"""

import os
import sys
from types import SimpleNamespace

import torch.distributed
from hccl_over_gloo import HcclOverGloo

from torch_npu import npu as npu

__version__ = "2.10.0+standin"


def _new_process_group(dist_backend_opts: object, pg_options: object) -> HcclOverGloo:
    return HcclOverGloo(
        dist_backend_opts.store,
        dist_backend_opts.group_rank,
        dist_backend_opts.group_size,
        dist_backend_opts.timeout,
        npu.machine,
    )


torch.utils.rename_privateuse1_backend("npu")
torch.distributed.Backend.register_backend("hccl", _new_process_group, extended_api=True, devices=["cpu"])
if os.environ.get("STANDIN_TENSORS") == "cpu":
    sys.modules["runtime.devices.npu"].torch = SimpleNamespace(device=lambda *_: torch.device("cpu"))
