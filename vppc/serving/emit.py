"""From committed operations to instructions, piece by piece: the rules of the passes, in a window behind the clock.

* A RECV is posted before the operation that runs when its value is sent, as in
  :mod:`vppc.passes.insert_transfers`, so that posting never delays a transfer. What is sent until an operation ends
  must be known when that operation is emitted: :meth:`Emitter.emit` takes the time up to which all is committed.
* Buffers come from a pool that cannot grow. A SEND is waited for when a buffer is needed and, on the clock, the
  SEND is complete, as in :mod:`vppc.passes.allocate_buffers`: the WAIT costs nothing.

**Why the pool suffices, and nothing hangs.** At any time of the clock a chunk in flight has one activation: on a rank
it holds one buffer at most (received, folded, or on its way in or out), and where it is being computed one more for the
output. So a rank with :data:`SPARE` buffers more than there may be chunks in flight always has one when it must. A RECV
that is posted before its value exists may take a second buffer for its chunk; some more are kept for
those, and when these are in use the RECV is posted an operation later. Every WAIT stands, on the clock, behind
the end of its transfer, or behind a post that depends only on what was sent before.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from math import inf
from typing import NamedTuple

from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, WIDTH, Program
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Continuation
from vppc.passes.list_schedule import Ran
from vppc.serving.blocking import Block
from vppc.serving.clock import SPARE

PLAN = 4096
"""Instructions of a rank, at most, that were emitted and whose end is not reported, with their planned times."""


class _Sent(NamedTuple):
    """A value on its way: sent at ``at``, for ``stage`` of ``chunk``, which entered the pipeline at ``entered``."""

    at: float
    chunk: int
    stage: int
    entered: float


class Emitter:
    """The programs of all ranks, as far as they are committed; what has been taken is forgotten."""

    def __init__(self, setup: Schedule, buffers: int, in_flight: int) -> None:
        self._ranks = setup.stage_ranks
        ahead = buffers - in_flight - SPARE
        self._lanes = [_Lane(setup, rank, buffers, ahead) for rank in range(setup.pp)]
        self._entered: dict[int, float] = {}
        self._last = len(self._ranks) - 1
        self._chunks = 0
        self._samples: dict[int, bool] = {}  # of the chunks whose last stage is not committed

    def commit(self, operations: Iterable[Ran], samples: Iterable[bool]) -> None:
        """More operations, in the order of their starts; ``samples`` says of every new chunk if it makes a token."""
        for sample in samples:
            self._samples[self._chunks] = sample
            self._chunks += 1
        for op in operations:
            if op.stage == 0:
                self._entered[op.chunk] = op.start
            here = self._lanes[op.rank]
            here.pending.append(op)
            if op.stage == self._last:
                del self._entered[op.chunk]
                here.samples[op.chunk] = self._samples.pop(op.chunk)
            elif (peer := self._ranks[op.stage + 1]) != op.rank:
                sent = _Sent(op.end, op.chunk, op.stage + 1, self._entered[op.chunk])
                self._lanes[peer].incoming[op.rank].append(sent)

    def append(self, block: Block) -> None:
        """Emit what was compiled by itself, between two times at which nothing is under way."""
        for lane, program, ends in zip(self._lanes, block.programs, block.ends, strict=True):
            lane.append(program, block.first, [block.start + end for end in ends])

    def known_until(self, before: float) -> float:
        """How far the clock must have run for :meth:`emit`: to the end of the operations that start before then."""
        ends = (op.end for lane in self._lanes for op in takewhile(lambda op: op.start < before, lane.pending))
        return max(ends, default=before)

    def next_start(self) -> float:
        """When the first operation starts that is not emitted; infinite when there is none."""
        return min((lane.pending[0].start for lane in self._lanes if lane.pending), default=inf)

    def emit(self, before: float, rank: int | None = None) -> None:
        """Emit the operations that start before then, of all ranks or of one; all that starts before they end has been
        committed, or the RECVs of what is not are posted behind them."""
        for lane in self._lanes if rank is None else (self._lanes[rank],):
            while lane.pending and lane.pending[0].start < before:
                lane.run(lane.pending.popleft())

    def post(self, before: float) -> None:
        """Post the RECVs of all that is sent before then, where nothing more is to be emitted for now: whatever waits
        for a SEND then waits for what is in the lists."""
        for lane in self._lanes:
            lane.receive(before, before)

    def close(self) -> None:
        """Emit all, and the WAITs that are left."""
        self.emit(inf)
        for lane in self._lanes:
            lane.close()

    def lag(self, rank: int, instruction: int, now: float) -> float | None:
        """How much later than planned that instruction has run; None where the plan is no longer, or not, known."""
        planned, plan = None, self._lanes[rank].plan
        while plan and plan[0][0] <= instruction:
            planned = plan.popleft()[1]
        return None if planned is None else now - planned

    def take(self) -> tuple[Continuation, ...]:
        """What was emitted since the last time."""
        return tuple(lane.take() for lane in self._lanes if lane.code)


class _Lane:
    """One rank: its program's end, its buffers, and what it is to run and to receive."""

    def __init__(self, setup: Schedule, rank: int, buffers: int, ahead: int) -> None:
        ranks = setup.stage_ranks
        ids = {(channel.src, channel.dst): channel.id for channel in setup.channels}
        self.rank, self.ahead, self.last = rank, ahead, len(ranks) - 1
        self.start = 0  # instructions that were taken
        self.code = array("i")
        self.pending: deque[Ran] = deque()
        self.plan: deque[tuple[int, float]] = deque(maxlen=PLAN)  # instructions, and when they are through
        self.samples: dict[int, bool] = {}
        self.incoming: dict[int, deque[_Sent]] = {src: deque() for src, dst in ids if dst == rank}
        self.channel_from = {src: id for (src, dst), id in ids.items() if dst == rank}
        self.channel_to = {dst: id for (src, dst), id in ids.items() if src == rank}
        self.next_rank = [*ranks[1:], rank]
        self.free = list(range(buffers - 1, -1, -1))
        self.inputs: dict[tuple[int, int], int] = {}  # (chunk, stage) -> buffer with its input
        self.posted: dict[tuple[int, int], int] = {}  # (chunk, stage) -> the RECV of its input
        self.sends: list[tuple[float, int, int, int]] = []  # not waited for: (complete, index, buffer, chunk), a heap
        self.sending: dict[int, float] = {}  # chunk -> when its SEND not waited for is complete
        self.early: list[float] = []  # when the values of RECVs that take a second buffer are sent

    def run(self, op: Ran) -> None:
        """Emit an operation, and before it the RECVs of what is sent while it runs."""
        chunk, stage = op.chunk, op.stage
        self.receive(op.start, op.end)
        source, target = -1, -1
        if stage:
            if (chunk, stage) in self.posted:
                self.plan.append((self._length(), op.start))
                self._wait(self.posted.pop((chunk, stage)))
            source = self.inputs.pop((chunk, stage))
        sampled = stage == self.last and self.samples.pop(chunk)
        if stage < self.last or sampled:
            target = self._take(op.start)
        self.plan.append((self._length(), op.end))
        self.code.extend((FORWARD, chunk, stage, source, target, -1))
        if source >= 0:
            self.free.append(source)
        if sampled:
            self.code.extend((SAMPLE, chunk, -1, target, -1, -1))
            self.free.append(target)
        elif stage < self.last:
            peer = self.next_rank[stage]
            if peer == self.rank:
                self.inputs[chunk, stage + 1] = target
            else:
                heappush(self.sends, (op.arrives, self._length(), target, chunk))
                self.sending[chunk] = op.arrives
                self.code.extend((SEND, chunk, stage, target, peer, self.channel_to[peer]))

    def append(self, program: Program, first: int, ends: Sequence[float]) -> None:
        """Emit a program whose chunk 0 is number ``first`` here, and whose instructions end then."""
        start = self._length()
        for (op, chunk, stage, x, y, z), end in zip(program.rows(), ends, strict=True):
            if op == WAIT:
                self._wait(start + x)
            else:
                if op == FORWARD:
                    self.plan.append((self._length(), end))
                self.code.extend((op, first + chunk, stage, x, y, z))

    def close(self) -> None:
        while self.sends:
            self._wait_send()

    def take(self) -> Continuation:
        more = Continuation(self.rank, self.start, self.code)
        self.start += len(more)
        self.code = array("i")
        return more

    def _length(self) -> int:
        return self.start + len(self.code) // WIDTH

    def receive(self, start: float, end: float) -> None:
        """Post what is sent before ``end``, in the order in which it is sent, as far as there are buffers."""
        self.early = [sent for sent in self.early if sent > start]
        while True:
            coming = [(sent[0], peer) for peer, sent in self.incoming.items() if sent and sent[0].at < end]
            posted = False
            for sent, peer in sorted(coming):
                if self._may_post(sent, start):
                    self._post(self.incoming[peer].popleft(), peer, start)
                    posted = True
                    break
            if not posted:
                return

    def _may_post(self, sent: _Sent, start: float) -> bool:
        if sent.at <= start:
            return True
        if sent.entered <= start and self.sending.get(sent.chunk, -inf) <= start:
            return True
        if len(self.early) >= self.ahead:
            return False
        self.early.append(sent.at)
        return True

    def _post(self, sent: _Sent, peer: int, start: float) -> None:
        key = sent.chunk, sent.stage
        buffer = self.inputs[key] = self._take(start)
        self.posted[key] = self._length()
        self.code.extend((RECV, sent.chunk, sent.stage, buffer, peer, self.channel_from[peer]))

    def _take(self, now: float) -> int:
        if not self.free:
            assert self.sends and self.sends[0][0] <= now, "a rank has a buffer for every chunk in flight"
            self._wait_send()
        return self.free.pop()

    def _wait_send(self) -> None:
        complete, index, buffer, chunk = heappop(self.sends)
        if self.sending.get(chunk) == complete:
            del self.sending[chunk]
        self._wait(index)
        self.free.append(buffer)

    def _wait(self, of: int) -> None:
        self.code.extend((WAIT, -1, -1, of, -1, -1))
