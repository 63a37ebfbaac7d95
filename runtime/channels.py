"""Channels and the world: who talks to whom, opened by all in one order before the first instruction.

Communicators that are made lazily, at first use, are entered in different orders by different ranks and hang. So
every process makes every group, in the order of the schedule's channels, and then a first message goes over each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from runtime.devices.protocol import Device, Link
from runtime.faults import RunFailed
from vppc.errors import InputError, VppcError
from vppc.ir.schedule import Schedule

T = TypeVar("T")


FOREVER = timedelta(days=365)
"""No limit of the process groups' own: how long a WAIT may take is for the watchdog to judge."""


@dataclass(frozen=True, slots=True)
class World:
    """All processes of a run: this one's number, how many there are, and the store that they share."""

    process: int
    size: int
    store: Any

    @classmethod
    def join(cls, timeout: float) -> World:
        """Meet the other processes, as the launcher's environment says; the control group is gloo's.

        Raises InputError when no launcher has set the environment, RunFailed when the others do not come.
        """
        if "RANK" not in os.environ:
            raise InputError(
                "is to be started by torchrun, which tells each process its rank",
                file="runtime",
                remedy="torchrun --nproc-per-node P -m runtime SCHEDULE",
            )
        limit = timedelta(seconds=timeout)
        try:
            store, process, size = next(rendezvous("env://", timeout=limit))
            dist.init_process_group(
                "gloo", store=PrefixStore("world", store), rank=process, world_size=size, timeout=FOREVER
            )
        except (RuntimeError, ValueError) as error:  # torch's own for a port in use, and for who never comes
            raise RunFailed(f"process {os.environ['RANK']} cannot meet the others: {error}") from None
        return cls(process, size, store)

    def connection(self, name: str) -> Any:
        """A store of its own over a connection of its own, so that no one else's waiting holds it up."""
        return PrefixStore(name, self.store.clone())

    def gather(self, value: T) -> list[T]:
        """Every process's value, at every process."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` returns. When it fails on any process, it fails on all, and says on which and why."""
        result: list[T] = []
        error: VppcError | None = None
        try:
            result.append(work())
        except VppcError as failure:
            error = failure
        said = self.gather("" if error is None else str(error))
        if error is not None:
            raise error
        for process, text in enumerate(said):
            if text:
                raise RunFailed(f"process {process} cannot run: {text}")
        return result[0]

    def leave(self) -> None:
        """Say goodbye, all together."""
        dist.barrier()
        dist.destroy_process_group()


def open_links(schedule: Schedule, world: World, tp: int, device: Device) -> Mapping[int, Link]:
    """This process's ends of its channels, by channel id; opened and used once, in the same order everywhere.

    A channel joins equal tensor-parallel ranks: process ``rank * tp + tp rank``.
    """
    links: dict[int, Link] = {}
    for channel in schedule.channels:
        for shard in range(tp):
            ends = [channel.src * tp + shard, channel.dst * tp + shard]
            group = dist.new_group(ends, backend=device.backend, timeout=FOREVER)
            if world.process in ends:
                # group ranks follow the order of the processes' numbers, whatever the order given
                peer = sorted(ends).index(ends[1 - ends.index(world.process)])
                links[channel.id] = device.link(group, peer)
    for channel in schedule.channels:
        first = (torch.zeros(1, device=device.torch_device),)
        if world.process // tp == channel.src:
            links[channel.id].send(first).wait()
        elif world.process // tp == channel.dst:
            links[channel.id].recv(first).wait()
    device.synchronize()
    return links


def tensor_group(schedule: Schedule, world: World, tp: int, device: Device) -> Any:
    """The process group of this process's pipeline rank, for collectives inside a stage; None without any."""
    if tp == 1:
        return None
    groups = [
        dist.new_group(list(range(rank * tp, rank * tp + tp)), backend=device.backend, timeout=FOREVER)
        for rank in range(schedule.pp)
    ]
    return groups[world.process // tp]
