"""The incremental compiler: requests in, verified segments out, while the ranks run.

    compiler = IncrementalCompiler(header_of(options, model), cost, limits, policy, "vpp-packed")
    compiler.opening()                          the schedule that the stream begins with: no requests, empty programs
    compiler.add(request, now)                  see Pipeline.submit; raises QueueFull and InputError
    compiler.cancel(request_id, now) -> bool
    compiler.advance(now) -> Segment | None     what the ranks are to run next, verified
    compiler.reached(rank, instruction, now)    the rank has run that instruction
    compiler.take_finished()                    the first tokens planned since the last time
    compiler.next_event()                       when to advance next, on the caller's clock
    compiler.close() -> Segment | None          all that is left, and the end of the stream

A request has its index, in ``Segment.requests``, from its first chunk on; one that is cancelled before is never in the
stream. One that is cancelled later is named in ``Segment.extra["cancelled"]``: nothing more of its prompt follows.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from vppc import __version__
from vppc.compiler import certified
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel
from vppc.errors import CheckFailed
from vppc.ir.document import digest, schedule_text, segment_text
from vppc.ir.instruction import Program
from vppc.ir.rules import Verifier
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.segment import Segment
from vppc.serving.batching import ChunkRule, Limits
from vppc.serving.clock import FirstToken, Pipeline
from vppc.serving.emit import Emitter, pool_size
from vppc.serving.policy import Policy


class IncrementalCompiler:
    """Compiles a stream. ``horizon`` is how many seconds the ranks' programs reach beyond the present, at least."""

    def __init__(
        self,
        setup: Schedule,
        cost: CostModel,
        limits: Limits,
        policy: Policy,
        strategy: str,
        rule: ChunkRule | None = None,
        *,
        horizon: float = 0.05,
    ) -> None:
        self._pipeline = Pipeline(setup, cost, limits, policy, strategy, rule)
        in_flight = self._pipeline.in_flight_limit
        buffers = limits.max_buffers or pool_size(in_flight)
        self._emitter = Emitter(setup, buffers, in_flight)
        self._horizon = horizon
        programs = tuple(Program.of(rank, buffers, []) for rank in range(setup.pp))
        extra = {
            **setup.extra,
            "buffer_tokens": limits.chunk_size,
            "cost": cost_json(cost),
            "provenance": {"compiler": f"vppc {__version__}"},
        }
        self._opening = certified(replace(setup, programs=programs, extra=extra))
        self._previous = digest("".join(schedule_text(self._opening)).encode())
        self._verifier = Verifier(self._opening, self._previous)
        self._sequence = 0
        self._requests: list[Request] = []
        self._chunks: list[Chunk] = []

    def opening(self) -> Schedule:
        """The schedule that the stream begins with."""
        return self._opening

    def add(self, request: Request, now: float) -> None:
        """A request comes; see :meth:`Pipeline.submit`."""
        self._pipeline.submit(request, now)

    def cancel(self, request_id: str, now: float) -> bool:
        """A request is given up; see :meth:`Pipeline.cancel`."""
        return self._pipeline.cancel(request_id, now)

    def reached(self, rank: int, instruction: int, now: float) -> None:
        """The rank has run that instruction, at that time."""

    def take_finished(self) -> list[FirstToken]:
        """The first tokens planned since the last time."""
        return self._pipeline.take_finished()

    def next_event(self) -> float:
        """When to advance next; infinite when nothing is left to do."""
        return self._pipeline.next_event() - self._horizon

    def advance(self, now: float) -> Segment | None:
        """What the ranks are to run next; None when there is nothing. Raises CheckFailed where it breaks a rule."""
        return self._segment(now + self._horizon)

    def close(self) -> Segment | None:
        """All that is left; the stream ends."""
        return self._segment(inf)

    def _segment(self, until: float) -> Segment | None:
        cancelled = [*self._commit(until)]
        if until == inf:
            self._emitter.close()
        else:
            cancelled += self._commit(self._emitter.busy_until())
            self._emitter.emit(until)
        programs = self._emitter.take()
        if not (programs or self._requests or self._chunks or cancelled):
            return None
        self._sequence += 1
        extra = {"cancelled": cancelled} if cancelled else {}
        segment = Segment(self._sequence, self._previous, tuple(self._requests), tuple(self._chunks), programs, extra)
        self._requests, self._chunks = [], []
        self._previous = digest("".join(segment_text(segment)).encode())
        self._verifier.extend(segment, self._previous)
        findings = self._verifier.findings(closed=until == inf)
        if findings:
            raise CheckFailed(findings)
        return segment

    def _commit(self, before: float) -> tuple[int, ...]:
        """Let the clock run; returns what was cancelled."""
        self._pipeline.run(before)
        committed = self._pipeline.take_committed()
        self._emitter.commit(committed.operations, committed.samples)
        self._requests += committed.requests
        self._chunks += committed.chunks
        return committed.cancelled
