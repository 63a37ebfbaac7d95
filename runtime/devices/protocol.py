"""What the runtime asks of a device and its links, behind one small protocol.

On a CPU a WAIT blocks the host. On an accelerator the host only queues work: a WAIT makes the compute stream wait
for the transfer, and what must be polled to notice a stall are events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Transfer(Protocol):
    """A posted SEND or RECV."""

    def wait(self) -> None:
        """Block the program (the host, or the compute stream) until the transfer is complete; raises if it failed."""
        ...


class Link(Protocol):
    """One process's end of a channel: a communicator of its own, so that channels never block each other."""

    def send(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        """Post a send of the tensors, in order; does not block."""
        ...

    def recv(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        """Post a receive into the tensors, in order; does not block."""
        ...


class Device(Protocol):
    """Where a process computes, and how it talks."""

    @property
    def name(self) -> str:
        """``cpu``, ``cuda`` or ``npu``."""
        ...

    @property
    def backend(self) -> str:
        """The torch.distributed backend of its links."""
        ...

    @property
    def torch_device(self) -> torch.device: ...

    def link(self, group: Any, peer: int) -> Link:
        """The end of a channel to ``peer`` (its rank in the two-member process group ``group``)."""
        ...

    def synchronize(self) -> None:
        """Block the host until all queued work is done."""
        ...
