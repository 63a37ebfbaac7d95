"""Channels and the world: who talks to whom, opened by all in one order before the first instruction.

Communicators that are made lazily, at first use, are entered in different orders by different ranks and hang. So
every process makes every group, in the order of the schedule's channels, and then a first message goes over each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.devices.protocol import Device, Link
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class World:
    """All processes of a run: this one's number, how many there are, and the store that they share."""

    process: int
    size: int
    store: Any

    @classmethod
    def join(cls, timeout: float) -> World:
        """Meet the other processes, as the launcher's environment says; the control group is gloo's."""
        limit = timedelta(seconds=timeout)
        store, process, size = next(dist.rendezvous("env://", timeout=limit))
        dist.init_process_group("gloo", store=dist.PrefixStore("world", store), rank=process, world_size=size, timeout=limit)
        return cls(process, size, dist.PrefixStore("vppc", store.clone()))

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, at every process."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        dist.barrier()

    def leave(self) -> None:
        dist.destroy_process_group()


def open_links(schedule: Schedule, world: World, tp: int, device: Device) -> Mapping[int, Link]:
    """This process's ends of its channels, by channel id; opened and used once, in the same order everywhere.

    A channel joins equal tensor-parallel ranks: process ``rank * tp + tp rank``.
    """
    links: dict[int, Link] = {}
    for channel in schedule.channels:
        for shard in range(tp):
            ends = [channel.src * tp + shard, channel.dst * tp + shard]
            group = dist.new_group(ends, backend=device.backend)
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
        dist.new_group(list(range(rank * tp, rank * tp + tp)), backend=device.backend) for rank in range(schedule.pp)
    ]
    return groups[world.process // tp]
