"""Drift: what FORWARDs take while serving, beside what the plan says, and costs refitted to that.

A plan is as good as its costs. Drift is measured over the last :data:`WINDOW` FORWARDs: their seconds in sum over
those that the cost model gives, less one. Chunks with cancelled parts compute less than planned and do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vppc.costs.model import CostModel, Prices
from vppc.costs.samples import Forward, Head, Layers, Measurements, chunk_parts, forward
from vppc.ir.instruction import FORWARD, SAMPLE, WIDTH
from vppc.ir.schedule import Chunk, Schedule
from vppc.ir.segment import Segment
from vppc.sums import plain_sum

WINDOW = 256
LEAST = 64
"""FORWARDs before which nothing is said: the first ones are cold."""
KEPT = 1000
"""The newest FORWARDs, and SAMPLEs, that costs are fitted to."""


class Window:
    """What the last FORWARDs took beside what was planned, in seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # (measured, planned)

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, measured: float, planned: float) -> None:
        self._seconds.append((measured, planned))

    def clear(self) -> None:
        self._seconds.clear()

    @property
    def drift(self) -> float | None:
        """0.1 where they took a tenth longer than planned; None while there are too few."""
        planned = plain_sum(each for _, each in self._seconds)
        if len(self._seconds) < LEAST or not planned:
            return None
        return plain_sum(each for each, _ in self._seconds) / planned - 1.0


class _Planned(NamedTuple):
    """A FORWARD that has been sent, of ``stage`` on ``chunk``, planned by ``cost`` to take so long; or a SAMPLE of
    ``rows``."""

    chunk: Chunk
    stage: int
    seconds: float
    rows: int
    cost: CostModel


@dataclass(slots=True)
class _Priced:
    """A chunk with the seconds of its stages by ``cost``; ``left`` of its FORWARDs and its SAMPLE are not sent."""

    chunk: Chunk
    seconds: Sequence[float]
    rows: int
    left: int
    cost: CostModel


class Drift:
    """Keeps what was sent until it has run, and the newest of what has run. ``bound`` is the drift to alarm at."""

    def __init__(self, setup: Schedule, cost: CostModel, bound: float = 0.2) -> None:
        self.cost, self.bound = cost, bound
        self.alarmed = False
        self.measured = 0
        """FORWARDs that have run and count."""
        self._setup = setup
        self._prices = Prices(setup.stages, cost)
        self._layers = Layers.of(cost.layers)
        self._counts = [self._layers.between(*stage.layers) for stage in setup.stages]
        self._ends: dict[int, int] = {}  # prompt tokens of the requests of which chunks are to come
        self._decodes = bool(setup.extra.get("decodes"))
        self._requests = self._chunks = 0
        self._priced: dict[int, _Priced] = {}  # chunks with instructions that have not been sent
        self._sent: list[dict[int, _Planned]] = [{} for _ in range(setup.pp)]
        self._cancelled: deque[int] = deque(maxlen=KEPT)
        self._window, self._by_rank = Window(), [Window() for _ in range(setup.pp)]
        self._forwards: deque[Forward] = deque(maxlen=KEPT)
        self._heads: deque[Head] = deque(maxlen=KEPT)

    @property
    def value(self) -> float | None:
        """The drift, 0.1 where FORWARDs take a tenth longer than planned; None while there are too few."""
        return self._window.drift

    def of(self, rank: int) -> float | None:
        """The drift of one rank."""
        return self._by_rank[rank].drift

    def sent(self, segment: Segment) -> None:
        """A segment is on its way."""
        for request in segment.requests:
            self._ends[self._requests] = request.prompt_tokens
            self._requests += 1
        for chunk in segment.chunks:
            sampled = [part for part in chunk.parts if part.decode or part.end == self._ends[part.request]]
            seconds = self._prices.of((chunk,), self._ends).seconds
            left = len(seconds) + bool(sampled)
            self._priced[self._chunks] = _Priced(chunk, seconds, len(sampled), left, self.cost)
            self._chunks += 1
            if not self._decodes:  # else more may come, until it is cancelled
                for part in sampled:
                    del self._ends[part.request]
        for request in segment.extra.get("cancelled", ()):
            self._ends.pop(request, None)
        for program in segment.programs:
            for index, start in enumerate(range(0, len(program.code), WIDTH), program.start):
                op, number, stage = program.code[start : start + 3]
                if op in (FORWARD, SAMPLE):
                    self._sent[program.rank][index] = self._planned(number, stage, op == SAMPLE)

    def cancelled(self, request: int) -> None:
        """Ranks leave out what they have not computed of a request, by its index in the stream."""
        self._cancelled.append(request)

    def ran(self, rank: int, first: int, times: Sequence[float]) -> None:
        """A rank has run its instructions from ``first`` on, at ``times`` [start, end, start, end, ..]."""
        sent = self._sent[rank]
        for index in range(len(times) // 2):
            planned = sent.pop(first + index, None)
            if planned is not None:
                self._measured(rank, first + index, planned, times[2 * index + 1] - times[2 * index])

    def news(self) -> str:
        """What to say when the drift has passed the bound since the last time, or is back within half of it."""
        drift = self.value
        if drift is None or (abs(drift) <= self.bound if not self.alarmed else abs(drift) > self.bound / 2):
            return ""
        self.alarmed = not self.alarmed
        if not self.alarmed:
            return f"the last {len(self._window)} FORWARDs took as long as planned again"
        how = "longer" if drift > 0 else "less"
        return f"the last {len(self._window)} FORWARDs took {abs(drift):.0%} {how} than planned"

    def measurements(self) -> Measurements:
        """The newest of what has run, to fit costs to; transfers are as planned."""
        by_products = frozenset(("heads",))
        return Measurements(self._layers, tuple(self._forwards), (), tuple(self._heads), self.cost.name, by_products)

    def replan(self, cost: CostModel) -> None:
        """From now on the plan has other costs."""
        self.cost, self._prices = cost, Prices(self._setup.stages, cost)
        for window in (self._window, *self._by_rank):
            window.clear()
        self.alarmed = False

    def _planned(self, number: int, stage: int, sampled: bool) -> _Planned:
        priced = self._priced[number]
        priced.left -= 1
        if not priced.left:
            del self._priced[number]
        return _Planned(priced.chunk, stage, priced.seconds[stage], priced.rows if sampled else 0, priced.cost)

    def _measured(self, rank: int, instruction: int, planned: _Planned, seconds: float) -> None:
        chunk, stage, place = planned.chunk, planned.stage, f"rank {rank}, instruction {instruction}"
        if seconds <= 0 or any(part.request in self._cancelled for part in chunk.parts):
            return
        newest = planned.cost is self.cost  # else it was planned before, and does not tell how true the plan is
        if planned.rows:
            self._heads.append(Head(place, seconds, planned.rows))
            if newest:
                self._window.add(seconds, 0.0)  # it is planned as a part of its FORWARD
            return
        self.measured += 1
        counts, topks = self._counts[stage], self._layers.topks
        if newest:
            self._window.add(seconds, planned.seconds)
            self._by_rank[rank].add(seconds, planned.seconds)
        self._forwards.append(forward(place, seconds, chunk_parts(chunk), counts, topks, embeds=stage == 0))
