"""The incremental compiler: requests in, verified segments out, while the ranks run.

    compiler = IncrementalCompiler(header_of(options, model), cost, limits, policy, "vpp-packed")
    compiler.opening()                          the schedule that the stream begins with: no requests, empty programs
    compiler.add(request, now)                  see Pipeline.submit; raises QueueFull and InputError
    compiler.cancel(request_id, now) -> bool
    compiler.advance(now) -> Segment | None     what the ranks are to run next, verified
    compiler.reached(rank, instruction, now)    the rank was through with that instruction at that time
    compiler.next_event()                       when to advance next; inf when nothing is left to do
    compiler.replan(cost)                       other costs, for chunks that are to come
    compiler.close() -> Segment | None          all that is left, and the end of the stream

A request has its index, in ``Segment.requests``, from its first chunk on; one that is cancelled before is never in the
stream. One that is cancelled later is named in ``Segment.extra["cancelled"]``: nothing more of its prompt follows.

**The two clocks.** The caller's time goes on by itself; the plan's is the pipeline's, on which operations take what
the costs say. They start together. What the ranks report corrects their difference: the plan is as late, or as early,
as the rank that is the latest, so that nobody runs dry and no chunk is made long before it can run. On a placement
that does not return to rank 0, ranks run what they have a horizon before its time, since nothing in their lists waits
for a chunk to leave; there being that early says nothing.
"""

from __future__ import annotations

from math import inf

from vppc.costs.model import CostModel
from vppc.ir.schedule import Request, Schedule
from vppc.ir.segment import Segment
from vppc.serving.batching import ChunkRule, Limits
from vppc.serving.clock import SHORTEST, Pipeline
from vppc.serving.policy import Policy
from vppc.serving.proven_stream import ProvenStream

ROUNDING = 1e-6
"""Seconds by which to advance further, so that what is due at a time is there, however times are rounded."""


class IncrementalCompiler:
    """Compiles a stream. The programs reach ``horizon`` seconds beyond the present, and to the end of what runs then.

    The horizon has to cover the way of a segment to the ranks, and of a report back. What is compiled cannot be
    changed by who comes next, so it is not to be longer than that.
    """

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
        self._pipeline = Pipeline(setup, cost, limits, policy, strategy, rule, shortest=SHORTEST)
        pipeline = self._pipeline
        self._stream = ProvenStream(setup, cost, pipeline.buffers, pipeline.in_flight, limits.chunk_size, {})
        self._emitter = self._stream.emitter
        self._horizon = horizon
        self._lags: dict[int, float] = {}  # by rank, what it was last late by
        # how early ranks may be whose lists do not hold them back where the plan waits for a chunk to leave
        self._slack = 0.0 if setup.stage_ranks[-1] == 0 else horizon
        self._late = 0.0  # what the plan's clock is behind the caller's
        self._now = 0.0  # the plan's present

    def opening(self) -> Schedule:
        """The schedule that the stream begins with."""
        return self._stream.opening

    def add(self, request: Request, now: float) -> None:
        """A request comes, now or at its later arrival; see :meth:`Pipeline.submit`."""
        self._pipeline.submit(request, self._present(now), arrival=request.arrival - self._late)

    def cancel(self, request_id: str, now: float) -> bool:
        """A request is given up; see :meth:`Pipeline.cancel`."""
        return self._pipeline.cancel(request_id, self._present(now))

    def replan(self, cost: CostModel) -> None:
        """Price the chunks that are to come by other costs."""
        self._pipeline.replan(cost)

    def reached(self, rank: int, instruction: int, now: float) -> None:
        """The rank was through with that instruction at that time."""
        lag = self._emitter.lag(rank, instruction, now)
        if lag is not None:
            self._lags[rank] = lag
            late = max(self._lags.values())
            self._late = late if late > 0 else min(0.0, late + self._slack)

    def next_event(self) -> float:
        """When to advance next; infinite when nothing is left to do."""
        return min(self._pipeline.next_event(), self._emitter.next_start()) - self._horizon + self._late

    def advance(self, now: float) -> Segment | None:
        """What the ranks are to run next; None when there is nothing. Raises CheckFailed where it breaks a rule."""
        until = self._present(now) + self._horizon + ROUNDING
        self._commit(until)
        self._commit(self._emitter.known_until(until))
        self._emitter.emit(until)
        return self._stream.segment(self._pipeline.over)

    def close(self) -> Segment | None:
        """All that is left; the stream ends."""
        self._commit(inf)
        self._emitter.close()
        return self._stream.segment(self._pipeline.over, closed=True)

    def _present(self, now: float) -> float:
        self._now = max(self._now, now - self._late)
        return self._now

    def _commit(self, before: float) -> None:
        """Let the plan's clock run."""
        self._pipeline.run(before)
        committed = self._pipeline.take_committed()
        if committed.blocks:
            for block in committed.blocks:
                self._emitter.append(block)
        else:
            self._emitter.commit(committed.operations, committed.samples)
        self._stream.add(committed.requests, committed.chunks, committed.cancelled)
        self._pipeline.take_finished()  # the plan's; the ranks' own are what counts
