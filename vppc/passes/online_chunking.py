"""dynamic_chunking, online: the chunk sizes of vLLM-Ascend while it learns from what it serves.

The engine starts with the rule of :mod:`vppc.passes.dynamic_chunking`, from its start-up profile. Then it
measures every batch on the last pipeline rank, and calibrates:

* The times of the first three batches without history replace the target T, one after another.
* The samples are fitted by t = a sum C (C + H) + b sum (C + H) + c N, over a batch's N parts of C tokens behind
  H. The fit replaces the start-up profile from 5 samples on, is renewed at each up to 30, and then stays.
* Until both are done, the first chunk of a prompt has the whole budget.

Batches are in flight, as many as there are ranks, so what chunk k took is known when chunk k + pp is chosen.

**What is measured** is the question. The worker takes its start time after it has synchronised with the
device. If that does not wait for the receive posted before it, the time of a batch on the last rank includes
waiting for the rank before (``wait``): then T is about as many stage times as there are ranks, chunks
are longer, and there are fewer. If it does, the time is the stage's own (``own``). The code can be read
both ways; what the VPP paper saw is close to ``wait``.

**What was served before** counts too: the target and fit are of the prompts so far. ``warmups`` prompts, as long
as the first of the schedule, are simulated before it.

A batch of several parts has the target T as a budget of time: each part uses up what the fit says of it, and the next
one gets what is left. The pass plans one prompt after another, one in a batch; the serving simulator fills batches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Literal, TypeAlias, get_args

from vppc.costs.model import CostModel, OpCosts
from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Part, Schedule
from vppc.passes.chunking import append_chunk
from vppc.passes.dynamic_chunking import DcppChunks, DcppRule
from vppc.passes.layout import Layout

Behind: TypeAlias = tuple[int, int]
"""(tokens, tokens of the same prompt before them)"""

Measured: TypeAlias = Literal["own", "wait"]
"""What the engine's time of a batch is: the last rank's own work, or also its wait for the rank before."""

TARGETS, FEWEST, MOST = 3, 5, 30
"""Batches without history that set the target; samples of the first fit, and of the last."""

SMALLEST_GROWTH = 1e-12
"""Seconds that the engine takes for a negative ``a``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch: ``parts``, each some tokens behind a prefix, took ``seconds``."""

    parts: tuple[Behind, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class HistoryModel:
    """t = ``a`` C (C + H) + ``b`` (C + H) + ``c`` seconds for C tokens behind H."""

    a: float
    b: float
    c: float

    def growth(self, tokens: int, prefix: int = 0) -> float:
        """Seconds of ``tokens`` more behind ``prefix``."""
        return (self.a * tokens + self.b) * (tokens + prefix) + self.c

    def tokens_within(self, seconds: float, prefix: int) -> float | None:
        """The greatest number of tokens behind ``prefix`` that take so many seconds; None where there is none."""
        if self.a <= 0:
            return None
        slope = self.a * prefix + self.b
        left = seconds - self.b * prefix - self.c
        square = slope * slope + 4 * self.a * left
        if square < 0:
            return None
        root = math.sqrt(square)
        # of the two forms of the greater root the one that subtracts no near-equal numbers
        tokens = 2 * left / (root + slope) if slope > 0 else (root - slope) / (2 * self.a)
        return tokens if tokens > 0 else None


def fit_history(samples: Sequence[Sample]) -> HistoryModel:
    """The least-squares model of the samples; where several fit alike, the one with the smallest coefficients.

    A negative ``a`` becomes ``SMALLEST_GROWTH``; negative ``b`` and ``c`` stay.
    """
    rows = [
        (sum(n * (n + p) for n, p in sample.parts), sum(n + p for n, p in sample.parts), len(sample.parts))
        for sample in samples
    ]
    a, b, c = map(float, _least_squares(rows, [Fraction(s.seconds) for s in samples]))
    return HistoryModel(SMALLEST_GROWTH if a < 0 else a, b, c)


@dataclass(slots=True)
class Calibration:
    """What the engine has learnt: told of every batch in order, it says how long the next chunk is."""

    startup: DcppRule
    rule: DcppRule = field(init=False)
    samples: list[Sample] = field(default_factory=list)
    targets: int = 0
    """How many batches have set the target."""

    def __post_init__(self) -> None:
        self.rule = self.startup

    @property
    def done(self) -> bool:
        """Whether nothing is measured any more."""
        return len(self.samples) > MOST and self.targets >= TARGETS

    def record(self, sample: Sample) -> None:
        """Learn from a batch; a time that is not positive is none."""
        if sample.seconds <= 0:
            return
        if self.targets < TARGETS and not any(prefix for _, prefix in sample.parts):
            self.rule = replace(self.rule, target=sample.seconds)
            self.targets += 1
        if len(self.samples) <= MOST:
            self.samples.append(sample)
            if FEWEST <= len(self.samples) <= MOST:
                self.rule = replace(self.rule, model=fit_history(self.samples))

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        """Tokens of a prompt for the next batch, which has ``taken`` others already; 0 when its time is used up."""
        spent = self._spent(taken)
        if prefix:
            return self.rule.next_chunk(prefix, left, spent)
        if not self.done:
            return min(self.startup.budget, left) if spent < self.rule.target else 0
        return replace(self.rule, model=self.startup.model).next_chunk(prefix, left, spent)

    def _spent(self, taken: Sequence[Behind]) -> float:
        """Seconds of a step that parts use up; those without prefix by the start-up profile."""
        return sum((self.rule if prefix else self.startup).model.growth(tokens, prefix) for tokens, prefix in taken)


@dataclass(frozen=True, slots=True)
class OnlineChunks:
    """vLLM-Ascend's dynamic chunks for a stream of prompts on a straight pipeline, by a simulation of its clock.

    ``startup`` is the policy that it starts from, ``layout`` says which layers each rank has. Raises InputError
    as they do, for an unknown kind of measured time, and for a negative number of warm-ups.
    """

    name: ClassVar[str] = "dynamic_chunking"

    startup: DcppChunks
    layout: Layout
    measured: str = "wait"
    warmups: int = 1

    def __post_init__(self) -> None:
        kinds = get_args(Measured)
        if self.measured not in kinds:
            raise InputError(f"unknown measured time {self.measured!r}", remedy=f"choose one of {', '.join(kinds)}")
        if self.warmups < 0:
            raise InputError(f"{self.warmups} warm-up prompts", remedy="give 0 or more")

    def __call__(self, schedule: Schedule) -> Schedule:
        laid = self.layout(schedule)
        calibration = Calibration(self.startup.rule(self.startup.profile(schedule.pp)))
        by_arrival = sorted(schedule.requests, key=lambda request: request.arrival)
        for warmup in by_arrival[:1] * self.warmups:
            if calibration.done:  # nothing is learnt from those that follow
                break
            self._serve(calibration, replace(laid, requests=(replace(warmup, arrival=0.0),)))
        return replace(schedule, chunks=self._serve(calibration, laid))

    def _serve(self, calibration: Calibration, laid: Schedule) -> tuple[Chunk, ...]:
        """The chunks of an idle engine that serves the requests and learns, until all are done."""
        pipeline = _Pipeline(laid, self.startup.cost)
        in_flight: deque[Batch] = deque()
        chunks: list[Chunk] = []
        now = 0.0  # when the engine chooses a chunk
        for index in sorted(range(len(laid.requests)), key=lambda i: laid.requests[i].arrival):
            request = laid.requests[index]
            now = max(now, request.arrival)
            start = request.cached_tokens
            while start < request.prompt_tokens:
                while in_flight and (len(in_flight) == laid.pp or in_flight[0].end <= now):
                    now = max(now, in_flight[0].end)
                    calibration.record(in_flight.popleft().sample(self.measured))
                tokens = calibration.next_chunk(start, request.prompt_tokens - start)
                part = Part(index, start, tokens)
                in_flight.append(pipeline.run(part, now))
                append_chunk(chunks, part)
                start += tokens
        for batch in in_flight:
            calibration.record(batch.sample(self.measured))
        return tuple(chunks)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch on the last rank: ``wait`` seconds since that rank was free for it, ``own`` of work, until ``end``."""

    parts: tuple[Behind, ...]
    own: float
    wait: float
    end: float

    def sample(self, measured: str) -> Sample:
        """What the engine notes of it."""
        seconds = self.own + (self.wait if measured == "wait" else 0.0)
        return Sample(self.parts, seconds)


class _Pipeline:
    """A straight pipeline that runs one part after another."""

    def __init__(self, laid: Schedule, cost: CostModel) -> None:
        self.laid, self.cost = laid, cost
        self.free = [0.0] * len(laid.stages)  # when each rank, and the channel behind it, is through with what it has
        self.channel_free = [0.0] * len(laid.stages)

    def run(self, part: Part, now: float) -> Batch:
        """Run a part that is chosen ``now``."""
        costs = OpCosts.of(replace(self.laid, chunks=(Chunk((part,)),)), self.cost)
        there = begin = idle = now
        for rank, seconds in enumerate(costs.seconds):
            idle = max(now, self.free[rank])
            begin = max(there, idle)
            self.free[rank] = begin + seconds
            there = self.channel_free[rank] = max(self.channel_free[rank], self.free[rank]) + costs.transfer[0]
        return Batch(((part.tokens, part.start),), costs.seconds[-1], begin - idle, self.free[-1])


def _least_squares(rows: Sequence[Sequence[int]], values: Sequence[Fraction]) -> list[Fraction]:
    """The shortest of the vectors x that minimise |rows x - values|, exactly."""
    columns = list(zip(*rows, strict=True))
    gram = [[_dot(a, b) for b in columns] for a in columns]
    moments = [_dot(a, values) for a in columns]
    basis, pivots = _reduced(gram)  # rows = rows[pivots] basis, and the pivot columns are independent
    inner = _solved([[gram[i][j] for j in pivots] for i in pivots], [moments[i] for i in pivots])
    outer = _solved([[_dot(a, b) for b in basis] for a in basis], inner)
    return [_dot(column, outer) for column in zip(*basis, strict=True)]


def _reduced(rows: Sequence[Sequence[Fraction]]) -> tuple[list[list[Fraction]], list[int]]:
    """The reduced row echelon form without its zero rows, and its pivot columns."""
    left = [list(row) for row in rows]
    done: list[list[Fraction]] = []
    pivots: list[int] = []
    for column in range(len(left[0])):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        unit = [value / pivot[column] for value in pivot]
        done, left = (
            [[v - row[column] * u for v, u in zip(row, unit, strict=True)] for row in some] for some in (done, left)
        )
        done.append(unit)
        pivots.append(column)
    return done, pivots


def _solved(matrix: Sequence[Sequence[Fraction]], values: Sequence[Fraction]) -> list[Fraction]:
    """The solution of a square system of full rank."""
    reduced, _ = _reduced([[*row, value] for row, value in zip(matrix, values, strict=True)])
    return [row[-1] for row in reduced]


def _dot(a: Sequence[Fraction | int], b: Sequence[Fraction | int]) -> Fraction:
    return Fraction(sum(p * q for p, q in zip(a, b, strict=True)))
