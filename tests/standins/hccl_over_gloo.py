"""A pretended HCCL: gloo moves the bytes, a pretended device judges the order.

As ProcessGroupHCCL does it: a group's communicator has a stream of its own; at the post it waits for what the current
stream has queued, then the kernel is queued on it, then an end event; a work's ``wait`` makes the current stream wait
for the end event. (The bytes are there only when gloo says so, so here ``wait`` blocks the host as well.)
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from machine import Event, Machine, Stream, WrongOrder
from torch.utils._python_dispatch import _disable_current_modes


def key(tensor: torch.Tensor) -> int:
    """The piece of memory that a tensor is in."""
    return tensor.untyped_storage().data_ptr()


class HcclWork(dist._Work):
    """A transfer or collective under way."""

    def __init__(self, work: Any, done: Event, machine: Machine) -> None:
        super().__init__()
        self.work, self.done, self.machine = work, done, machine

    def is_completed(self) -> bool:
        """Whether the kernel is over; if so, whatever the host queues from now on comes after it."""
        over = bool(self.work.is_completed()) and self.done.query()
        if over:
            self.done.wait(self.machine.compute)
        return over

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.done.wait(self.machine.compute)
        return bool(self.work.wait())


class HcclOverGloo(dist.ProcessGroup):
    """A process group whose kernels are noted on ``machine``, on a stream of the group's own."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, machine: Machine) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.machine, self.stream = machine, Stream(machine)

    def getBackendName(self) -> str:
        return "hccl"

    def send(self, tensors: list[torch.Tensor], dst_rank: int, tag: int) -> HcclWork:
        return self._post("HcclSend", tensors, (), lambda: self.gloo.send(tensors, dst_rank, tag))

    def recv(self, tensors: list[torch.Tensor], src_rank: int, tag: int) -> HcclWork:
        return self._post("HcclRecv", (), tensors, lambda: self.gloo.recv(tensors, src_rank, tag))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> HcclWork:
        return self._post("HcclAllReduce", tensors, tensors, lambda: self.gloo.allreduce(tensors, opts))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> HcclWork:
        return self._post("HcclBroadcast", tensors, tensors, lambda: self.gloo.broadcast(tensors, opts))

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> HcclWork:
        return self._post("HcclAllGather", [given], [output], lambda: self.gloo._allgather_base(output, given, opts))

    all_gather_single = _allgather_base  # as newer versions of torch call it

    def _post(self, name: str, reads: Any, writes: Any, start: Callable[[], Any]) -> HcclWork:
        for tensor in (*reads, *writes):
            if not tensor.is_contiguous():
                raise WrongOrder(f"{name} of a tensor that is not contiguous: HCCL takes an address and a length")
        self.machine.check_thread()
        self.machine.calls.append((name,))
        self.stream.wait_stream(self.machine.compute)
        self.stream.launch(name, map(key, reads), map(key, writes))
        with _disable_current_modes():  # gloo's own operations, in its own threads, are no kernels
            work = start()
        return HcclWork(work, self.stream.record_event(), self.machine)
