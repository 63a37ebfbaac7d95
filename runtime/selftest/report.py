"""What the self-test found: as text for people, as JSON, and as a cost file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runtime.devices.settings import Setting
from vppc.environment import Package
from vppc.render.tables import percent, seconds, table

NOISY = 5
"""Times as long as the other way an empty transfer takes on no quiet machine."""


@dataclass(frozen=True, slots=True)
class Process:
    """One of the processes: where it is, what is installed there, and its clock against process 0's, in seconds.

    ``communicators`` are the bytes of device memory that opening its channels took, None on a CPU, ``counted`` those
    that its settings say, None where they are not known.
    """

    process: int
    host: str
    device: str
    packages: tuple[Package, ...]
    clock_offset: float
    clock_uncertainty: float
    communicators: int | None
    counted: int | None

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Process:
        """What a process has said of itself, as :func:`dataclasses.asdict` has it."""
        return cls(**{**said, "packages": tuple(Package(**package) for package in said["packages"])})

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {package.name: package.version for package in self.packages}


@dataclass(frozen=True, slots=True)
class Measured:
    """A channel: a transfer alone takes ``latency`` + ``per_byte`` n seconds. Of the largest one, bytes a second alone,
    beside one the other way, and beside one on every other channel."""

    src: int
    dst: int
    latency: float
    per_byte: float
    bandwidth: float
    bandwidth_both_ways: float
    bandwidth_all_at_once: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found. ``interference`` is by how much compute slows down beside transfers."""

    device: str
    settings: tuple[Setting, ...]
    processes: tuple[Process, ...]
    channels: tuple[Measured, ...]
    interference: float

    @property
    def slowest(self) -> Measured:
        """The channel by which transfers are priced: a cost file has one price for all."""
        return min(self.channels, key=lambda channel: channel.bandwidth)


def report_json(report: Report) -> str:
    """The report with all its numbers."""
    return json.dumps(asdict(report), indent=1) + "\n"


def cost_json(base: Mapping[str, Any], report: Report, bytes_per_token: int) -> str:
    """The cost file ``base`` with the measured transfer and interference, and a note of where they come from."""
    channel = report.slowest
    transfer = {"latency": _digits(channel.latency), "per_token": _digits(channel.per_byte * bytes_per_token)}
    note = {
        "device": report.processes[0].device,
        "ranks": len(report.processes),
        "channel": [channel.src, channel.dst],
        "bytes_per_token": bytes_per_token,
    }
    measured = {"transfer": transfer, "interference": _digits(report.interference), "transfer_measured": note}
    return json.dumps({**base, **measured}, indent=1) + "\n"


def report_text(report: Report) -> str:
    """The report for people."""
    parts = [_unlike(report.processes), _processes(report.processes), _channels(report.channels)]
    parts += _noise(report.channels)
    parts.append(f"interference: compute takes {percent(report.interference)} longer beside transfers")
    return "\n\n".join(filter(None, parts)) + "\n"


def installed_text(device: str, packages: Sequence[Package], settings: Sequence[Setting]) -> str:
    """What is known before anything is measured; ends without a newline."""
    lines = [", ".join(f"{package.name} {package.version}" for package in packages if package.version)]
    lines += [
        f"{package.name} is not installed (for {package.needed}: {package.remedy})"
        for package in packages
        if package.version is None
    ]
    parts = ["\n".join(lines), *([_settings(settings)] if device != "cpu" else [])]
    problems = [f"problem: {setting.name} {setting.problem}" for setting in settings if setting.problem]
    return "\n\n".join([*parts, *problems])


def _unlike(processes: Sequence[Process]) -> str:
    first = processes[0]
    lines = [
        f"problem: process {process.process} has {name} {version or 'not at all'}, process 0 {first.versions[name]}"
        for process in processes
        for name, version in process.versions.items()
        if version != first.versions[name]
    ]
    return "\n".join(lines)


def _processes(processes: Sequence[Process]) -> str:
    headers, rows = ["process", "host", "device", "clock"], []
    for each in processes:
        clock = f"{each.clock_offset:+.6f} s +- {seconds(each.clock_uncertainty)}" if each.process else "the reference"
        rows.append([str(each.process), each.host, each.device, clock])
        if each.communicators is not None:
            counted = "" if each.counted is None else f" ({each.counted / 2**20:.0f} counted)"
            rows[-1].append(f"{each.communicators / 2**20:.0f} MiB{counted}")
    if processes[0].communicators is not None:
        headers.append("communicators")
    return table(headers, rows, "><<<")


def _channels(channels: Sequence[Measured]) -> str:
    rows = [
        [
            f"{channel.src} -> {channel.dst}",
            seconds(channel.latency),
            _rate(channel.bandwidth),
            _rate(channel.bandwidth_both_ways),
            _rate(channel.bandwidth_all_at_once),
        ]
        for channel in channels
    ]
    return table(["channel", "latency", "alone", "both ways", "all at once"], rows)


def _noise(channels: Sequence[Measured]) -> list[str]:
    """Pairs of ranks of which one direction is far slower to answer than the other, which no link is."""
    found = {(channel.src, channel.dst): channel.latency for channel in channels}
    noisy = [
        f"{src} and {dst}"
        for (src, dst), latency in found.items()
        if src < dst and (dst, src) in found and max(latency, found[dst, src]) > NOISY * min(latency, found[dst, src])
    ]
    if not noisy:
        return []
    return [
        f"noisy: between {', '.join(noisy)} one direction's latency is more than {NOISY} times the other's. Was the "
        "machine busy? Measure again when it is idle"
    ]


def _settings(settings: Sequence[Setting]) -> str:
    rows = [
        [setting.name, f"({setting.default})" if setting.value is None else setting.value, setting.meaning]
        for setting in settings
    ]
    return table(["setting", "value", "what it is"], rows, "<<<")


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e9:.2f} GB/s"


def _digits(value: float) -> float:
    """Four significant digits: more are noise."""
    return float(f"{value:.4g}")
