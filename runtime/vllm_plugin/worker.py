"""The worker of a folded server: a pipeline rank with two virtual stages, each on a model runner of its own.

Of P ranks, rank r has stages r and 2 P - 1 - r; the last rank has the two in the middle, and no transfer between them.
All workers get the same calls in the same order, and each batch comes by in every stage, also one without tokens,
which tells who has finished. A call waits only for what an earlier call, or the same on the rank before, has sent; so
the workers cannot wait for each other in a circle.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.parallel_state import get_pp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.cpu_worker import CPUWorker

from runtime.devices.links import GroupLink, GroupTransfer
from runtime.runners.vllm.upstream import StagePlace, StageRunner, load_stage
from runtime.vllm_plugin.settings import FILE, Fold, read_settings
from vppc.errors import InputError


class Sent(NamedTuple):
    """Tensors that are on their way."""

    transfer: GroupTransfer
    tensors: list[Tensor]


class Coming(NamedTuple):
    """A batch that is to come back: of one with tokens, its receive, and the tensors that it fills."""

    batch: SchedulerOutput
    transfer: GroupTransfer | None = None
    tensors: dict[str, Tensor] | None = None


class FoldWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's worker for CPUs, with two stages."""

    def init_device(self) -> None:
        if self.use_v2_model_runner:
            raise InputError("cannot fold: stages are V1 model runners", file=FILE, remedy="VLLM_USE_V2_MODEL_RUNNER=0")
        super().init_device()
        group = get_pp_group()
        self.rank_here, self.pp = group.rank_in_group, group.world_size
        # one group for each direction of each pair of neighbours, made by all ranks in the same order
        links = {}
        for low in range(self.pp - 1):
            for ends in ((low, low + 1), (low + 1, low)):
                made = dist.new_group([group.ranks[low], group.ranks[low + 1]], backend="gloo")
                if self.rank_here in ends:
                    peer = ends[1 - ends.index(self.rank_here)]
                    links[ends] = GroupLink(made, peer - low)
        self._links = links
        self._sent: deque[Sent] = deque()
        self._coming: deque[Coming] = deque()

    def load_model(self, **options: Any) -> None:
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the worker of a folded server needs its settings")
        layers = settings.layers(self.pp, self.model_config.get_total_num_hidden_layers())
        self._places = {
            stage: StagePlace(stage, layers) for stage in (self.rank_here, 2 * self.pp - 1 - self.rank_here)
        }
        self._stages: dict[int, StageRunner] = {
            stage: load_stage(self.vllm_config, place) for stage, place in self._places.items()
        }
        self.model_runner = self._stages[self.rank_here]  # for what vLLM asks of any runner

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for stage, runner in self._stages.items():
            with self._places[stage].here():
                found |= runner.get_kv_cache_spec()
        return found

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Each stage binds its layers' part of the rank's KV cache; blocks have the same numbers in all of them."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
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

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """A batch's way in: this rank's first stage, on the last rank both."""
        here, tokens = self.rank_here, scheduler_output.total_num_scheduled_tokens
        inputs = self._receive(here - 1, tokens) if here and tokens else None
        made = self._run(here, scheduler_output, self._arrived(inputs))
        if here == self.pp - 1:
            made = self._run(self.pp, scheduler_output, made)
            self._send(here - 1, made)
        else:
            self._send(here + 1, made)
            back = self._receive(here + 1, tokens) if tokens else None
            self._coming.append(Coming(scheduler_output, *(back or ())))
        return None if tokens else EMPTY_MODEL_RUNNER_OUTPUT

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        """The way back of the next batch with tokens: this rank's second stage, and on rank 0 the sampler."""
        if self.rank_here == self.pp - 1:
            return None
        last = 2 * self.pp - 1 - self.rank_here
        while True:
            coming = self._coming.popleft()
            arrived = self._arrived((coming.transfer, coming.tensors)) if coming.transfer is not None else None
            made = self._run(last, coming.batch, arrived)
            if coming.transfer is not None:
                break
        if self.rank_here:
            self._send(self.rank_here - 1, made)
            return None
        with self._places[last].here():
            return self._stages[last].sample_tokens(grammar_output)

    def _run(self, stage: int, batch: SchedulerOutput, inputs: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Run a stage; what goes to the next. A model runner changes the batch that it is given, so it gets its own."""
        given = None if inputs is None else IntermediateTensors(inputs)
        with self._places[stage].here():
            made = self._stages[stage].execute_model(copy.deepcopy(batch), given)
        return dict(made.tensors) if isinstance(made, IntermediateTensors) else None

    def _send(self, peer: int, tensors: dict[str, Tensor] | None) -> None:
        while self._sent and all(work.is_completed() for work in self._sent[0].transfer.works):
            self._sent.popleft()
        if tensors is not None:
            parts = [tensor.contiguous() for tensor in tensors.values()]
            self._sent.append(Sent(self._links[self.rank_here, peer].send(parts), parts))

    def _receive(self, peer: int, tokens: int) -> tuple[GroupTransfer, dict[str, Tensor]]:
        """Post a receive of a batch's activations."""
        runner = self.model_runner
        room = runner.model.make_empty_intermediate_tensors(
            batch_size=tokens, dtype=runner.model_config.dtype, device=runner.device
        )
        return self._links[peer, self.rank_here].recv(list(room.tensors.values())), dict(room.tensors)

    @staticmethod
    def _arrived(coming: tuple[GroupTransfer, dict[str, Tensor] | None] | None) -> dict[str, Tensor] | None:
        if coming is None:
            return None
        coming[0].wait()
        return coming[1]
