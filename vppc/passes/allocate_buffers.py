"""allocate_buffers: from a buffer for every value to a small pool that is used again.

A buffer is free again when its value has been read, or, if it was sent, after the WAIT of the SEND. That WAIT
blocks, so where it stands matters: too early stalls the rank and, since both ends must be posted before a
transfer runs, can even close a cycle of waits. So the pass takes the simulated time at which every instruction
runs, and prefers, whenever a buffer is needed,

1. a free buffer;
2. the buffer of a SEND that is complete before then: its WAIT costs nothing;
3. a new buffer, while the pool may grow;
4. the buffer of the SEND that completes first: this WAIT blocks.

A schedule that never comes to 4 keeps its timing, and stays free of deadlock: every WAIT that the pass moves is
later, on the clock of one possible execution, than what it waits for. With a bounded pool, receives that were
posted ahead may have to be posted later. Whatever blocks is proved again, and a pool in which it would deadlock is
made larger.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, replace
from typing import ClassVar

from vppc.analysis.timing import Timing, simulate
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import CheckFailed, InputError
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, WIDTH, Program, Row
from vppc.ir.schedule import Schedule


def run_ahead_pool(pp: int) -> int:
    """Buffers of a rank on a straight placement, where nothing else bounds how far a fast rank runs ahead.

    There no rank sees a chunk leave. As many as there are chunks in flight in the strategy that packs, 3 pp, so that
    what is compared runs equally far ahead.
    """
    return 3 * max(pp, 2)


@dataclass(frozen=True, slots=True)
class AllocateBuffers:
    """Maps values to buffers, ``max_buffers`` a rank at most (None: as many as keep the timing).

    Raises InputError when no program with so few buffers is free of deadlock.
    """

    name: ClassVar[str] = "allocate_buffers"
    cost: CostModel
    max_buffers: int | None = None

    def __call__(self, schedule: Schedule) -> Schedule:
        costs = OpCosts.of(schedule, self.cost)
        timing = simulate(schedule, costs)
        straight = schedule.vp == 1
        limit = self.max_buffers if self.max_buffers is not None else run_ahead_pool(schedule.pp) if straight else None
        extra = {**schedule.extra, "buffer_tokens": max((chunk.tokens for chunk in schedule.chunks), default=0)}
        while True:
            pools = [_Pool(program, timing, schedule, limit) for program in schedule.programs]
            allocated = replace(schedule, programs=tuple(pool.allocate() for pool in pools), extra=extra)
            if limit is None or not any(pool.retimed for pool in pools):
                break
            needed = max(pool.size for pool in pools)
            if needed <= limit and _runs(allocated, costs):
                break
            limit += 1
        if self.max_buffers is not None and limit is not None and limit > self.max_buffers:
            raise InputError(
                f"no way found to run this order with {self.max_buffers} buffers a rank without a deadlock",
                place="--max-buffers",
                remedy=f"allow at least {limit}, or fewer chunks in flight",
            )
        return allocated


def _runs(schedule: Schedule, costs: OpCosts) -> bool:
    try:
        simulate(schedule, costs)
    except CheckFailed:
        return False
    return True


class _Pool:
    """One rank's buffers while its program is rewritten."""

    def __init__(self, program: Program, timing: Timing, schedule: Schedule, limit: int | None) -> None:
        self.program, self.limit = program, limit
        self.size = 0
        self.retimed = False  # whether an instruction was moved to where it blocks, or delays its peer
        self.starts = timing.starts[program.rank]
        self.complete = {  # channel -> when each of its transfers is complete, in the order of its SENDs
            channel.id: iter(transfers.ends)
            for channel, transfers in zip(schedule.channels, timing.transfers, strict=True)
        }
        self.code: list[int] = []
        self.posted: dict[int, int] = {}  # transfer not waited for, by old index -> new index
        self.holds: dict[int, int] = {}  # value (old buffer) -> buffer
        self.free: list[int] = []
        self.sends: list[tuple[float, int, int]] = []  # SENDs not waited for: (complete, old index, buffer)
        self.postponed: dict[int, deque[tuple[int, Row]]] = {}  # channel -> receives not posted yet, (old index, row)

    def allocate(self) -> Program:
        """The program rewritten to buffers of the pool."""
        holds, free, starts, code, postponed = self.holds, self.free, self.starts, self.code, self.postponed
        for index, (op, chunk, stage, x, y, z) in enumerate(self.program.rows()):
            if op == FORWARD:
                target = -1
                if y >= 0:
                    target = holds[y] = free.pop() if free else self._take(starts[index])
                if x >= 0:
                    source = holds.pop(x)
                    code += (FORWARD, chunk, stage, source, target, -1)
                    free.append(source)
                else:
                    code += (FORWARD, chunk, stage, -1, target, -1)
            elif op == WAIT:
                self._wait(x)
            elif op == SEND:
                buffer = holds.pop(x)
                self.sends.append((next(self.complete[z]), index, buffer))
                self.posted[index] = len(code) // WIDTH
                code += (SEND, chunk, stage, buffer, y, z)
            elif op == RECV:
                row = (op, chunk, stage, x, y, z)
                if z in postponed or not self._has_spare(starts[index]):
                    postponed.setdefault(z, deque()).append((index, row))
                    self.retimed = True
                else:
                    self._post(index, row, starts[index])
            else:
                buffer = holds.pop(x)
                code += (SAMPLE, chunk, -1, buffer, -1, -1)
                free.append(buffer)
            while postponed and self._has_spare(starts[index]):
                self._post_next(min(postponed, key=lambda channel: postponed[channel][0][0]), starts[index])
        return replace(self.program, buffers=self.size, code=array("i", code))

    def _take(self, now: float) -> int:
        """A buffer that may be written at ``now``, by the preferences of the module's docstring."""
        if self.free:
            return self.free.pop()
        grows = self.limit is None or self.size < self.limit
        if self.sends:
            first = min(self.sends)
            if first[0] < now or not grows:
                self.retimed |= first[0] >= now
                self._wait(first[1])
                return self.free.pop()
        self.size += 1  # past the limit if nothing else is left; the caller then tries a larger pool
        self.retimed |= not grows
        return self.size - 1

    def _has_spare(self, now: float) -> bool:
        """Whether a receive posted ahead leaves a buffer to compute into."""
        if self.limit is None:
            return True
        complete = sum(1 for done, _, _ in self.sends if done < now)
        return len(self.free) + complete + self.limit - self.size >= 2

    def _post_next(self, channel: int, now: float) -> None:
        """Post the first of the channel's postponed receives."""
        waiting = self.postponed[channel]
        self._post(*waiting.popleft(), now)
        if not waiting:
            del self.postponed[channel]

    def _post(self, index: int, row: Row, now: float) -> None:
        _, chunk, stage, value, peer, channel = row
        self.holds[value] = buffer = self._take(now)
        self.posted[index] = len(self.code) // WIDTH
        self.code += (RECV, chunk, stage, buffer, peer, channel)

    def _wait(self, of: int) -> None:
        """Wait for the transfer that old instruction ``of`` posts, unless that has been done already."""
        if self.program.code[of * WIDTH] == SEND:
            if of not in self.posted:
                return
            [sent] = [send for send in self.sends if send[1] == of]
            self.sends.remove(sent)
            self.free.append(sent[2])
        while of not in self.posted:  # a postponed receive is needed now, and all before it on its channel
            self._post_next(self.program.code[of * WIDTH + WIDTH - 1], float("-inf"))
        self.code += (WAIT, -1, -1, self.posted.pop(of), -1, -1)
