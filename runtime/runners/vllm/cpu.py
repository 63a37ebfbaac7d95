"""vLLM's build for CPUs; only what is not in :mod:`runtime.runners.vllm.upstream`.

Outside vLLM's server there is no worker, so what one does for its process is done here:

* ``VLLM_DIST_IDENT``, by which the CPU communicator names its shared memory, is set, as by ``CPUWorker.init_device``.
* Kernels are put in the place of Triton's, since 0.31 as by ``WorkerWrapperBase.init_worker``; before, the model runner
  did it.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  it has to come before other modules of the CPU worker
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from runtime.runners.vllm.upstream import Build, InOrder, Ranks, all_rows, join_world


class StageRunner(InOrder, CPUModelRunner):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's model runner for CPUs; the rows of its batches are in the order of the scheduler's output."""


def start(config: VllmConfig, ranks: Ranks) -> torch.device:
    """Make vLLM's process groups."""
    replace_kernels()
    os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])
    join_world(config, ranks, CPU.collectives)
    return torch.device("cpu")


@cache  # the second time vLLM warns
def replace_kernels() -> None:
    """Let vLLM do on CPUs without Triton what its kernels do."""
    if hasattr(type(current_platform), "register_triton_kernel_overrides"):  # an instance has every attribute
        current_platform.register_triton_kernel_overrides()


CPU = Build("cpu", "gloo", StageRunner, start, all_rows)
