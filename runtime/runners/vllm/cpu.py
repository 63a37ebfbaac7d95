"""vLLM's build for CPUs. Made for vLLM 0.28.0; only what is not in :mod:`runtime.runners.vllm.upstream`.

``VLLM_DIST_IDENT``, by which the CPU communicator names its shared memory, is set. ``CPUWorker.init_device`` does that,
and outside vLLM's server there is no worker.
"""

from __future__ import annotations

import os

import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  it has to come before other modules of the CPU worker
from vllm.config import VllmConfig
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from runtime.runners.vllm.upstream import Build, InOrder, Ranks, all_rows, join_world


class StageRunner(InOrder, CPUModelRunner):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's model runner for CPUs; the rows of its batches are in the order of the scheduler's output."""


def start(config: VllmConfig, ranks: Ranks) -> torch.device:
    """Make vLLM's process groups."""
    os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])
    join_world(config, ranks, CPU.collectives)
    return torch.device("cpu")


CPU = Build("cpu", "gloo", StageRunner, start, all_rows)
