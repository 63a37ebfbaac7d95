"""The interpreter: runs one rank's program, one dispatch an instruction, and decides nothing.

What order, which buffer, when to wait: all of that is in the program, and was proven before it came here. The
interpreter keeps only what an instruction cannot carry: the posted transfers, the chunks' prepared states, and
which requests are cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Link, Progress, Transfer
from runtime.faults import Position, RunFailed
from runtime.plan import Plan
from runtime.runners.protocol import Buffer, Runner
from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT, Row
from vppc.ir.schedule import Schedule

Mark: TypeAlias = Callable[[int], AbstractContextManager[Any]]
"""Gives the context in which the instruction with that index is to run."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token made for a request, and when: in seconds from the request's arrival (the first one's is its TTFT)."""

    request: int
    token: int
    seconds: float


@dataclass(slots=True)
class Cancellation:
    """Requests to cancel: ``at[r]`` is the chunk from which on request r is not computed any more.

    Processes that compute a stage together have to leave out the same parts, whenever each of them learns of it.
    ``agree`` gives every one of them what the first of them says, flag by flag; all call it together.
    """

    at: dict[int, int] = field(default_factory=dict)
    agree: Callable[[list[bool]], list[bool]] | None = None

    def now(self, request: int) -> None:
        """Cancel a request in all chunks from this moment on; called from another thread."""
        self.at[request] = 0

    def skipped(self, requests: frozenset[int], chunk: int) -> frozenset[int]:
        """Those of the requests that are cancelled by the time of ``chunk``."""
        at = self.at
        known = frozenset(r for r in requests if r in at and chunk >= at[r]) if at else _NONE
        if self.agree is None:
            return known
        order = sorted(requests)
        return frozenset(compress(order, self.agree([request in known for request in order])))


_NONE: frozenset[int] = frozenset()

MOST_VIEWS = 4096
"""Slices of buffers that are kept; a program without end sees chunks of all sizes."""


class Load(NamedTuple):
    """What a rank has to know of a chunk while it runs it.

    ``rows`` of a buffer are its activations; ``leaving`` are those of its ``requests`` that have no part after it;
    ``sampled`` whether this rank makes a token from it; ``arrival`` the seconds before which it does not start.
    """

    rows: int
    requests: frozenset[int]
    leaving: Sequence[int]
    sampled: bool
    arrival: float = 0.0


def loads_of(schedule: Schedule, rank: int) -> dict[int, Load]:
    """What ``rank`` has to know of every chunk of a schedule."""
    last = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    leaving: dict[int, list[int]] = {}
    for request, chunk in last.items():
        leaving.setdefault(chunk, []).append(request)
    here = schedule.stage_ranks[-1] == rank
    return {
        index: Load(
            chunk.tokens,
            frozenset([part.request for part in chunk.parts]),
            leaving.get(index, ()),
            here and sampled,
            arrival,
        )
        for index, (chunk, sampled, arrival) in enumerate(
            zip(schedule.chunks, schedule.samples, schedule.chunk_arrivals, strict=True)
        )
    }


class Times(Protocol):
    """Keeps when each instruction ran, in order, as ``time.perf_counter()`` reads."""

    def add(self, start: float, end: float) -> None: ...


class Interpreter:
    """Runs the program of ``rank``. ``loads`` are its chunks, ``buffers`` the tensors of its buffer numbers.

    ``tokens`` are those made so far, unless they are delivered; ``seconds`` how long the program took, ``position``
    where it stands. A device that queues instructions has a ``progress``, which also reports the times.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        runner: Runner,
        loads: Mapping[int, Load],
        links: Mapping[int, Link],
        buffers: Sequence[Buffer],
        clock: Clock,
        *,
        position: Position | None = None,
        progress: Progress | None = None,
        times: Times | None = None,
        cancellation: Cancellation | None = None,
        deliver: Callable[[Token], None] | None = None,
        mark: Mark | None = None,
        check_finite: bool = False,
    ) -> None:
        self.plan, self.rank, self.runner, self.loads = plan, rank, runner, loads
        self.links, self.buffers, self.clock = links, buffers, clock
        self.progress, self.times, self.mark, self.check_finite = progress, times, mark, check_finite
        self.cancellation = cancellation or Cancellation()
        self.position = position or Position(rank)
        self.tokens: list[Token] = []
        self.deliver = deliver or self.tokens.append
        self.seconds = 0.0
        self.posted: dict[int, Transfer] = {}
        """The transfers that are posted and not waited for, by the index of the SEND or RECV."""
        self._origin = 0.0
        self._ran = 0
        self._prepared: dict[int, tuple[frozenset[int], Any]] = {}
        self._views: dict[tuple[int, int], Buffer] = {}
        self._last_stage = plan.rank_stages[rank][-1]
        self._awaits = any(load.arrival for load in loads.values())

    def run(self, origin: float) -> None:
        """Run the program; ``origin`` is the clock's reading at the start, from which times and arrivals count."""
        self._origin = origin - self.clock.offset
        self.position.enter(self.plan, self.progress)
        self.go_on()
        if self.progress is not None:
            self.progress.drain()
        self.seconds = time.perf_counter() - self._origin
        self.position.index += 1

    def go_on(self) -> None:
        """Run what there is of the program, behind what was run before."""
        position, progress, now = self.position, self.progress, time.perf_counter
        times = self.times if progress is None else None
        execute = self._execute if self.mark is None and progress is None else self._surrounded
        index = self._ran - 1
        for index, row in enumerate(self.plan.programs[self.rank].rows(), self._ran):
            position.index = index
            if self._awaits and row[0] == FORWARD and row[2] == 0:
                self._await_arrival(self.loads[row[1]].arrival)
            if times is None:
                execute(index, row)
            else:
                start = now()
                execute(index, row)
                times.add(start, now())
        self._ran = index + 1

    def _execute(self, index: int, row: Row) -> None:
        op, chunk, stage, x, y, z = row
        if op == FORWARD:
            self._forward(chunk, stage, x, y)
        elif op == WAIT:
            self.posted.pop(x).wait()
        elif op == SEND:
            self.posted[index] = self.links[z].send(self._view(x, chunk))
        elif op == RECV:
            self.posted[index] = self.links[z].recv(self._view(x, chunk))
        else:
            self._sample(chunk, x)

    def _surrounded(self, index: int, row: Row) -> None:
        """An instruction between what marks it for a profiler and tells the device's progress."""
        progress = self.progress
        if progress is not None:
            progress.begin()
        with self.mark(index) if self.mark is not None else nullcontext():
            self._execute(index, row)
        if progress is not None:
            progress.end()

    def _view(self, buffer: int, chunk: int) -> Buffer:
        """The rows of a buffer that a chunk fills. Slicing costs more than all else here, so slices are kept."""
        key = buffer, self.loads[chunk].rows
        view = self._views.get(key)
        if view is None:
            if len(self._views) == MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = tuple([tensor[: key[1]] for tensor in self.buffers[buffer]])
        return view

    def _await_arrival(self, arrival: float) -> None:
        left = self._origin + arrival - time.perf_counter()
        if left > 0:
            self.position.idle = True
            time.sleep(left)
            self.position.idle = False

    def _prepare(self, chunk: int, requests: frozenset[int]) -> tuple[frozenset[int], Any]:
        skip = self.cancellation.skipped(requests, chunk)
        known = self._prepared.get(chunk)
        if known is None or known[0] != skip:
            known = self._prepared[chunk] = (skip, self.runner.prepare(chunk, skip))
        return known

    def _forward(self, chunk: int, stage: int, source: int, target: int) -> None:
        load = self.loads[chunk]
        skip, prepared = self._prepare(chunk, load.requests)
        if len(skip) < len(load.requests):
            inputs = self._view(source, chunk) if source >= 0 else None
            outputs = self._view(target, chunk) if target >= 0 else None
            self.runner.forward(stage, prepared, inputs, outputs)
            if self.check_finite and outputs is not None:
                _check_finite(outputs)
        if stage == self._last_stage and not load.sampled:
            self._leave(chunk, load.leaving)

    def _sample(self, chunk: int, buffer: int) -> None:
        load = self.loads[chunk]
        skip, prepared = self._prepare(chunk, load.requests)
        if len(skip) < len(load.requests):
            made = self.runner.sample(prepared, self._view(buffer, chunk))
            since = time.perf_counter() - self._origin
            for request, token in made:
                self.deliver(Token(request, token, since - self.plan.requests[request].arrival))
        self._leave(chunk, load.leaving)

    def _leave(self, chunk: int, requests: Iterable[int]) -> None:
        """This rank is through with the chunk, and with these requests."""
        self._prepared.pop(chunk, None)
        for request in requests:
            self.runner.release(request)


def _check_finite(outputs: Buffer) -> None:
    for tensor in outputs:
        wrong = tensor.numel() - int(torch.isfinite(tensor).sum())
        if wrong:
            raise RunFailed(f"wrote {wrong} values of {tensor.numel()} that are not finite")
