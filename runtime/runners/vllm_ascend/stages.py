"""What makes a model runner of vLLM-Ascend a virtual stage, beside what all of vLLM's builds need.

Nothing else of vLLM-Ascend's is touched, for what ``NPUModelRunner.execute_model`` does is right for two stages:

* ``set_ascend_forward_context`` is entered in it, so once a stage: what it says of a batch (how experts communicate,
  padding, the MC2 mask) is about the stage that runs. ``forward_context.layer_idx`` starts at the stage's own layers.
* The MC2 mask and capacity, and the rotary tables, are the process's, and sized by its first model runner. All stages
  of a process have the same sizes; what is in them is written by each batch, in the order of the compute stream.
* Attention metadata is made by the stage's own builders from the batch that the stage is given.
* Ranks of an EP group are those of one pipeline rank, and run the same stages in the same order: their exchanges pair.

:class:`StageRunner` sets ``prepare_inputs_event``: without it a model runner overwrites the host's copy of a batch that
the device has not read yet, as soon as it is more than one batch ahead. vLLM sets it for its asynchronous scheduling.
"""

from __future__ import annotations

import importlib
import os

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm_ascend.utils import enable_sp
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
from vllm_ascend.worker.worker import NPUWorker

from runtime.runners.vllm.upstream import Build, InOrder, Ranks
from runtime.runners.vllm_ascend.refusals import refuse
from vppc.errors import InputError


class StageRunner(InOrder, NPUModelRunner):  # type: ignore[misc]  # vLLM-Ascend is not there when types are checked
    """vLLM-Ascend's model runner; the rows of its batches are in the order of the scheduler's output, and the host
    does not prepare a batch before the device has read the one before."""

    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.prepare_inputs_event = importlib.import_module("torch_npu").npu.Event()


def start(config: VllmConfig, ranks: Ranks) -> torch.device:
    """Make vLLM's and vLLM-Ascend's process groups, and do what else is done once a process.

    That is all in vLLM-Ascend's worker, of which one is made here and left to itself. Raises InputError for a second
    model in a process, whose tables and masks would be those of the first, and for what stages do not do.
    """
    if parallel_state.model_parallel_is_initialized():
        raise InputError("holds one model a process on NPUs", file="--runner vllm", remedy="start another run")
    refuse(config, "--runner vllm", sharded=enable_sp(config))
    parallel = config.parallel_config
    parallel.pipeline_parallel_size, parallel.world_size = ranks.pp, ranks.pp * ranks.tp
    with set_current_vllm_config(config):
        worker = NPUWorker(config, int(os.environ.get("LOCAL_RANK", "0")), ranks.process, "env://")
        worker.init_device()
        worker.model_runner = None  # stages have their own
    device: torch.device = worker.device
    return device


def rows(config: VllmConfig, tokens: int) -> int:
    """With FlashComm each process of a rank hands on its part of the tokens, padded to equal parts."""
    tp = config.parallel_config.tensor_parallel_size
    return -(-tokens // tp) if enable_sp(config) else int(tokens)


ASCEND = Build("npu", "hccl", StageRunner, start, rows)
