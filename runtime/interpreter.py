"""The interpreter: runs one rank's program, one dispatch an instruction, and decides nothing.

What order, which buffer, when to wait: all of that is in the program, and was proven before it came here. The
interpreter keeps only what an instruction cannot carry: the posted transfers, the chunks' prepared states, and
which requests are cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Link, Transfer
from runtime.faults import RunFailed
from runtime.journal import Journal
from runtime.runners.protocol import Buffer, Runner
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A token that a request got, and its TTFT: seconds from the request's arrival."""

    request: int
    token: int
    ttft: float


@dataclass(slots=True)
class Position:
    """Where the interpreter stands, for the watchdog to read from its thread."""

    index: int = -1
    idle: bool = False

    def read(self) -> tuple[int, bool]:
        return self.index, self.idle


@dataclass(slots=True)
class Cancellation:
    """Requests to cancel: ``at[r]`` is the chunk from whose first stage on request r is not computed any more."""

    at: dict[int, int] = field(default_factory=dict)

    def skipped(self, requests: frozenset[int], chunk: int) -> frozenset[int]:
        """Those of the requests that are cancelled by the time of ``chunk``."""
        at = self.at
        return frozenset(r for r in requests if r in at and chunk >= at[r]) if at else frozenset()


class Interpreter:
    """Runs the program of ``rank``. ``buffers`` are the tensors of its buffer numbers."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        runner: Runner,
        links: Mapping[int, Link],
        buffers: Sequence[Buffer],
        clock: Clock,
        *,
        journal: Journal | None = None,
        cancellation: Cancellation | None = None,
        mark: Callable[[int], Any] | None = None,
        check_finite: bool = False,
    ) -> None:
        self.schedule, self.rank, self.runner = schedule, rank, runner
        self.links, self.buffers, self.clock = links, buffers, clock
        self.journal, self.mark, self.check_finite = journal, mark, check_finite
        self.cancellation = cancellation or Cancellation()
        self.position = Position()
        self.tokens: list[FirstToken] = []
        self.prepared: dict[int, tuple[frozenset[int], Any]] = {}
        self.rows = [chunk.tokens for chunk in schedule.chunks]
        self.requests = [frozenset(part.request for part in chunk.parts) for chunk in schedule.chunks]
        last = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
        self.leaving: dict[int, list[int]] = {}  # chunk -> requests with their last part in it
        for request, chunk in last.items():
            self.leaving.setdefault(chunk, []).append(request)
        self.last_stage = schedule.rank_stages[rank][-1]
        self.samples_here = schedule.stages[-1].rank == rank

    def run(self, origin: float) -> None:
        """Run the program; ``origin`` is the clock's reading at the start, from which times and arrivals count."""
        now, position, journal, mark = self.clock.now, self.position, self.journal, self.mark
        transfers: dict[int, Transfer] = {}
        for index, (op, chunk, stage, x, y, z) in enumerate(self.schedule.programs[self.rank].rows()):
            position.index = index
            if stage == 0 and op == FORWARD:
                self._await_arrival(chunk, origin)
            start = now()
            context = mark(index) if mark is not None else None
            if context is not None:
                context.__enter__()
            if op == FORWARD:
                self._forward(chunk, stage, x, y)
            elif op == WAIT:
                transfers.pop(x).wait()
            elif op == SEND:
                transfers[index] = self.links[z].send(self._rows(x, chunk))
            elif op == RECV:
                transfers[index] = self.links[z].recv(self._rows(x, chunk))
            elif op == SAMPLE:
                self._sample(chunk, x, origin)
            if context is not None:
                context.__exit__(None, None, None)
            if journal is not None:
                journal.add(start - origin, now() - origin)
        position.index += 1
        position.idle = True

    def scratch(self, rows: int) -> Buffer:
        """New tensors for ``rows`` tokens, of the shape of a buffer."""
        like = self.runner.payload
        device = self.buffers[0][0].device if self.buffers and self.buffers[0] else None
        return tuple(torch.empty(rows, *spec.row, dtype=spec.dtype, device=device) for spec in like)

    def _rows(self, buffer: int, chunk: int) -> Buffer:
        """The part of a buffer that a chunk fills."""
        rows = self.rows[chunk]
        return tuple([tensor[:rows] for tensor in self.buffers[buffer]])

    def _await_arrival(self, chunk: int, origin: float) -> None:
        left = origin + self.schedule.chunk_arrivals[chunk] - self.clock.now()
        if left > 0:
            self.position.idle = True
            time.sleep(left)
            self.position.idle = False

    def _prepare(self, chunk: int) -> tuple[frozenset[int], Any]:
        skip = self.cancellation.skipped(self.requests[chunk], chunk)
        known = self.prepared.get(chunk)
        if known is None or known[0] != skip:
            known = self.prepared[chunk] = (skip, self.runner.prepare(chunk, skip))
        return known

    def _forward(self, chunk: int, stage: int, source: int, target: int) -> None:
        skip, prepared = self._prepare(chunk)
        if len(skip) < len(self.requests[chunk]):
            inputs = self._rows(source, chunk) if source >= 0 else None
            outputs = self._rows(target, chunk) if target >= 0 else None
            self.runner.forward(stage, prepared, inputs, outputs)
            if self.check_finite and outputs is not None and not skip:
                for tensor in outputs:
                    if not torch.isfinite(tensor).all():
                        raise RunFailed("wrote a value that is not finite")
        if stage == self.last_stage and not (self.samples_here and self.schedule.samples[chunk]):
            self._leave(chunk)

    def _sample(self, chunk: int, buffer: int, origin: float) -> None:
        skip, prepared = self._prepare(chunk)
        if len(skip) < len(self.requests[chunk]):
            for request, token in self.runner.sample(prepared, self._rows(buffer, chunk)):
                arrival = self.schedule.requests[request].arrival
                self.tokens.append(FirstToken(request, token, self.clock.now() - origin - arrival))
        self._leave(chunk)

    def _leave(self, chunk: int) -> None:
        """This rank is through with the chunk."""
        self.prepared.pop(chunk, None)
        for request in self.leaving.get(chunk, ()):
            self.runner.release(request)
