"""vllm_ascend.distributed.device_communicators.npu_communicator: experts exchange tokens between replicas, over gloo.

vLLM's layers of experts for CPUs exchange with all-gather and reduce-scatter, which its communicator for CPUs lacks for
parts of unequal length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class NPUCommunicator(DeviceCommunicatorBase):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.use_all2all:
            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

    def dispatch_router_logits(self, *args: Any, **kwargs: Any) -> Any:
        return self.all2all_manager.dispatch_router_logits(*args, **kwargs)

    def combine(self, hidden_states: Tensor, is_sequence_parallel: bool = False) -> Tensor:
        return self.all2all_manager.combine(hidden_states, is_sequence_parallel)

    def all_gatherv(self, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        """The rows of all members, in their order; of each member so many."""
        if isinstance(input_, list):
            return [self.all_gatherv(each, dim, sizes) for each in input_]
        assert dim == 0 and sizes is not None
        parts = [input_.new_zeros(max(sizes), *input_.shape[1:]) for _ in sizes]
        mine = parts[self.rank_in_group].clone()
        mine[: len(input_)] = input_
        dist.all_gather(parts, mine, group=self.cpu_group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def reduce_scatterv(self, input_: Tensor, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
        """The sum over the members of the rows that are this one's."""
        assert dim == 0 and sizes is not None
        whole = input_.contiguous().clone()
        dist.all_reduce(whole, group=self.cpu_group)
        return whole.split(sizes)[self.rank_in_group].clone()
