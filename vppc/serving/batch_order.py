"""The order of the ranks for chunks that somebody else makes: an engine, which says when one enters and asks for one.

    compiler = BatchCompiler(setup, cost, finish_first=True, in_flight=3, chunk_size=8192)
    compiler.opening                            the schedule that the stream begins with
    compiler.enter(entry) -> [Leg, ..]          the next chunk: what to run first, and at last until it is in
    compiler.leave() -> Leg                     the oldest chunk: what to run until it is through
    compiler.replan(cost)                       what the chunks that are to come cost
    compiler.close(cancelled) -> Segment        all that is left, and the end of the stream

The clock is the list scheduler's, and goes on with what the engine does, not with time: a chunk comes when rank 0 is
free, and a leg ends where rank 0 is free again. Until then nothing that comes can change what the ranks do, and all of
that is in the leg. So is, of a chunk that is at the fold by then, that it goes back, which is next there in any case:
the rank at the fold need not wait for the engine whenever rank 0 is late. By the same costs the same chunks in the same
order of calls always make the same programs. The ranks may have to run a leg before they get the next one, since the
engine waits for what they make: that they can is proven of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nextafter
from typing import NamedTuple

from vppc.costs.model import CostModel
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.segment import Segment
from vppc.serving.clock import AHEAD, SPARE, ListClock
from vppc.serving.proven_stream import ProvenStream


class Entry(NamedTuple):
    """A chunk that enters, with the requests that begin in it (their indices go on counting), and the ``prompts`` of
    all its requests by index. Of those ``cancelled`` no part follows; the first ``over`` requests are through."""

    chunk: Chunk
    requests: Sequence[Request]
    prompts: Mapping[int, Request]
    cancelled: Sequence[int]
    over: int


class Leg(NamedTuple):
    """What the ranks are to run next, verified. At its end ``leaves`` is through; None: the new chunk has entered."""

    leaves: int | None
    segment: Segment


class BatchCompiler:
    """Compiles a stream of chunks, of at most ``chunk_size`` tokens, with ``in_flight`` of them between the calls of
    :meth:`enter` and :meth:`leave`. Requests may decode.

    With ``finish_first`` a late stage of a chunk goes before an early one of a later chunk where no rank runs dry by
    that; at the fold always.
    """

    def __init__(
        self, setup: Schedule, cost: CostModel, *, finish_first: bool, in_flight: int, chunk_size: int
    ) -> None:
        self._clock = ListClock(setup, cost, several=finish_first)
        self._last = len(setup.stages) - 1
        self._fold = setup.pp - 1
        self._back_first = finish_first
        buffers = in_flight + SPARE + AHEAD
        self._stream = ProvenStream(setup, cost, buffers, in_flight, chunk_size, {"decodes": True})
        self._entered = self._left = 0  # chunks
        self._over = 0
        self._samples: list[bool] = []

    @property
    def opening(self) -> Schedule:
        """The schedule that the stream begins with."""
        return self._stream.opening

    def enter(self, entry: Entry) -> list[Leg]:
        """The next chunk enters, perhaps after others have left. Raises CheckFailed for a leg that breaks a rule."""
        clock, chunk = self._clock, entry.chunk
        self._stream.add(entry.requests, (chunk,), entry.cancelled)
        self._over = entry.over
        clock.enter(chunk, [entry.prompts[part.request] for part in chunk.parts], clock.free[0], self._entered)
        clock.look(0, clock.free[0])
        samples = any(part.decode or part.end == entry.prompts[part.request].prompt_tokens for part in chunk.parts)
        self._samples.append(samples)
        self._entered += 1
        legs = []
        while self._run(0) < self._entered:
            if self._run(self._last) > self._left:
                legs.append(self._leave())
            else:
                self._step()
        legs.append(Leg(None, self._segment()))
        return legs

    def leave(self) -> Leg:
        """The oldest chunk is wanted. Raises CheckFailed for a leg that breaks a rule."""
        if self._left == self._entered:
            raise ValueError("no chunk is in flight")
        while self._run(self._last) == self._left:
            self._step()
        return self._leave()

    def replan(self, cost: CostModel) -> None:
        """Price the chunks that are to come by other costs."""
        self._clock.reprice(cost)

    def close(self, cancelled: Sequence[int] = ()) -> Segment | None:
        """All that is left, with the end of the stream. Raises CheckFailed where that breaks a rule."""
        self._clock.run()
        self._commit(inf)
        self._stream.add((), (), cancelled)
        self._stream.emitter.close()
        return self._stream.segment(self._over, closed=True)

    def _run(self, stage: int) -> int:
        """How many chunks a stage has run."""
        return self._clock.base + self._clock.done[stage]

    def _step(self) -> None:
        """To the next moment at which a rank does something."""
        at = self._clock.next_look()
        assert at < inf, "what is in flight goes on"
        self._clock.run(nextafter(at, inf))

    def _leave(self) -> Leg:
        leg = Leg(self._left, self._segment())
        self._left += 1
        return leg

    def _segment(self) -> Segment:
        """Until rank 0 is free, and at the fold until a chunk has gone back."""
        free = self._clock.free[0]
        self._clock.run(free)
        if self._back_first and self._run(self._fold) > self._run(self._fold + 1):
            self._clock.run_next(self._fold)
        self._commit(free)
        self._stream.emitter.emit(inf, self._fold)
        self._stream.emitter.post(free)
        segment = self._stream.segment(self._over, alone=True)
        assert segment is not None, "rank 0 has run something"
        return segment

    def _commit(self, before: float) -> None:
        self._stream.emitter.commit(self._clock.take_ran(), self._samples)
        self._samples.clear()
        self._stream.emitter.emit(before)
