"""A pretended accelerator: streams of kernels that only take time and touch memory, and a judge of their order.

Each stream has a vector clock (Mattern 1989): how much of every stream is known to be over when its next kernel runs.
An event carries its stream's clock to whoever waits for it. A kernel may read what a kernel before it wrote, and write
what kernels before it read and wrote; anything else is a race, and is refused, as is every use of an event that the
real runtime answers with nonsense or silence.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Clock = dict[int, int]


class WrongOrder(Exception):
    """The program did something in an order that is not safe on a real device."""


@dataclass(frozen=True)
class Kernel:
    """A kernel on a stream; the ``tick``-th there."""

    stream: int
    tick: int
    name: str


@dataclass
class Memory:
    """Who wrote a piece of memory last, and who has read it since, by stream."""

    writer: Kernel | None = None
    readers: dict[int, Kernel] = field(default_factory=dict)


class Machine:
    """One device. ``now`` is the host's clock in seconds; ``calls`` is what was asked of the device, in order."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.calls: list[tuple[str, ...]] = []
        self.memory: dict[int, Memory] = {}
        self.ids = itertools.count()
        self.recorded = 0
        self.finished = 0
        """Events up to this number are over. An event that is polled is over at the next look (see :meth:`poll`)."""
        self.most_unfinished = 0
        self.stuck_at: int | None = None
        """The number of the first event that is never over: the device hangs."""
        self.lazy = False
        """Whether events take until somebody looks; otherwise they are over when recorded."""
        self.timed = False
        """Whether events are over when the clock gets to their time."""
        self.threads: set[int] = set()
        """Threads that have set the device, without which the real runtime knows no context."""
        self.compute = Stream(self)

    def check_thread(self) -> None:
        if threading.get_ident() not in self.threads:
            raise RuntimeError("the context of this thread is empty: set_device was not called")

    def touch(self, kernel: Kernel, clock: Clock, reads: Iterable[int], writes: Iterable[int]) -> None:
        """Judge and note what a kernel does to memory; ``clock`` is what is over when it runs."""

        def require(other: Kernel, what: str) -> None:
            if clock.get(other.stream, 0) < other.tick:
                raise WrongOrder(
                    f"{kernel.name} on stream {kernel.stream} {what} {other.name} on stream {other.stream}, "
                    "which it does not wait for"
                )

        for key in reads:
            memory = self.memory.setdefault(key, Memory())
            if memory.writer is not None:
                require(memory.writer, "reads what is written by")
            memory.readers[kernel.stream] = kernel
        for key in writes:
            memory = self.memory.setdefault(key, Memory())
            for reader in memory.readers.values():
                if reader != kernel:
                    require(reader, "writes what is read by")
            if memory.writer is not None:
                require(memory.writer, "writes what is written by")
            memory.writer, memory.readers = kernel, {}

    def over(self, event: Event) -> bool:
        """Whether a recorded event is over."""
        return event.time <= self.now() if self.timed else event.number <= self.finished

    def poll(self, event: Event) -> bool:
        """Whether a recorded event is over; a look at one that is not lets a lazy device finish one more."""
        number = event.number
        if self.timed:
            return self.over(event)
        if number > self.finished and (self.stuck_at is None or self.finished + 1 < self.stuck_at):
            self.finished += 1
            return False
        return number <= self.finished

    def finish(self, number: int) -> None:
        """Everything up to event ``number`` is over."""
        if self.stuck_at is not None and number >= self.stuck_at:
            raise WrongOrder("the host blocks on a device that hangs, and can only be killed")
        self.finished = max(self.finished, number)


class Stream:
    """A queue of kernels that run one after the other."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.id = machine, next(machine.ids)
        self.clock: Clock = {self.id: 0}
        self.free = 0.0
        """When its last kernel is over, in seconds."""

    def launch(self, name: str, reads: Iterable[int] = (), writes: Iterable[int] = (), seconds: float = 0.0) -> None:
        """Queue a kernel that reads and writes pieces of memory and takes ``seconds``."""
        self.clock[self.id] += 1
        self.machine.touch(Kernel(self.id, self.clock[self.id], name), self.clock, reads, writes)
        self.free = max(self.free, self.machine.now()) + seconds

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(self.machine) if event is None else event
        event.record(self)
        return event


class Event:
    """A point in a stream. Methods are those of torch's events."""

    def __init__(self, machine: Machine, enable_timing: bool = False) -> None:
        self.machine, self.enable_timing = machine, enable_timing
        self.number = 0  # of the record; 0 when there was none
        self.clock: Clock = {}
        self.time = 0.0

    def record(self, stream: Stream) -> None:
        machine = self.machine
        machine.check_thread()
        if self.number and not machine.over(self):
            raise WrongOrder("an event is recorded again before it is over: nobody can see any more that it was")
        machine.recorded += 1
        self.number = machine.recorded
        self.clock, self.time = dict(stream.clock), max(stream.free, machine.now())
        if not machine.lazy and not machine.timed and machine.stuck_at is None:
            machine.finished = machine.recorded
        machine.most_unfinished = max(machine.most_unfinished, machine.recorded - machine.finished)

    def wait(self, stream: Stream) -> None:
        if not self.number:
            raise WrongOrder("a stream waits for an event that is not recorded, which is no wait at all")
        for other, tick in self.clock.items():
            stream.clock[other] = max(stream.clock.get(other, 0), tick)
        stream.free = max(stream.free, self.time)

    def query(self) -> bool:
        self.machine.check_thread()
        return not self.number or self.machine.poll(self)

    def synchronize(self) -> None:
        self.machine.finish(self.number)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds."""
        for event in (self, end_event):
            if not event.enable_timing:
                raise RuntimeError("the event was made without enable_timing")
            if not event.number or not self.machine.over(event):
                raise WrongOrder("the time of an event that is not over is asked for, which stops all threads")
        return (end_event.time - self.time) * 1e3


@contextmanager
def unordered(stream: Stream) -> Iterator[None]:
    """What streams are told to wait for in here, this one is not: for programs that a judge must refuse."""
    clock = dict(stream.clock)
    yield
    for other in stream.clock:
        if other != stream.id:
            stream.clock[other] = clock.get(other, 0)
