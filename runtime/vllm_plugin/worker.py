"""The worker of a folded server: a pipeline rank with two virtual stages, each on a model runner of its own.

Of P ranks, rank r has stages r and 2 P - 1 - r; the last rank has the two in the middle, and no transfer between them.
All workers get the same calls in the same order: vLLM's for each batch, with a segment of the stream that our compiler
makes of them. A worker runs what the segment has for its rank, and decides nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from vllm.distributed.kv_transfer import (
    ensure_kv_transfer_initialized,
    get_kv_transfer_group,
    has_kv_transfer_group,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.worker_base import WorkerBase

from runtime.beats import Limits
from runtime.channels import open_links
from runtime.clock import Clock
from runtime.devices.communicators import check_room
from runtime.devices.protocol import Device
from runtime.faults import Position
from runtime.interpreter import Cancellation, Interpreter
from runtime.prefixes import scratch
from runtime.runners.vllm.connector import passes
from runtime.runners.vllm.shares import Shares
from runtime.runners.vllm.upstream import StagePlace, build, load_stage, part_of
from runtime.stream import Growing
from runtime.vllm_plugin.fatal import fatal
from runtime.vllm_plugin.page import Page, page_path
from runtime.vllm_plugin.replicas import Replica
from runtime.vllm_plugin.settings import FILE, Fold, read_settings
from runtime.vllm_plugin.stages import Stages
from runtime.vllm_plugin.watch import Watch
from runtime.vllm_plugin.witness import start_beating
from vppc.errors import InputError
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Segment


class Folded(WorkerBase):  # type: ignore[misc]  # vLLM is not there when types are checked
    """A worker with two stages, mixed into the worker of one of vLLM's builds."""

    def open_device(self) -> Device:
        """The device that the worker has taken."""
        raise NotImplementedError

    def init_device(self) -> None:
        if self.use_v2_model_runner:
            raise InputError("cannot fold: stages are V1 model runners", file=FILE, remedy="VLLM_USE_V2_MODEL_RUNNER=0")
        super().init_device()
        group = get_pp_group()
        self.rank_here, self.pp, self.tp = group.rank_in_group, group.world_size, get_tp_group().world_size
        self.buffers: list[tuple[torch.Tensor, ...]] = []

    def load_model(self, **options: Any) -> None:
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the worker of a folded server needs its settings")
        layers = settings.layers(self.pp, self.model_config.get_total_num_hidden_layers())
        self._places = {
            stage: StagePlace(stage, layers) for stage in (self.rank_here, 2 * self.pp - 1 - self.rank_here)
        }
        self._stages: dict[int, Any] = {
            stage: load_stage(self.vllm_config, place, self.device) for stage, place in self._places.items()
        }
        self.model_runner = self._stages[self.rank_here]  # for what vLLM asks of any runner
        self._layers = self.vllm_config.compilation_config.static_forward_context
        for runner in self._stages.values():
            self._layers.update(runner.vllm_config.compilation_config.static_forward_context)

    def set_kv_cache_layout(self, kv_cache_layout: str) -> None:
        """In which order the KV cache lies in memory: vLLM says so since 0.29, when all workers have loaded."""
        super().set_kv_cache_layout(kv_cache_layout)
        for runner in self._stages.values():
            runner.cache_config.kv_cache_layout = kv_cache_layout

    def open_stream(self, opening: Schedule, limits: Limits) -> None:
        """Get ready to run the stream that begins so: links, opened by all workers together, and buffers. From now on
        the process beats."""
        device, tp = self.open_device(), get_tp_group()
        ends = sum(self.rank_here in (channel.src, channel.dst) for channel in opening.channels)
        check_room(device, ends, self.tp)
        parallel = self.parallel_config
        replica, replicas = parallel.data_parallel_rank, parallel.data_parallel_size
        world = Replica(self.rank, self.pp * self.tp, None, None, number=replica, replicas=replicas)
        links = open_links(opening.channels, world, self.tp, device)
        model = self.model_runner.model
        carried = model.make_empty_intermediate_tensors(
            batch_size=1, dtype=self.model_config.dtype, device=self.device
        ).tensors
        shares = Shares(tp, alike=build().rows(self.vllm_config, self.tp) == self.tp)
        self._runner = Stages(self._stages, self._places, shares, carried)
        self._segments: deque[Segment] = deque()
        position = Position(self.rank_here)
        program = Growing(opening, self.rank_here, self._next_segment, position, Cancellation(), self._runner.rows)
        page = Page(page_path(self.vllm_config), self.pp * self.tp)
        watch = Watch(page, self.rank, self.rank_here, program)
        clock = Clock(0.0, 0.0)
        progress = device.progress(clock, watch.add)
        program.attach(self._runner.release, progress)
        position.enter(program, progress)
        start_beating(page, self.rank, position, limits)
        rows = self._runner.rows(opening.extra["buffer_tokens"])
        count = opening.programs[self.rank_here].buffers
        self.buffers = [scratch(self._runner.payload, rows, self.device) for _ in range(count)]
        self._interpreter = Interpreter(
            program,
            self.rank_here,
            self._runner,
            program.loads,
            links,
            self.buffers,
            clock,
            position=position,
            progress=progress,
            times=watch,
            mark=watch.mark,
        )

    def _next_segment(self) -> Segment | None:
        return self._segments.popleft() if self._segments else None

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stage, runner in self._stages.items():
            with self._places[stage].here():
                found |= runner.get_kv_cache_spec()
        return found

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Each stage binds its layers' part of the rank's KV cache; blocks have the same numbers in all of them."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        self._connect(kv_cache_config)
        for stage, runner in self._stages.items():
            with self._places[stage].building(runner.vllm_config):
                runner.initialize_kv_cache(part_of(kv_cache_config, runner))

    def _connect(self, kv_cache_config: KVCacheConfig) -> None:
        """Make vLLM's KV connector, if one is asked for: one for the layers of both stages."""
        self.make_connector(kv_cache_config)
        if not has_kv_transfer_group():
            return
        if len(kv_cache_config.kv_cache_groups) > 1:
            raise InputError(
                "cannot fold: a KV connector loads into one kind of KV cache", file=FILE, remedy="no KV transfer"
            )
        for place, seen in zip(self._places.values(), passes(get_kv_transfer_group(), self._layers), strict=True):
            place.connector = seen

    def make_connector(self, kv_cache_config: KVCacheConfig) -> None:
        """Make the one that vLLM asks for, of the process."""
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)

    @fatal
    @torch.inference_mode()
    def enter(self, scheduler_output: SchedulerOutput, segment: Segment | None) -> Any:
        """The next batch, and what is to run until it has entered."""
        self._runner.take(scheduler_output)
        self._run(segment)
        connected = has_kv_transfer_group()  # which says of a batch without tokens, too, who has sent and received
        return None if scheduler_output.total_num_scheduled_tokens or connected else EMPTY_MODEL_RUNNER_OUTPUT

    @fatal
    @torch.inference_mode()
    def leave(self, grammar_output: Any, segment: Segment | None) -> Any:
        """What the next batch makes, and what is to run until it is through; rank 0 has the sampler."""
        self._runner.grammar = grammar_output
        self._run(segment)
        return self._runner.ended()

    def _run(self, segment: Segment | None) -> None:
        if segment is not None:
            self._segments.append(segment)
            self._interpreter.go_on()
