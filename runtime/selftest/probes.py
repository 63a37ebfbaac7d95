"""Measures what transfers take, alone and at once, and what they do to the compute beside them.

All processes call the methods of :class:`Probe` together and in one order; each returns the same on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Device, Link, Transfer
from runtime.world import World
from vppc.costs.least_squares import nonnegative, normal_equations
from vppc.costs.model import Linear
from vppc.ir.schedule import Channel

BATCHES = 5
"""Of each figure so many are measured, and the median is taken."""
LOOP_SECONDS = 0.05
"""What a loop of compute takes at least when it is measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A transfer of so many bytes takes so many seconds."""

    bytes: int
    seconds: float


def ring(ranks: int) -> tuple[Channel, ...]:
    """The channels of a pipeline: both ways between neighbours, and between the last and the first."""
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks if ranks > 2 else ranks - 1)]
    ends = [end for a, b in pairs for end in ((a, b), (b, a))]
    return tuple(Channel(number, src, dst) for number, (src, dst) in enumerate(ends))


def fit(points: Sequence[Point]) -> Linear:
    """Latency, and seconds a byte (``per_token``), neither negative: the least sum of squared relative errors.

    Relative, since sizes span orders of magnitude: absolute errors of large transfers would drown the latency.
    """
    columns = ([1 / point.seconds for point in points], [point.bytes / point.seconds for point in points])
    problem = normal_equations(columns, [1.0] * len(points))
    latency, per_byte = problem.unscaled(nonnegative(problem.gram, problem.moments))
    return Linear(latency, per_byte)


class Probe:
    """Measures the ``links`` of this process, by channel; every channel has one the other way."""

    def __init__(
        self,
        world: World,
        device: Device,
        clock: Clock,
        channels: Sequence[Channel],
        links: Mapping[int, Link],
        doing: Callable[[str], None],
    ) -> None:
        """``doing`` is told what is measured, for when it hangs."""
        self.world, self.device, self.clock, self.doing = world, device, clock, doing
        self.channels, self.links = channels, links
        self.numbers = {(channel.src, channel.dst): channel.id for channel in channels}

    def alone(self, channel: Channel, sizes: Sequence[int]) -> list[Point]:
        """Transfers on one channel while all others are silent.

        There and back, with one byte back, so that one clock sees both ends; half of what one byte takes both ways
        goes off for the way back.
        """
        self.doing(f"measuring channel {channel.id}, rank {channel.src} -> rank {channel.dst}")
        points: list[Point] = []
        if self.world.process in (channel.src, channel.dst):
            both_ways = self._repeated(self._there_and_back(channel, 1), _repeats(1))
            points.append(Point(1, both_ways / 2))
            for size in sizes:
                seconds = self._repeated(self._there_and_back(channel, size), _repeats(size))
                points.append(Point(size, max(seconds - both_ways / 2, both_ways / 2)))
        said = self.world.gather([[point.bytes, point.seconds] for point in points])
        return [Point(int(size), seconds) for size, seconds in said[channel.src]]

    def crossing(self, a: int, b: int, size: int) -> float:
        """Seconds of a transfer each way between two ranks at once, both posted before either is waited for."""
        self.doing(f"measuring both ways between rank {a} and rank {b}")
        seconds = 0.0
        if self.world.process in (a, b):
            seconds = self._repeated(self._all_at_once(size, {self.numbers[a, b], self.numbers[b, a]}), _repeats(size))
        return max(self.world.gather(seconds))

    def together(self, size: int) -> float:
        """Seconds of a transfer on every channel at once."""
        self.doing("measuring all channels at once")
        return max(self.world.gather(self._repeated(self._all_at_once(size, set(self.links)), _repeats(size))))

    def interference(self, size: int, transfer_seconds: float) -> float:
        """By how much compute slows down beside transfers on all channels, of which one takes ``transfer_seconds``.

        0.1: what takes 1 s alone takes 1.1 s. The mean over the ranks, which all compute at once in both cases.
        """
        self.doing("measuring compute beside transfers")
        loop, seconds = self._loop()
        send, receive = self._tensor(size), {channel: self._tensor(size) for channel in self.links}
        flood = 1 + int(2 * seconds / transfer_seconds)  # enough for twice as long as the loop takes alone
        slower = []
        for _ in range(BATCHES):
            self.world.gather(None)
            alone = self._timed(loop)
            posted: list[Transfer] = []

            def post(posted: list[Transfer] = posted) -> None:
                self.world.gather(None)
                for _ in range(flood):
                    posted.extend(self._post(channel, send, receive[channel]) for channel in self.links)

            beside = self._timed(loop, post)
            for transfer in posted:
                transfer.wait()
            self.device.synchronize()
            slower.append(beside / alone - 1)
        return max(0.0, statistics.fmean(self.world.gather(statistics.median(slower))))

    def _there_and_back(self, channel: Channel, size: int) -> Callable[[], None]:
        """Bytes on the channel, and then one byte back."""
        there, back = self.links[channel.id], self.links[self.numbers[channel.dst, channel.src]]
        data, one = (self._tensor(size),), (self._tensor(1),)

        def ask() -> None:
            there.send(data).wait()
            back.recv(one).wait()

        def answer() -> None:
            there.recv(data).wait()
            back.send(one).wait()

        return ask if self.world.process == channel.src else answer

    def _all_at_once(self, size: int, channels: set[int]) -> Callable[[], None]:
        send = self._tensor(size)
        receive = {channel: self._tensor(size) for channel in channels}

        def exchange() -> None:
            # sends first at both ends: on one communicator for both ways this would hang
            for transfer in [self._post(channel, send, receive[channel]) for channel in self._sends_first(channels)]:
                transfer.wait()

        return exchange

    def _sends_first(self, channels: set[int]) -> list[int]:
        return sorted(channels, key=lambda channel: (self.channels[channel].src != self.world.process, channel))

    def _post(self, channel: int, send: torch.Tensor, receive: torch.Tensor) -> Transfer:
        if self.channels[channel].src == self.world.process:
            return self.links[channel].send((send,))
        return self.links[channel].recv((receive,))

    def _tensor(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self.device.torch_device)

    def _loop(self) -> tuple[Callable[[], None], float]:
        """Products of matrices that keep every device busy for LOOP_SECONDS or more, and how long that is."""
        width, dtype = (384, torch.float32) if self.device.name == "cpu" else (4096, torch.bfloat16)
        a = torch.ones(width, width, dtype=dtype, device=self.device.torch_device)
        out = torch.empty_like(a)

        def products(times: int) -> None:
            for _ in range(times):
                torch.mm(a, a, out=out)

        products(3)  # the first one also loads kernels
        one = max(self.world.gather(self._timed(lambda: products(3)) / 3))
        times = max(1, round(LOOP_SECONDS / one))
        return lambda: products(times), one * times

    def _repeated(self, work: Callable[[], None], repeats: int) -> float:
        """Seconds of ``work``, of which ``repeats`` are done in a row: the median of some batches after one more."""

        def batch() -> None:
            for _ in range(repeats):
                work()

        work()
        return statistics.median(self._timed(batch) for _ in range(BATCHES)) / repeats

    def _timed(self, work: Callable[[], None], before: Callable[[], object] = lambda: None) -> float:
        """Seconds that the device takes for ``work``, after ``before``, whose own time does not count."""
        spent: list[float] = []
        progress = self.device.progress(self.clock, lambda start, end: spent.append(end - start))
        before()
        if progress is None:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        progress.begin()
        work()
        progress.end()
        progress.drain()
        return spent[0]


def _repeats(size: int) -> int:
    """How many transfers of a size are measured in a row: the same number on all processes, some 16 MiB in all."""
    return max(2, min(40, 2**24 // size))
