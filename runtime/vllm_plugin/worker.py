"""The worker of a folded server: a pipeline rank with two virtual stages, each on a model runner of its own.

Of P ranks, rank r has stages r and 2 P - 1 - r; the last rank has the two in the middle, and no transfer between them.
All workers get the same calls in the same order, and each batch comes by in every stage, also one without tokens,
which tells who has finished. When a batch goes back, each rank but the first decides by its lag of the compiled order,
see :mod:`runtime.vllm_plugin.order`, at the latest when vLLM asks for its tokens; on the first, when it asks. Lags
never grow with the rank, so a rank has sent a batch back in the same call as the rank before wants it, or an earlier
one: the workers cannot wait for each other in a circle.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from vllm.distributed.kv_transfer import (
    ensure_kv_transfer_initialized,
    get_kv_transfer_group,
    has_kv_transfer_group,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.worker_base import WorkerBase

from runtime.channels import open_links
from runtime.clock import Clock
from runtime.devices.communicators import check_room
from runtime.devices.links import GroupLink, GroupTransfer
from runtime.devices.protocol import Device
from runtime.runners.vllm.connector import passes
from runtime.runners.vllm.shares import Shares
from runtime.runners.vllm.upstream import StagePlace, build, load_stage
from runtime.vllm_plugin.page import Doing, Page, RankRow, instruction, page_path
from runtime.vllm_plugin.parts import Prompts
from runtime.vllm_plugin.pricing import BatchDrift
from runtime.vllm_plugin.settings import FILE, Fold, read_settings
from runtime.world import World
from vppc.errors import InputError
from vppc.ir.schedule import Channel


class Sent(NamedTuple):
    """Tensors that are on their way."""

    transfer: GroupTransfer
    tensors: list[Tensor]


class Coming(NamedTuple):
    """A batch that is to run: of one with tokens, the activations, and the receive that fills them, if any.

    ``chunk`` counts the batches with tokens, from 0; one without has the number of the next. ``planned`` are the
    seconds of each stage, where there are costs. What is received is of ``shapes``, a share of it on each process.
    """

    batch: SchedulerOutput
    chunk: int
    planned: Sequence[float]
    tensors: dict[str, Tensor] | None = None
    transfer: GroupTransfer | None = None
    shapes: Sequence[Sequence[int]] = ()


class Step(NamedTuple):
    """An instruction; ``planned`` are its seconds, where there are costs."""

    doing: Doing
    chunk: int
    stage: int
    planned: float | None


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
        self.rank_here, self.pp = group.rank_in_group, group.world_size
        tp, device = get_tp_group().world_size, self.open_device()
        hops = [ends for low in range(self.pp - 1) for ends in ((low, low + 1), (low + 1, low))]
        check_room(device, sum(self.rank_here in ends for ends in hops), tp)
        channels = [Channel(number, *ends) for number, ends in enumerate(hops)]
        links = open_links(channels, World(self.rank, self.pp * tp, None, None), tp, device)
        self._links = {hops[channel]: cast(GroupLink, link) for channel, link in links.items()}
        self._progress = device.progress(Clock(0.0, 0.0), self._done)
        self._under_way: deque[Step] = deque()
        self._sent: deque[Sent] = deque()
        self._coming: deque[Coming] = deque()
        self._page = Page(page_path(self.vllm_config), self.pp * tp)
        self._row = RankRow(Doing.IDLE, -1, -1, 0.0, None)
        self._entered = self._returned = 0  # batches with tokens
        self._due: deque[Coming] = deque()  # what vLLM will ask for, in this order
        self._ended: deque[Any] = deque()  # what it will be told, except of what is sampled here

    def load_model(self, **options: Any) -> None:
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the worker of a folded server needs its settings")
        self._lag = settings.lags(self.pp)[self.rank_here]
        layers = settings.layers(self.pp, self.model_config.get_total_num_hidden_layers())
        cost = settings.cost(sum(layers))
        self._drift = None if cost is None else BatchDrift(cost, layers)
        self._prompts = Prompts()
        self._places = {
            stage: StagePlace(stage, layers) for stage in (self.rank_here, 2 * self.pp - 1 - self.rank_here)
        }
        self._stages: dict[int, Any] = {
            stage: load_stage(self.vllm_config, place, self.device) for stage, place in self._places.items()
        }
        self.model_runner = self._stages[self.rank_here]  # for what vLLM asks of any runner
        tp = get_tp_group()
        self._shares = Shares(tp, alike=build().rows(self.vllm_config, tp.world_size) == tp.world_size)
        model = self.model_runner.model
        self._sample = model.make_empty_intermediate_tensors(
            batch_size=1, dtype=self.model_config.dtype, device=self.device
        ).tensors

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
                own = set(runner.get_kv_cache_spec())
                config = copy.deepcopy(kv_cache_config)
                for tensor in config.kv_cache_tensors:
                    tensor.shared_by = [name for name in tensor.shared_by if name in own]
                config.kv_cache_tensors = [tensor for tensor in config.kv_cache_tensors if tensor.shared_by]
                for group in config.kv_cache_groups:
                    group.layer_names = [name for name in group.layer_names if name in own]
                runner.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
                runner.initialize_kv_cache(config)

    def _connect(self, kv_cache_config: KVCacheConfig) -> None:
        """Make vLLM's KV connector, if one is asked for: one for the layers of both stages."""
        layers = self.vllm_config.compilation_config.static_forward_context
        for runner in self._stages.values():
            layers.update(runner.vllm_config.compilation_config.static_forward_context)
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        if not has_kv_transfer_group():
            return
        if len(kv_cache_config.kv_cache_groups) > 1:
            raise InputError(
                "cannot fold: a KV connector loads into one kind of KV cache", file=FILE, remedy="no KV transfer"
            )
        for place, seen in zip(self._places.values(), passes(get_kv_transfer_group(), layers), strict=True):
            place.connector = seen

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """A batch's way in, through this rank's first stage; and the way back of one that by now has its turn."""
        here, batch = self.rank_here, scheduler_output
        planned = self._drift.seconds(self._prompts.parts(batch)) if self._drift is not None else ()
        coming = Coming(batch, self._entered, planned)
        made = self._run(here, self._receive(coming, here - 1) if here else coming)
        tokens = bool(batch.total_num_scheduled_tokens)
        if tokens and here == self.pp - 1:
            self._coming.append(coming._replace(tensors=made.tensors))
        else:
            if tokens:
                self._send(here + 1, made)
            self._coming.append(self._receive(coming, here + 1))
        self._entered += tokens
        while here and self._entered - self._returned > self._lag:
            self._go_back()
        if not tokens and not has_kv_transfer_group():
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._due.append(coming)
        return None

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        """vLLM wants what the next batch makes: it goes back, where it has not; rank 0 has the sampler.

        With a KV connector that is also a batch without tokens, since it says who has sent and received.
        """
        due = self._due.popleft()
        if self.rank_here or not due.batch.total_num_scheduled_tokens:
            while not self._ended:
                self._go_back()
            return self._ended.popleft()
        while self._returned <= due.chunk:
            self._go_back()
        last = 2 * self.pp - 1
        with self._doing(Doing.SAMPLE, due.chunk, last), self._places[last].here():
            return self._stages[last].sample_tokens(grammar_output)

    def _go_back(self) -> None:
        """The way back of the next batch, through this rank's second stage."""
        stage = 2 * self.pp - 1 - self.rank_here
        coming = self._coming.popleft()
        made = self._run(stage, coming)
        if coming.tensors is None:
            if has_kv_transfer_group():
                self._ended.append(made)
            return
        self._returned += 1
        if self.rank_here:
            self._send(self.rank_here - 1, made)
            self._ended.append(self._stages[stage].sample_tokens(None))  # a stage that is not the last has no tokens

    def _run(self, stage: int, coming: Coming) -> Any:
        """Run a stage, and return what its model runner does.

        A model runner changes the batch that it is given, so it gets its own; the KV connector's part is one's for all.
        """
        if coming.transfer is not None:
            with self._doing(Doing.RECV, coming.chunk, stage):
                coming.transfer.wait()
        given = None if coming.tensors is None else IntermediateTensors(self._whole(coming))
        planned = coming.planned[stage] if coming.planned and coming.batch.total_num_scheduled_tokens else None
        with self._doing(Doing.FORWARD, coming.chunk, stage, planned), self._places[stage].here():
            shared = coming.batch.kv_connector_metadata
            made = self._stages[stage].execute_model(copy.deepcopy(coming.batch, {id(shared): shared}), given)
            self._check_rows(made, coming.batch.total_num_scheduled_tokens)
        return made

    @contextmanager
    def _doing(self, doing: Doing, chunk: int, stage: int, planned: float | None = None) -> Iterator[None]:
        """Say so on the page, and in the message of what fails meanwhile; note how long it takes.

        A device that queues what it is given is asked later, and then the page says what it has done last.
        """
        self._page.put_rank(self.rank, replace(self._row, doing=doing, chunk=chunk, stage=stage))
        self._under_way.append(Step(doing, chunk, stage, planned))
        start = time.monotonic()
        if self._progress is not None:
            self._progress.begin()
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"rank {self.rank_here}, {instruction(doing, chunk, stage)}: {error}") from error
        if self._progress is None:
            self._done(start, time.monotonic())
        else:
            self._progress.end()

    def _done(self, start: float, end: float) -> None:
        """The oldest instruction under way ran from ``start`` to ``end``."""
        step = self._under_way.popleft()
        if self._drift is not None and step.planned is not None:
            self._drift.window.add(end - start, step.planned)
        busy = self._row.busy + (0.0 if step.doing == Doing.RECV else end - start)
        drift = None if self._drift is None else self._drift.window.drift
        self._row = RankRow(Doing.IDLE, step.chunk, step.stage, busy, drift)
        self._page.put_rank(self.rank, self._row)

    def _check_rows(self, made: Any, tokens: int) -> None:
        """Raises RuntimeError when a stage hands on other rows than the next one takes."""
        found = {len(each) for each in made.tensors.values()} if isinstance(made, IntermediateTensors) else set()
        if found - {build().rows(self.vllm_config, tokens)}:
            raise RuntimeError(f"{tokens} tokens have become {found} rows")

    def _whole(self, coming: Coming) -> dict[str, Tensor]:
        tensors = coming.tensors or {}
        if coming.transfer is None:
            return tensors
        return {
            name: self._shares.whole(part, shape)
            for (name, part), shape in zip(tensors.items(), coming.shapes, strict=True)
        }

    def _send(self, peer: int, made: IntermediateTensors) -> None:
        while self._sent and all(work.is_completed() for work in self._sent[0].transfer.works):
            self._sent.popleft()
        parts = [self._shares.part(tensor.contiguous()) for tensor in made.tensors.values()]
        self._sent.append(Sent(self._links[self.rank_here, peer].send(parts), parts))

    def _receive(self, coming: Coming, peer: int) -> Coming:
        """Post a receive of a batch's activations; of one without tokens there are none."""
        tokens = coming.batch.total_num_scheduled_tokens
        if not tokens:
            return coming
        rows = build().rows(self.vllm_config, tokens)
        shapes = [(rows, *each.shape[1:]) for each in self._sample.values()]
        parts = {
            name: each.new_empty(self._shares.shape(shape))
            for (name, each), shape in zip(self._sample.items(), shapes, strict=True)
        }
        transfer = self._links[peer, self.rank_here].recv(list(parts.values()))
        return coming._replace(tensors=parts, transfer=transfer, shapes=shapes)
