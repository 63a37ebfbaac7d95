"""Executors of replicas in step: what is left to agree on when their engines pass in step, see
:mod:`runtime.vllm_plugin.replicas`."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from runtime.vllm_plugin.executor import FoldExecutor
from runtime.vllm_plugin.replicas import dummy
from runtime.vllm_plugin.settings import Fold, read_settings
from vppc.serving.batch_order import Leg


class Pace:
    """What the engines of all replicas do next."""

    def __init__(self, parallel: Any) -> None:
        """A group of the engines, made by vLLM as it makes its own."""
        self._group = parallel.stateless_init_dp_group()

    def leaves(self, *, wanted: bool) -> bool:
        """Whether the oldest chunk leaves now, on all replicas, as at least one of them has ``wanted``. Else all have a
        chunk to enter. Blocks until each has said."""
        said = torch.tensor([int(wanted)])
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        return bool(said)


class PacedExecutor(FoldExecutor):
    """A folded server's executor in step with those of the other replicas."""

    def _init_executor(self) -> None:
        settings = read_settings(self.vllm_config.additional_config)
        if not isinstance(settings, Fold):
            raise ValueError("the executor of a folded server needs its settings")
        self._most = settings.in_flight(self.parallel_config.pipeline_parallel_size)
        self._pace = Pace(self.parallel_config)
        self._dummies: deque[Any] = deque()
        super()._init_executor()

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            self._meet()
        return super().execute_model(scheduler_output, non_block=non_block)

    def execute_dummy_batch(self) -> None:
        """vLLM's engine has no batch, and another replica may have one. What has left is waited for, so that no more
        answers come than are read."""
        self.execute_model(dummy(), non_block=True)
        self._dummies.append(self.sample_tokens(None, non_block=True))
        while self._dummies and self._dummies[0].reply is not None:
            self._dummies.popleft().result()

    def ask(self, leg: Leg | None = None) -> None:
        if leg is None and self._due[0].chunk:
            self._pace.leaves(wanted=True)
        super().ask(leg)

    def _meet(self) -> None:
        """Until all replicas enter a chunk: chunks leave that there is no room for, or that one of them waits for."""
        while self._pace.leaves(wanted=len(self._due) == self._most):
            super().ask()
