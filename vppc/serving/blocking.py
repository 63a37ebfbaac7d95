"""The blocking scheme, request by request: by its barrier one starts when rank 0 has finished the one before.

So a request, or those that share a chunk, is compiled by itself with the passes of ``vpp``: nothing else is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from vppc.analysis.times import Timing
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, SEND, Program
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.passes.admission import Admission
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.list_schedule import Ran, Source
from vppc.passes.order import StepOrder


class Block(NamedTuple):
    """The programs of some chunks alone, of which the first is number ``first`` of the stream, and for every rank when
    its instructions end, on the clock that begins at ``start``."""

    first: int
    programs: tuple[Program, ...]
    start: float
    ends: tuple[list[float], ...]


class BlockClock:
    """The clock of the blocking scheme; see :class:`vppc.serving.clock.Clock`.

    Raises InputError for placements on which rank 0 does not see a request's end.
    """

    def __init__(self, setup: Schedule, cost: CostModel, in_flight: int, source: Source) -> None:
        if setup.stage_ranks[-1] != 0:
            raise InputError(
                "rank 0 does not hold the last stage, so that it does not see a request's end",
                place="--placement",
                remedy="use placement v for strategy vpp",
            )
        self._setup, self._in_flight, self._source = setup, in_flight, source
        self.reprice(cost)
        self._free = self._wake = 0.0
        self._first = 0
        self._chunks: list[Chunk] = []  # of the request that is about to start
        self._requests: dict[int, Request] = {}
        self._ran: list[Ran] = []
        self._blocks: list[Block] = []

    def reprice(self, cost: CostModel) -> None:
        """Plan the requests that are to come by other costs."""
        self._cost = cost
        order = StepOrder(Admission(self._in_flight, barrier=True), blocking=True)
        self._passes = (order, InsertTransfers(cost), AllocateBuffers(cost))

    def enter(self, chunk: Chunk, requests: Sequence[Request], now: float, group: int) -> None:
        """The next chunk, and the request of each of its parts."""
        self._chunks.append(chunk)
        self._requests.update((part.request, request) for part, request in zip(chunk.parts, requests, strict=True))

    def look(self, rank: int, at: float) -> None:
        """Look again at that time, or as soon as rank 0 is free."""
        self._wake = min(self._wake, max(at, self._free))

    def next_look(self) -> float:
        """When the next request may start."""
        return self._wake

    def run(self, before: float = inf) -> None:
        """Commit the requests that start before that time."""
        while self._wake < before:
            now = self._wake
            while (later := self._source.propose(now)) <= now:
                self._source.take(now)
            self._wake = later
            if self._chunks:
                self._run(now)

    def take_ran(self) -> list[Ran]:
        """What was run since the last time, in the order of its starts."""
        ran, self._ran = self._ran, []
        return sorted(ran, key=lambda each: each.start)

    def take_blocks(self) -> list[Block]:
        """The programs of what was run since the last time."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def _run(self, now: float) -> None:
        local = {request: number for number, request in enumerate(self._requests)}
        schedule = replace(
            self._setup,
            requests=tuple(replace(request, arrival=0.0) for request in self._requests.values()),
            chunks=tuple(
                Chunk(tuple(replace(part, request=local[part.request]) for part in chunk.parts))
                for chunk in self._chunks
            ),
        )
        for step in self._passes:
            schedule = step(schedule)
        timing = simulate(schedule, OpCosts.of(schedule, self._cost))
        ran = _times(schedule, timing, now, self._first)
        self._ran += ran
        self._blocks.append(Block(self._first, schedule.programs, now, timing.ends))
        self._first += len(self._chunks)
        self._chunks, self._requests = [], {}
        self._free = self._wake = max(op.end for op in ran if op.rank == 0)
        for op in ran:
            if op.stage + 1 == len(schedule.stages):
                self._source.finish(op.start, op.end)


def _times(schedule: Schedule, timing: Timing, now: float, first: int) -> list[Ran]:
    """The operations of a schedule that starts ``now`` with chunk number ``first``, by rank."""
    arrives = {
        (channel.src, send): end
        for channel, transfers in zip(schedule.channels, timing.transfers, strict=True)
        for send, end in zip(transfers.sends, transfers.ends, strict=True)
    }
    ran = []
    for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True):
        at = {
            (chunk, stage): arrives[program.rank, index]
            for index, (op, chunk, stage, *_) in enumerate(program.rows())
            if op == SEND
        }
        for index, (op, chunk, stage, *_) in enumerate(program.rows()):
            if op == FORWARD:
                there = at.get((chunk, stage), ends[index])
                ran.append(Ran(first + chunk, stage, program.rank, now + starts[index], now + ends[index], now + there))
    return ran
