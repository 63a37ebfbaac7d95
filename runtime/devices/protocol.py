"""What the runtime asks of a device and its links, behind one small protocol.

On a CPU work is done when a call returns, and a WAIT blocks the host. On an accelerator the host only queues work
on the compute stream, which then is the thread of control that the program was proven and priced for: a transfer is
posted when the stream gets there, and a WAIT makes the stream wait, not the host. What tells where the device is,
and keeps the host from running far ahead of it, is the device's :class:`Progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from runtime.clock import Clock


class Transfer(Protocol):
    """A posted SEND or RECV."""

    def wait(self) -> None:
        """Block the program (the host, or the compute stream) until the transfer is complete; raises if it failed."""
        ...


class Link(Protocol):
    """One process's end of a channel: a communicator of its own, so that channels never block each other."""

    def send(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        """Post a send of the tensors, in order, behind what the program has done so far; does not block."""
        ...

    def recv(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        """Post a receive into the tensors, in order, behind what the program has done so far; does not block."""
        ...


class Progress(Protocol):
    """Where a device is in the program that the host queues. ``begin`` and ``end`` go around each instruction.

    What is finished is found, and reported, when the host looks: in ``end``, ``settled`` and ``drain``.
    """

    def begin(self) -> None:
        """The next instruction is about to be queued."""
        ...

    def end(self) -> None:
        """It is queued. Blocks while too many are queued that the device has not finished."""
        ...

    def settled(self) -> bool:
        """Whether the device has finished all that is queued. Does not block."""
        ...

    def drain(self) -> None:
        """Block until the device has finished all that is queued."""
        ...

    def unfinished(self) -> int | None:
        """The first queued instruction that the device has not finished, None when there is none. From any thread."""
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

    def progress(self, clock: Clock, report: Callable[[float, float], None] | None = None) -> Progress | None:
        """A new program's progress, None where the host does the work itself.

        ``report`` gets the start and the end of each instruction, in order, on ``clock``, when they are known.
        """
        ...

    def describe(self) -> str:
        """What it is, in a few words."""
        ...

    def communicator_bytes(self, channels: int, tp: int) -> int | None:
        """Bytes of device memory that a process with so many channels, one of ``tp`` of its rank, needs to talk; None
        where that is not known."""
        ...

    def free_memory(self) -> int | None:
        """Bytes of device memory that nobody uses, None where that is no fixed amount."""
        ...
