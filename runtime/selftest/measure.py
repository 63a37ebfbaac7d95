"""The course of the self-test: meet, open channels, measure each, report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict

from runtime.channels import open_links
from runtime.clock import agree
from runtime.devices.npu import cann_version
from runtime.devices.settings import check_settings
from runtime.faults import State
from runtime.selftest.probes import Probe, fit, ring
from runtime.selftest.report import Measured, Process, Report
from runtime.session import Session
from vppc.environment import Package, packages
from vppc.errors import InputError

SMALLEST, GROWTH = 4096, 4
LARGEST = {"cpu": 2**23, "cuda": 2**26, "npu": 2**26}
"""Bytes of the largest transfer that is measured, unless told."""


def measure(session: Session, max_bytes: int | None = None, *, aloud: bool = False) -> Report:
    """What this process and the others find together; all call it, and get the same. InputError for one alone.

    ``aloud``: say on stderr what is done.
    """
    if session.world.size == 1:
        raise InputError("measures transfers between processes, and there is one", file="--selftest", remedy="--pp 2")

    def doing(words: str) -> None:
        session.position.prepare(words, State.WAITING)
        if aloud:
            sys.stderr.write(f"{words} ..\n")

    world, device = session.world, session.device
    doing("comparing clocks")
    clock = agree(world.process, world.size)
    channels = ring(world.size)
    free = device.free_memory()
    links = open_links(
        channels,
        world,
        1,
        device,
        lambda channel: doing(f"opening channel {channel.id}, rank {channel.src} -> rank {channel.dst}"),
    )
    left = device.free_memory()
    process = Process(
        world.process,
        platform.node(),
        device.describe(),
        installed(device.name),
        clock.offset,
        clock.uncertainty,
        None if free is None or left is None else free - left,
        device.communicator_bytes(sum(world.process in (channel.src, channel.dst) for channel in channels), 1),
    )
    probe = Probe(world, device, clock, channels, links, doing)
    measured, interference = _transfers(probe, _sizes(max_bytes or LARGEST[device.name]))
    settings = check_settings(device.name, os.environ)
    processes = tuple(map(Process.read, world.gather(asdict(process))))
    return Report(device.name, settings, processes, measured, interference)


def _transfers(probe: Probe, sizes: Sequence[int]) -> tuple[tuple[Measured, ...], float]:
    """Every channel, and the interference."""
    largest = sizes[-1]
    alone = [probe.alone(channel, sizes) for channel in probe.channels]
    crossing = [probe.crossing(channel.src, channel.dst, largest) for channel in probe.channels[::2]]
    together = probe.together(largest)
    measured = []
    for channel, points in zip(probe.channels, alone, strict=True):
        line = fit(points)
        times = (points[-1].seconds, crossing[channel.id // 2], together)
        rates = [largest / seconds for seconds in times]
        measured.append(Measured(channel.src, channel.dst, line.fixed, line.per_token, *rates))
    return tuple(measured), probe.interference(largest, together)


def installed(device: str) -> tuple[Package, ...]:
    """What is installed for a device of that kind."""
    if device != "npu":
        return packages()
    return (*packages(), Package("CANN", cann_version() or None, "Ascend NPUs", "the CANN toolkit"))


def _sizes(largest: int) -> list[int]:
    sizes = [SMALLEST]
    while sizes[-1] * GROWTH <= largest:
        sizes.append(sizes[-1] * GROWTH)
    return sizes
