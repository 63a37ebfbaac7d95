"""All that makes a model runner of vLLM a virtual stage, in one place. Made for vLLM 0.28.0.

* ``parallel_state._PP`` is a :class:`StageView` while a stage builds or runs. ``parallel_state.get_pp_group`` returns
  that global, and models and the model runner ask it who they are; a process here holds several stages.
* ``VLLM_PP_LAYER_PARTITION`` is set while a stage builds. ``distributed.utils.get_pp_indices`` reads it; the
  schedule says which layers a stage has.
* :class:`StageRunner` overrides ``GPUModelRunner._may_reorder_batch``, which is there for it, to keep the requests of a
  batch in the order of the chunk's parts. The rows of an activation are in that order on all stages, also on one that
  has learned of a cancellation before another.
* ``intermediate_tensors``, where a stage behind the first reads its input, is allocated. ``GPUModelRunner._dummy_run``
  does that, which the CPU backend never calls in eager mode.
* ``VLLM_DIST_IDENT``, by which the CPU communicator names its shared memory, is set. ``CPUWorker.init_device`` does
  that, and there is no worker here.

The process group of the run is vLLM's world: ``init_distributed_environment`` takes the one that is there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import vllm.v1.worker.cpu.shm  # noqa: F401  it has to come before other modules of the CPU worker
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


class StageView:
    """vLLM's pipeline group as stage ``stage`` of ``stages`` sees it; all else is the process's real group."""

    def __init__(self, group: Any, stage: int, stages: int) -> None:
        self._group = group
        self.rank_in_group, self.world_size, self.ranks = stage, stages, list(range(stages))
        self.is_first_rank, self.is_last_rank = stage == 0, stage == stages - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class StageRunner(CPUModelRunner):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's model runner for CPUs; the rows of its batches are in the order of the scheduler's output."""

    def _may_reorder_batch(self, scheduler_output: SchedulerOutput) -> None:
        super()._may_reorder_batch(scheduler_output)
        batch = self.input_batch
        for index, request in enumerate(scheduler_output.num_scheduled_tokens):
            if (found := batch.req_id_to_index[request]) != index:
                batch.swap_states(index, found)


class StagePlace:
    """Where a stage is: its number, and how many layers each stage has. A context in which vLLM sees that."""

    def __init__(self, stage: int, layers: Sequence[int]) -> None:
        self.first, self.last = stage == 0, stage == len(layers) - 1
        self._view = StageView(parallel_state.get_pp_group(), stage, len(layers))
        self._partition = ",".join(map(str, layers))

    @contextmanager
    def here(self) -> Iterator[None]:
        """vLLM's pipeline group is the stage's."""
        group, parallel_state._PP = parallel_state._PP, self._view
        try:
            yield
        finally:
            parallel_state._PP = group

    @contextmanager
    def building(self, config: VllmConfig) -> Iterator[None]:
        """As :meth:`here`, with the stage's configuration and layers."""
        before = os.environ.get("VLLM_PP_LAYER_PARTITION")
        os.environ["VLLM_PP_LAYER_PARTITION"] = self._partition
        try:
            with self.here(), set_current_vllm_config(config):
                yield
        finally:
            if before is None:
                del os.environ["VLLM_PP_LAYER_PARTITION"]
            else:
                os.environ["VLLM_PP_LAYER_PARTITION"] = before


def load_stage(config: VllmConfig, place: StagePlace) -> StageRunner:
    """A model runner with the weights of one stage, and a configuration of its own, in which its layers register."""
    own = copy.deepcopy(config)
    with place.building(own):
        runner = StageRunner(own, torch.device("cpu"))
        runner.load_model()
        if not place.first:
            allocate_inputs(runner)
    return runner


def allocate_inputs(runner: Any) -> None:
    """The tensors in which a model runner of a stage behind the first keeps its input."""
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )


def join_world(config: VllmConfig) -> None:
    """Make vLLM's process groups over the processes of the run, all together, anew for each model.

    Each process is a pipeline rank; which stage it is when, :class:`StagePlace` says.
    """
    os.environ.setdefault("VLLM_DIST_IDENT", os.environ["MASTER_PORT"])
    size, rank = dist.get_world_size(), dist.get_rank()
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()  # a model with experts has a group that others do not have
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(size, rank, "env://", rank, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, size)
