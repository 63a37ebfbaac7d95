"""The interpreter: runs one rank's program, one dispatch an instruction, and decides nothing.

What order, which buffer, when to wait: all of that is in the program, and was proven before it came here. The
interpreter keeps only what an instruction cannot carry: the posted transfers, the chunks' prepared states, and
which requests are cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Link, Progress, Transfer
from runtime.faults import Position, RunFailed
from runtime.journal import Journal
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
    """Requests to cancel: ``at[r]`` is the chunk from which on request r is not computed any more."""

    at: dict[int, int] = field(default_factory=dict)

    def now(self, request: int) -> None:
        """Cancel a request in all chunks from this moment on; called from another thread."""
        self.at[request] = 0

    def skipped(self, requests: frozenset[int], chunk: int) -> frozenset[int]:
        """Those of the requests that are cancelled by the time of ``chunk``."""
        at = self.at
        return frozenset(r for r in requests if r in at and chunk >= at[r]) if at else _NONE


_NONE: frozenset[int] = frozenset()


class Interpreter:
    """Runs the program of ``rank``. ``buffers`` are the tensors of its buffer numbers.

    ``tokens`` are those made so far, ``seconds`` how long the program took, ``position`` is where it stands. A device
    that queues instructions has a ``progress``, which also reports the times of the journal.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        runner: Runner,
        links: Mapping[int, Link],
        buffers: Sequence[Buffer],
        clock: Clock,
        *,
        position: Position | None = None,
        progress: Progress | None = None,
        journal: Journal | None = None,
        cancellation: Cancellation | None = None,
        mark: Mark | None = None,
        check_finite: bool = False,
    ) -> None:
        self.schedule, self.rank, self.runner = schedule, rank, runner
        self.links, self.buffers, self.clock = links, buffers, clock
        self.progress, self.journal, self.mark, self.check_finite = progress, journal, mark, check_finite
        self.cancellation = cancellation or Cancellation()
        self.position = position or Position(rank)
        self.tokens: list[Token] = []
        self.seconds = 0.0
        self._origin = 0.0
        self._posted: dict[int, Transfer] = {}
        self._prepared: dict[int, tuple[frozenset[int], Any]] = {}
        self._views: dict[tuple[int, int], Buffer] = {}
        self._rows = [chunk.tokens for chunk in schedule.chunks]
        self._requests = [frozenset([part.request for part in chunk.parts]) for chunk in schedule.chunks]
        last = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
        self._leaving: dict[int, list[int]] = {}  # chunk -> requests with their last part in it
        for request, chunk in last.items():
            self._leaving.setdefault(chunk, []).append(request)
        self._last_stage = schedule.rank_stages[rank][-1]
        sampled = schedule.samples if schedule.stages[-1].rank == rank else ()
        self._sampled = frozenset(chunk for chunk, sample in enumerate(sampled) if sample)
        self._arrivals = schedule.chunk_arrivals if any(r.arrival for r in schedule.requests) else None

    def run(self, origin: float) -> None:
        """Run the program; ``origin`` is the clock's reading at the start, from which times and arrivals count."""
        self._origin = origin - self.clock.offset
        position, progress, now = self.position, self.progress, time.perf_counter
        journal = self.journal if progress is None else None
        execute = self._execute if self.mark is None and progress is None else self._surrounded
        position.enter(self.schedule, progress)
        for index, row in enumerate(self.schedule.programs[self.rank].rows()):
            position.index = index
            if self._arrivals is not None and row[0] == FORWARD and row[2] == 0:
                self._await_arrival(self._arrivals[row[1]])
            if journal is None:
                execute(index, row)
            else:
                start = now()
                execute(index, row)
                journal.add(start, now())
        if progress is not None:
            progress.drain()
        self.seconds = now() - self._origin
        position.index += 1

    def _execute(self, index: int, row: Row) -> None:
        op, chunk, stage, x, y, z = row
        if op == FORWARD:
            self._forward(chunk, stage, x, y)
        elif op == WAIT:
            self._posted.pop(x).wait()
        elif op == SEND:
            self._posted[index] = self.links[z].send(self._view(x, chunk))
        elif op == RECV:
            self._posted[index] = self.links[z].recv(self._view(x, chunk))
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
        key = buffer, self._rows[chunk]
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = tuple([tensor[: key[1]] for tensor in self.buffers[buffer]])
        return view

    def _await_arrival(self, arrival: float) -> None:
        left = self._origin + arrival - time.perf_counter()
        if left > 0:
            self.position.idle = True
            time.sleep(left)
            self.position.idle = False

    def _prepare(self, chunk: int) -> tuple[frozenset[int], Any]:
        skip = self.cancellation.skipped(self._requests[chunk], chunk)
        known = self._prepared.get(chunk)
        if known is None or known[0] != skip:
            known = self._prepared[chunk] = (skip, self.runner.prepare(chunk, skip))
        return known

    def _forward(self, chunk: int, stage: int, source: int, target: int) -> None:
        skip, prepared = self._prepare(chunk)
        if len(skip) < len(self._requests[chunk]):
            inputs = self._view(source, chunk) if source >= 0 else None
            outputs = self._view(target, chunk) if target >= 0 else None
            self.runner.forward(stage, prepared, inputs, outputs)
            if self.check_finite and outputs is not None:
                _check_finite(outputs)
        if stage == self._last_stage and chunk not in self._sampled:
            self._leave(chunk)

    def _sample(self, chunk: int, buffer: int) -> None:
        skip, prepared = self._prepare(chunk)
        if len(skip) < len(self._requests[chunk]):
            made = self.runner.sample(prepared, self._view(buffer, chunk))
            since = time.perf_counter() - self._origin
            for request, token in made:
                self.tokens.append(Token(request, token, since - self.schedule.requests[request].arrival))
        self._leave(chunk)

    def _leave(self, chunk: int) -> None:
        """This rank is through with the chunk."""
        self._prepared.pop(chunk, None)
        for request in self._leaving.get(chunk, ()):
            self.runner.release(request)


def _check_finite(outputs: Buffer) -> None:
    for tensor in outputs:
        wrong = tensor.numel() - int(torch.isfinite(tensor).sum())
        if wrong:
            raise RunFailed(f"wrote {wrong} values of {tensor.numel()} that are not finite")
