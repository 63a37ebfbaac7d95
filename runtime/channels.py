"""Channels: who talks to whom, opened by all processes in one order before the first instruction.

Communicators that are made lazily, at first use, are entered in different orders by different ranks and hang. So
every process makes every group, in the order of the schedule's channels, and then a first message goes over each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from runtime.devices.protocol import Device, Link
from runtime.world import World
from vppc.ir.schedule import Channel, Schedule


def open_links(
    channels: Sequence[Channel],
    world: World,
    tp: int,
    device: Device,
    opening: Callable[[Channel], None] = lambda channel: None,
) -> Mapping[int, Link]:
    """This process's ends of its channels, by channel id; opened and used once, in the same order everywhere.

    A channel joins equal tensor-parallel ranks: process ``rank * tp + tp rank``. ``opening`` is told each channel
    before it is opened, and again before it is used.
    """
    links: dict[int, Link] = {}
    made: dict[tuple[int, int], int] = {}
    for channel in channels:
        opening(channel)
        number = made[channel.src, channel.dst] = made.get((channel.src, channel.dst), 0) + 1
        for shard in range(tp):
            ends = [channel.src * tp + shard, channel.dst * tp + shard]
            group = world.group(ends, device.backend, number)
            if world.process in ends:
                # group ranks follow the order of the processes' numbers, whatever the order given
                peer = sorted(ends).index(ends[1 - ends.index(world.process)])
                links[channel.id] = device.link(group, peer)
    for channel in channels:
        opening(channel)
        first = (torch.zeros(1, device=device.torch_device),)
        if world.process // tp == channel.src:
            links[channel.id].send(first).wait()
        elif world.process // tp == channel.dst:
            links[channel.id].recv(first).wait()
    device.synchronize()
    return links


def tensor_group(schedule: Schedule, world: World, tp: int, backend: str, number: int = 0) -> Any:
    """The process group of this process's pipeline rank, for collectives inside a stage; None without any.

    ``number`` tells several of them apart.
    """
    if tp == 1:
        return None
    groups = [world.group(range(rank * tp, rank * tp + tp), backend, number) for rank in range(schedule.pp)]
    return groups[world.process // tp]


def agreement(schedule: Schedule, world: World, tp: int) -> Callable[[list[bool]], list[bool]] | None:
    """Gives all processes of a pipeline rank the flags of its first one, without its device; None for one process."""
    group = tensor_group(schedule, world, tp, "gloo", 1)
    if group is None:
        return None

    def agree(flags: list[bool]) -> list[bool]:
        said = torch.tensor(flags)
        dist.broadcast(said, world.process // tp * tp, group=group)
        return [bool(each) for each in said.tolist()]

    return agree
