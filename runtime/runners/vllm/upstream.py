"""All that makes a model runner of vLLM a virtual stage, in one place. Made for vLLM 0.28.0 and 0.32.0, and the vLLM
below vLLM-Ascend; what else differs between these is here, too. What differs between vLLM's builds is a :class:`Build`,
see ``cpu`` and :mod:`runtime.runners.vllm_ascend`.

* ``parallel_state._PP`` is a :class:`StageView` while a stage builds or runs. ``parallel_state.get_pp_group`` returns
  that global, and models and the model runner ask it who they are; a process here holds several stages.
* ``kv_transfer_state._KV_CONNECTOR_AGENT``, which the model runner and attention layers take the KV connector from, is
  a view of it for the stage, see :mod:`runtime.runners.vllm.connector`, while a stage with one builds or runs.
* ``VLLM_PP_LAYER_PARTITION`` is set while a stage builds. ``distributed.utils.get_pp_indices`` reads it; the
  schedule says which layers a stage has.
* :class:`InOrder` overrides ``GPUModelRunner._may_reorder_batch``, which is there for it, to bring the requests of a
  batch into the order of the scheduler's output. The rows of an activation are in that order on all stages, also on
  one that has learned of a cancellation before another. Attention that then orders them in its own way does so alike
  on all stages.
* ``intermediate_tensors``, where a stage behind the first reads its input, is allocated. ``GPUModelRunner._dummy_run``
  does that, which the CPU backend never calls in eager mode.

The process group of the run is vLLM's world: ``init_distributed_environment`` takes the one that is there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True, slots=True)
class Ranks:
    """``pp`` pipeline ranks of ``tp`` processes each, and the number of this one: ``rank * tp + tp rank``."""

    pp: int
    tp: int
    process: int


@dataclass(frozen=True, slots=True)
class Build:
    """A build of vLLM that stages run on, by the ``name`` of its device.

    ``collectives`` is the backend of its process groups, ``runner`` makes a stage's model runner, ``start`` makes
    vLLM's process groups outside its server and gives the device. ``rows(config, tokens)`` of an activation are those
    that a stage of one process hands on for so many tokens; where there are fewer than tokens, each process of a
    rank has others, and else all have the same.
    """

    name: str
    collectives: str
    runner: Callable[[VllmConfig, torch.device], Any]
    start: Callable[[VllmConfig, Ranks], torch.device]
    rows: Callable[[VllmConfig, int], int]


@cache
def build() -> Build:
    """The build that is installed here."""
    if current_platform.device_name == "cpu":
        from runtime.runners.vllm.cpu import CPU

        return CPU
    from runtime.runners.vllm_ascend.stages import ASCEND

    return ASCEND


def all_rows(config: VllmConfig, tokens: int) -> int:
    """One a token."""
    return tokens


class StageView:
    """vLLM's pipeline group as stage ``stage`` of ``stages`` sees it; all else is the process's real group."""

    def __init__(self, group: Any, stage: int, stages: int) -> None:
        self._group = group
        self.rank_in_group, self.world_size, self.ranks = stage, stages, list(range(stages))
        self.is_first_rank, self.is_last_rank = stage == 0, stage == stages - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class InOrder:
    """Mixed into a model runner of vLLM: its batches are in the order of the scheduler's output."""

    input_batch: Any

    def _may_reorder_batch(self, scheduler_output: SchedulerOutput) -> None:
        batch = self.input_batch
        for index, request in enumerate(scheduler_output.num_scheduled_tokens):
            if (found := batch.req_id_to_index[request]) != index:
                batch.swap_states(index, found)
        super()._may_reorder_batch(scheduler_output)  # type: ignore[misc]


class StagePlace:
    """Where a stage is: its number, and how many layers each stage has. A context in which vLLM sees that.

    ``connector`` is what vLLM's KV connector is for the stage, None for none.
    """

    def __init__(self, stage: int, layers: Sequence[int]) -> None:
        self.connector: Any = None
        self.first, self.last = stage == 0, stage == len(layers) - 1
        self._view = StageView(parallel_state.get_pp_group(), stage, len(layers))
        self._partition = ",".join(map(str, layers))

    @contextmanager
    def here(self) -> Iterator[None]:
        """vLLM's pipeline group is the stage's, and its KV connector."""
        group, parallel_state._PP = parallel_state._PP, self._view
        agent, kv_transfer_state._KV_CONNECTOR_AGENT = kv_transfer_state._KV_CONNECTOR_AGENT, self.connector
        try:
            yield
        finally:
            parallel_state._PP, kv_transfer_state._KV_CONNECTOR_AGENT = group, agent

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


def load_stage(config: VllmConfig, place: StagePlace, device: torch.device) -> Any:
    """A model runner with the weights of one stage, and a configuration of its own, in which its layers register."""
    own = copy.deepcopy(config)
    with place.building(own):
        runner = build().runner(own, device)
        runner.load_model()
        if not place.first:
            allocate_inputs(runner)
    return runner


def allocate_inputs(runner: Any) -> None:
    """The tensors in which a model runner of a stage behind the first keeps its input."""
    rows = build().rows(runner.vllm_config, runner.max_num_tokens)
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=rows, dtype=runner.model_config.dtype, device=runner.device
    )


def part_of(whole: KVCacheConfig, runner: Any) -> KVCacheConfig:
    """Of a rank's KV cache the part of a stage's layers: as many blocks, and what vLLM plans for a worker that has no
    other layers."""
    groups = kv_cache_utils._project_kv_cache_groups_to_worker(whole.kv_cache_groups, runner.get_kv_cache_spec())
    runner.cache_config.num_gpu_blocks_override = runner.cache_config.num_gpu_blocks = whole.num_blocks
    planned = kv_cache_utils.get_kv_cache_config_from_groups(runner.vllm_config, groups, 0)
    return replace(whole, kv_cache_groups=groups, kv_cache_tensors=planned.kv_cache_tensors)


def settle_layout(config: VllmConfig, specs: Iterable[Any]) -> None:
    """Let vLLM say in which order the KV cache of a stage lies in memory, as its engine has done since 0.29 for all
    of its workers; before, attention chose for itself. ``specs`` are those of the stage's layers."""
    if not hasattr(config.cache_config, "kv_cache_layout"):
        return
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout

    supported = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    resolve_kv_cache_layout(config, [supported], specs)


def join_world(config: VllmConfig, ranks: Ranks, collectives: str) -> None:
    """Make vLLM's process groups over the processes of the run, all together, anew for each model.

    Each process is of a pipeline rank; which stage it is when, :class:`StagePlace` says.
    """
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()  # a model with experts has a group that others do not have
    size, process = ranks.pp * ranks.tp, ranks.process
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(size, process, "env://", process, collectives)
        parallel_state.ensure_model_parallel_initialized(ranks.tp, ranks.pp)


def held_back(scheduler: Any) -> Any:
    """The queue of vLLM's scheduler beside that of waiting requests: of those that it has passed over, since 0.31 of
    those with blocks."""
    return scheduler.skipped_waiting if hasattr(scheduler, "skipped_waiting") else scheduler.kv_holding_waiting


def may_run(scheduler: Any, request: Any) -> bool:
    """Whether a waiting request does not wait for a grammar, or for blocks from elsewhere, or no longer does."""
    if not scheduler._is_blocked_waiting_status(request.status):
        return True
    if hasattr(scheduler, "_handle_blocked_waiting_request"):
        return bool(scheduler._handle_blocked_waiting_request(request))
    return bool(scheduler._try_promote_blocked_waiting_request(request))


def most_running(scheduler: Any) -> int:
    """How many requests may run at once; since 0.31 that can be fewer than a model runner has places for."""
    return int(getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs))
