"""Links over a process group of torch.distributed: gloo's, NCCL's or HCCL's, which differ in what a wait is.

gloo's waits block the host. NCCL's and HCCL's put each transfer on a stream of the communicator's own, which waits
at the time of the post for what the current stream has queued, and their wait makes the current stream wait for it.
So a buffer is sent after the FORWARD that wrote it, and received into after the FORWARD that read it last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class GroupLink:
    """Posts straight to the process group: the checks of torch.distributed's own functions cost more than a post."""

    __slots__ = ("group", "peer")

    def __init__(self, group: Any, peer: int) -> None:
        self.group, self.peer = group, peer

    def send(self, tensors: Sequence[torch.Tensor]) -> GroupTransfer:
        return GroupTransfer([self.group.send([tensor], self.peer, 0) for tensor in tensors])

    def recv(self, tensors: Sequence[torch.Tensor]) -> GroupTransfer:
        return GroupTransfer([self.group.recv([tensor], self.peer, 0) for tensor in tensors])


class GroupTransfer:
    """The posted works of one SEND or RECV, one a tensor."""

    __slots__ = ("works",)

    def __init__(self, works: Sequence[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()
