"""The pipeline on a clock: requests come and go, and chunks are made of them when rank 0 is free, not before.

:class:`Pipeline` is what the serving simulator drives and what the incremental compiler emits instructions of:

    pipeline = Pipeline(header, cost, limits, policy, "vpp-packed")     header: stages and channels, see `header_of`
    pipeline.submit(request, now)       the request comes at max(now, request.arrival)
    pipeline.cancel(request_id, now)
    pipeline.run(before)                commits all that starts before that time; inf: all
    pipeline.next_event()               when something can start next; inf when nothing is left
    pipeline.take_committed()           what was committed since the last time: requests, chunks, operations, cancelled
    pipeline.take_finished()            the first tokens since the last time

Times are seconds of one clock, which never goes back. What has been taken is forgotten, so memory stays flat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

from vppc.costs.model import CostModel, Prices
from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Model, Part, Request, Schedule
from vppc.passes.admission import default_in_flight
from vppc.passes.layout import Layout
from vppc.passes.list_schedule import ListScheduler, Ran, Source
from vppc.passes.online_chunking import Batch
from vppc.passes.strategies import Options, layout_of
from vppc.serving.batching import Batcher, ChunkRule, Fixed, Limits, Share
from vppc.serving.blocking import Block, BlockClock
from vppc.serving.policy import Policy, Queue, Waiting

SPARE = 1
"""Buffers of a rank beside one for each chunk in flight, for the output that is being written."""
AHEAD = 2
"""And further ones, for RECVs that are posted before their value exists; see :mod:`vppc.serving.emit`."""
SHORTEST = 1e-6
"""Seconds of an operation at least, where instructions are made of them: one is behind another by its time alone, and
costs, a fitted one's of a kind of layers, say, may be nothing."""


class QueueFull(InputError):
    """The queue takes no more requests at present."""


class FirstToken(NamedTuple):
    """A request (``request`` is its index) whose prompt is through: when it came, when its first chunk started, and
    when its token was made."""

    id: str
    request: int
    came: float
    started: float
    made: float


class Committed(NamedTuple):
    """What was decided: new requests (their indices go on counting), chunks and whether each makes a token,
    operations by start, in the blocking scheme also their programs, and the indices of requests that are cancelled
    with a part of their prompt in no chunk."""

    requests: tuple[Request, ...]
    chunks: tuple[Chunk, ...]
    samples: tuple[bool, ...]
    operations: tuple[Ran, ...]
    blocks: tuple[Block, ...]
    cancelled: tuple[int, ...]


@dataclass(slots=True)
class _Running:
    """A request with chunks in the pipeline."""

    waiting: Waiting
    started: float
    chunks: int = 0
    """Its chunks in flight."""
    cancelled: bool = False


class _InFlight(NamedTuple):
    chunk: Chunk
    entered: float
    ending: tuple[int, ...]


def header_of(options: Options, model: Model) -> Schedule:
    """The stages and channels of a strategy, without requests. Raises InputError."""
    placement, vp, _ = layout_of(options)
    return Layout(placement, vp, options.split, options.ranges)(Schedule(options.strategy, model, options.pp, 1))


class Clock(Protocol):
    """Runs the chunks that enter. Of :class:`ListScheduler`, which see, and of :class:`BlockClock`."""

    def enter(self, chunk: Chunk, requests: Sequence[Request], now: float, group: int) -> None:
        """The next chunk, and the request of each of its parts."""
        ...

    def reprice(self, cost: CostModel) -> None: ...
    def look(self, rank: int, at: float) -> None: ...
    def next_look(self) -> float: ...
    def run(self, before: float = inf) -> None: ...
    def take_ran(self) -> list[Ran]: ...
    def take_blocks(self) -> list[Block]: ...


class ListClock(ListScheduler):
    """The list scheduler, with chunks that it prices as they enter; an operation takes ``shortest`` seconds at least.
    With ``several`` groups of chunks a late stage of an earlier one may go first."""

    def __init__(
        self,
        setup: Schedule,
        cost: CostModel,
        *,
        several: bool,
        source: Source | None = None,
        shortest: float = SHORTEST,
    ) -> None:
        super().__init__(setup, several=several, source=source)
        self._setup, self._shortest = setup, shortest
        self._prices = Prices(setup.stages, cost)

    def enter(self, chunk: Chunk, requests: Sequence[Request], now: float, group: int) -> None:
        """See :class:`Clock`."""
        ends = {part.request: request.prompt_tokens for part, request in zip(chunk.parts, requests, strict=True)}
        costs = self._prices.of((chunk,), ends)
        seconds = [max(each, self._shortest) for each in costs.seconds]
        self.extend(replace(costs, seconds=seconds), (now,), (-1,), (group,))

    def reprice(self, cost: CostModel) -> None:
        """See :class:`Clock`."""
        self._prices = Prices(self._setup.stages, cost)

    def take_blocks(self) -> list[Block]:
        """None: its operations are emitted one by one."""
        return []


class Pipeline:
    """The ranks on a clock, with the queue in front of them; ``shortest`` is what an operation takes at least, seconds.

    Raises InputError for limits that cannot work.
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
        shortest: float = 0.0,
    ) -> None:
        self.limits, self.policy = limits, policy
        self.in_flight, self.buffers = _room(setup, limits, policy, strategy)
        self._barrier = strategy in ("vpp", "vpp-async")
        self._batcher = Batcher(Queue(policy), rule or Fixed(limits.chunk_size), limits)
        self._clock: Clock
        if strategy == "vpp":
            self._clock = BlockClock(setup, cost, self.in_flight, self)
            self._may_enter: float = inf  # its clock sees to the chunks in flight
        else:
            self._clock = ListClock(setup, cost, several=policy.finish_first, source=self, shortest=shortest)
            self._may_enter = self.in_flight

        self._numbers = 0
        self._coming: list[tuple[float, int, Waiting]] = []  # those that have not come yet, a heap
        self._given_up = 0  # of those
        self._by_id: dict[str, Waiting] = {}  # all that are not through
        self._running: dict[int, _Running] = {}  # by index
        self._indices = 0
        self._group = -1  # grows where a prompt ends, whose first token should not wait for later prompts
        self._ended = True
        self._shares: list[Share] = []  # of the chunk that was proposed and not taken
        self._proposal: Chunk | None = None
        self._flying: deque[_InFlight] = deque()
        self._leaving: deque[tuple[_InFlight, Batch]] = deque()
        self._last_end = -inf  # of the last stage
        self._in_flight = 0
        self._asked = 0.0  # when it was last seen what has left; who comes in the clock's past goes on from there
        self._resident = 0

        self._new_requests: list[Request] = []
        self._new_chunks: list[Chunk] = []
        self._samples: list[bool] = []
        self._cancelled: list[int] = []
        self._finished: list[FirstToken] = []

    @property
    def queued(self) -> int:
        """Requests that wait, those with a part of their prompt in chunks included."""
        return len(self._batcher.queue) + len(self._coming) - self._given_up

    @property
    def over(self) -> int:
        """So many requests of the stream, the first ones, are through."""
        return min(self._running, default=self._indices)

    def submit(self, request: Request, now: float, arrival: float | None = None) -> None:
        """A request comes, now or at its later arrival; that is given where the request's own is on another clock.

        Raises QueueFull, and InputError for an id in use, a prompt without a token to compute, and one that can
        never be resident.
        """
        limit = self.limits.max_resident_tokens
        if request.id in self._by_id:
            raise InputError(f"the id {request.id!r} is in use", remedy="give each request an id of its own")
        if not 0 <= request.cached_tokens < request.prompt_tokens:
            raise InputError(
                f"request {request.id} has {request.cached_tokens} of {request.prompt_tokens} tokens cached",
                remedy="leave at least the last token to compute: it makes the first new one",
            )
        if limit is not None and request.prompt_tokens > limit:
            raise InputError(
                f"request {request.id} has {request.prompt_tokens} tokens, of which {limit} may be resident",
                remedy="raise the limit on resident tokens",
            )
        if self.limits.max_queued is not None and self.queued - len(self._batcher.started) >= self.limits.max_queued:
            raise QueueFull(f"{self.limits.max_queued} requests wait already", remedy="try again later")
        comes = max(now, request.arrival if arrival is None else arrival)
        waiting = Waiting(request, self._numbers, comes, request.cached_tokens)
        self._numbers += 1
        self._by_id[request.id] = waiting
        heappush(self._coming, (comes, waiting.number, waiting))
        self._clock.look(0, max(comes, self._asked))

    def cancel(self, request_id: str, now: float) -> bool:
        """A request is given up; whether it was there and not through, in the plan. What is in chunks stays there."""
        waiting = self._by_id.pop(request_id, None)
        if waiting is None:
            return False
        if waiting.index >= 0:
            running = self._running[waiting.index]
            running.cancelled = True
            if waiting.left:
                self._cancelled.append(waiting.index)
                self._batcher.drop(waiting)
                if not running.chunks:
                    self._release(waiting.index)
        elif waiting.queued:
            self._batcher.drop(waiting)
        else:
            self._given_up += 1
        waiting.gone = True
        self._clock.look(0, max(now, self._asked))
        return True

    def run(self, before: float = inf) -> None:
        """Commit all that starts before that time."""
        self._clock.run(before)

    def replan(self, cost: CostModel) -> None:
        """Price the chunks that are to come by other costs, and choose whose they are."""
        self._batcher.queue.reprice(cost)
        self._clock.reprice(cost)

    def next_event(self) -> float:
        """When something can start next; infinite when nothing is left to do."""
        return self._clock.next_look()

    def take_committed(self) -> Committed:
        """What was committed since the last time."""
        committed = Committed(
            tuple(self._new_requests),
            tuple(self._new_chunks),
            tuple(self._samples),
            tuple(self._clock.take_ran()),
            tuple(self._clock.take_blocks()),
            tuple(self._cancelled),
        )
        self._new_requests.clear()
        self._new_chunks.clear()
        self._samples.clear()
        self._cancelled.clear()
        return committed

    def take_finished(self) -> list[FirstToken]:
        """The first tokens since the last time, in the order in which they are made."""
        finished, self._finished = self._finished, []
        return finished

    def propose(self, now: float) -> float:
        """See :class:`vppc.passes.list_schedule.Source`."""
        self._arrive(now)
        comes = self._coming[0][0] if self._coming else inf
        if not self._batcher.queue:
            return comes
        self._retire(now)
        self._asked = now
        if self._in_flight >= self._may_enter:
            return self._leaving[0][1].end if self._leaving else inf
        limit = self.limits.max_resident_tokens
        room = inf if limit is None else limit - self._resident
        shares = self._batcher.propose(now, room, barrier=self._barrier, idle=not self._in_flight)
        if not shares:
            return min(comes, self._leaving[0][1].end) if self._leaving else comes
        fresh = self._indices
        parts = []
        for waiting, tokens in shares:
            if waiting.index < 0:
                waiting.index, fresh = fresh, fresh + 1
            parts.append(Part(waiting.index, waiting.covered, tokens))
        chunk = Chunk(tuple(parts))
        group = self._group + self._ended
        self._clock.enter(chunk, [share.waiting.request for share in shares], now, group)
        self._shares, self._proposal = shares, chunk
        return now

    def take(self, now: float) -> None:
        """See :class:`vppc.passes.list_schedule.Source`."""
        assert self._proposal is not None
        self._group += self._ended
        self._batcher.take(self._shares, now)
        for waiting, _ in self._shares:
            if waiting.index >= self._indices:
                self._indices = waiting.index + 1
                self._new_requests.append(waiting.request)
                self._running[waiting.index] = _Running(waiting, now)
                self._resident += waiting.request.prompt_tokens
            self._running[waiting.index].chunks += 1
        ending = tuple(share.waiting.index for share in self._shares if not share.waiting.left)
        self._ended = bool(ending)
        self._flying.append(_InFlight(self._proposal, now, ending))
        self._new_chunks.append(self._proposal)
        self._samples.append(bool(ending))
        self._in_flight += 1
        self._shares, self._proposal = [], None

    def pass_over(self, now: float) -> None:
        """See :class:`vppc.passes.list_schedule.Source`."""
        for waiting, _ in self._shares:
            if waiting.index >= self._indices:
                waiting.index = -1
        self._batcher.give_back(self._shares, now)
        self._shares, self._proposal = [], None

    def finish(self, start: float, end: float) -> None:
        """See :class:`vppc.passes.list_schedule.Source`."""
        flying = self._flying.popleft()
        for index in flying.ending:
            running = self._running[index]
            if not running.cancelled:
                waiting = running.waiting
                self._by_id.pop(waiting.request.id, None)
                self._finished.append(FirstToken(waiting.request.id, index, waiting.since, running.started, end))
        parts = tuple((part.tokens, part.start) for part in flying.chunk.parts)
        wait = start - max(flying.entered, self._last_end)
        self._leaving.append((flying, Batch(parts, end - start, wait, end)))
        self._last_end = end
        self._clock.look(0, end)

    def _arrive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, _, waiting = heappop(self._coming)
            if waiting.gone:
                self._given_up -= 1
            else:
                self._batcher.queue.add(waiting)

    def _retire(self, now: float) -> None:
        """Chunks that have finished by now make room."""
        while self._leaving and self._leaving[0][1].end <= now:
            flying, batch = self._leaving.popleft()
            self._in_flight -= 1
            self._batcher.rule.record(batch)
            for part in flying.chunk.parts:
                index = part.request
                running = self._running[index]
                running.chunks -= 1
                if not running.chunks and (running.cancelled or not running.waiting.left):
                    self._release(index)

    def _release(self, index: int) -> None:
        running = self._running.pop(index)
        self._resident -= running.waiting.request.prompt_tokens


def _room(setup: Schedule, limits: Limits, policy: Policy, strategy: str) -> tuple[int, int]:
    """How many chunks may be in flight, and how many buffers a rank has.

    Without a limit as many chunks as there are ranks on a straight placement. On others what the order needs, or by
    the paper's policy one more than there are ranks.
    """
    if setup.vp == 1:
        usual = setup.pp
    elif policy.one_more:
        usual = setup.pp + 1
    else:
        usual = default_in_flight(setup.stage_ranks, strategy == "vpp-packed")
    in_flight = limits.max_in_flight or usual
    if strategy == "vpp":
        needed = 2 * setup.vp  # a step's outputs, and its inputs or what it receives
        if limits.max_buffers is not None and limits.max_buffers < needed:
            raise InputError(
                f"{limits.max_buffers} buffers a rank are too few for the blocking scheme",
                place="--max-buffers",
                remedy=f"allow {needed}: in a step a rank holds {setup.vp} values and receives as many",
            )
        return in_flight, limits.max_buffers or needed
    if limits.max_buffers is None:
        return in_flight, in_flight + SPARE + AHEAD
    return min(in_flight, limits.max_buffers - SPARE), limits.max_buffers
