"""A program that grows while it runs: an opening schedule, then segments, as a coordinator sends them.

A rank decides nothing here either. It checks that each segment follows the one before (by number, digest and
length), runs what it is sent, tells the coordinator how far it is and what tokens it has made, and drops what it
has run, so that it can go on forever. One thread listens, so that a cancellation is known in the middle of a
FORWARD; one thread tells.

Messages to the processes, in the mailbox ``down``: the opening schedule, then segments, as in their files; ``cancel``
with the index of a request that is not to be computed any more; ``beat`` where there is nothing to say, ``close`` at
the end. Of a segment's ``cancelled`` no part comes any more, though some of the prompt is left. Messages from the
processes, in the mailbox ``up``, are :class:`Report` s.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from runtime.clock import Clock
from runtime.devices.protocol import Progress
from runtime.faults import Position, RunFailed
from runtime.interpreter import Cancellation, Load, Token
from runtime.mailbox import INTERVAL, Inbox, Outbox
from runtime.plan import samples_of
from runtime.program import Loaded, proven
from runtime.reading import segment_of
from vppc.errors import InputError, VppcError
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, Row
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.segment import Segment

T = TypeVar("T")

STREAM, DOWN, UP = "stream", "down", "up"
"""The part of the store, and the mailboxes in it."""
BEAT, CANCEL, CLOSE = "beat", "cancel ", "close"
GAP = 0.001
"""Seconds between two reports, at least, so that many instructions share one."""


class Live(Generic[T]):
    """Things by an index that goes on counting; ``count`` have come, and those that are dropped have gone."""

    def __init__(self) -> None:
        self._items: dict[int, T] = {}
        self.count = 0

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __contains__(self, index: int) -> bool:
        return index in self._items

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> int:
        """Add the next; its index."""
        self._items[self.count] = item
        self.count += 1
        return self.count - 1

    def drop(self, index: int) -> T:
        """Drop one that is there."""
        return self._items.pop(index)


class Growing:
    """A rank's part of a stream, as a :class:`runtime.plan.Plan`: what it has been sent and not run yet.

    A row goes when its instruction is through (a SEND or RECV with its WAIT), a chunk with the last of its
    instructions here, a request with the chunk of its last part: where its prompt ends, or, if the opening says that
    requests decode, the last that came before it is cancelled. ``take`` gives the next segment, None at the end
    of the stream; it blocks, while ``position`` says so. ``rows_of`` are the rows of an activation of so many tokens.
    """

    def __init__(
        self,
        opening: Schedule,
        rank: int,
        take: Callable[[], Segment | None],
        position: Position,
        cancellation: Cancellation,
        rows_of: Callable[[int], int] = int,
    ) -> None:
        self.model, self.pp, self.extra = opening.model, opening.pp, opening.extra
        self.stages, self.channels = opening.stages, opening.channels
        self.stage_ranks, self.rank_stages = opening.stage_ranks, opening.rank_stages
        self.requests: Live[Request] = Live()
        self.chunks: Live[Chunk] = Live()
        self.loads: dict[int, Load] = {}
        self.programs = {rank: self}
        self._release: Callable[[int], None] = lambda request: None
        self._progress: Progress | None = None
        self._rank, self._take, self._position, self._cancellation = rank, take, position, cancellation
        self._rows_of, self._decodes = rows_of, bool(opening.extra.get("decodes"))
        self._rows: Live[Row] = Live()
        self._next = 0  # the instruction that runs next
        self._dropped = 0  # rows before it are gone, or are of transfers that nobody has waited for
        self._instructions = _instructions(opening, rank)
        self._last_stage = opening.rank_stages[rank][-1]
        self._inside: set[int] = set()  # chunks with stages to run here
        self._left: dict[int, int] = {}  # chunk -> how many of its instructions here have not gone
        self._holding: dict[int, int] = {}  # request -> how many chunks with parts of it have not gone
        self._ended: set[int] = set()  # requests whose last part has come
        position.more = True
        self._grow(opening.requests, opening.chunks, opening.programs[rank].code)

    def attach(self, release: Callable[[int], None], progress: Progress | None) -> None:
        """``release`` is the runner's; ``progress`` tells how far a device is that queues instructions."""
        self._release, self._progress = release, progress

    def __len__(self) -> int:
        return self._rows.count

    def row(self, index: int) -> Row:
        """One instruction. Raises KeyError where it has gone."""
        return self._rows[index]

    def rows(self) -> Iterator[Row]:
        """The instructions; waits for more until the stream is closed."""
        while True:
            while self._next < self._rows.count:
                row = self._rows[self._next]
                yield row
                self._next += 1
                op, chunk, stage, _, _, _ = row
                if op == SAMPLE or (op == FORWARD and stage == self._last_stage and not self.loads[chunk].sampled):
                    self._inside.discard(chunk)
            self._position.index = self._next
            segment = self._take()
            if segment is None:
                self._position.more = False
                return
            self._drop()
            self._extend(segment)

    def _extend(self, segment: Segment) -> None:
        code = array("i")
        for program in segment.programs:
            if program.rank == self._rank:
                if program.start != len(self):
                    raise RunFailed(
                        f"segment {segment.sequence} goes on at instruction {program.start} of rank {self._rank}, "
                        f"which has {len(self)}"
                    )
                code = program.code
        self._grow(segment.requests, segment.chunks, code)
        for request in segment.extra.get("cancelled", ()):
            self._end(request)
        cancelled = self._cancellation.at
        for request in tuple(cancelled):  # to which another thread adds, also requests that have gone by then
            if request < self.requests.count and request not in self.requests:
                del cancelled[request]

    def _grow(self, requests: tuple[Request, ...], chunks: tuple[Chunk, ...], code: array[int]) -> None:
        for request in requests:
            self._holding[self.requests.add(request)] = 0
        for chunk in chunks:
            self._add(chunk)
        each = iter(code)
        for row in zip(each, each, each, each, each, each, strict=True):
            self._rows.add(row)

    def _end(self, request: int) -> None:
        """No part of a request comes any more: it is cancelled."""
        if request not in self.requests or request in self._ended:
            return
        self._ended.add(request)
        chunks = [chunk for chunk in self._inside if request in self.loads[chunk].requests]
        if chunks:
            last = self.loads[max(chunks)]
            self.loads[max(chunks)] = last._replace(leaving=(*last.leaving, request))
            return
        self._release(request)
        if not self._holding[request]:
            self._forget(request)

    def _add(self, chunk: Chunk) -> None:
        if not self._decodes and any(part.decode for part in chunk.parts):
            raise RunFailed(f"chunk {self.chunks.count} decodes, which is not streamed")
        index = self.chunks.add(chunk)
        ending = samples_of(chunk, self.requests)
        sampled = bool(ending) and self.stage_ranks[-1] == self._rank
        requests = frozenset([part.request for part in chunk.parts])
        leaving = () if self._decodes else ending
        self.loads[index] = Load(self._rows_of(chunk.tokens), requests, leaving, sampled)
        self._inside.add(index)
        self._left[index] = self._instructions + sampled
        self._ended.update(leaving)
        for request in requests:
            self._holding[request] += 1

    def _drop(self) -> None:
        """Let go of what has run; on a device that queues instructions, of what the device has run."""
        queued = self._progress.unfinished() if self._progress is not None else None
        stop = self._next if queued is None else queued
        while self._dropped < stop:
            op, _, _, of, _, _ = self._rows[self._dropped]
            if op == WAIT:
                self._rows.drop(self._dropped)
                self._through(self._rows.drop(of)[1])
            elif op not in (SEND, RECV):
                self._through(self._rows.drop(self._dropped)[1])
            self._dropped += 1

    def _through(self, chunk: int) -> None:
        """One more instruction of a chunk is through."""
        self._left[chunk] -= 1
        if self._left[chunk]:
            return
        del self._left[chunk], self.loads[chunk]
        for request in {part.request for part in self.chunks.drop(chunk).parts}:
            self._holding[request] -= 1
            if not self._holding[request] and request in self._ended:
                self._forget(request)

    def _forget(self, request: int) -> None:
        del self._holding[request]
        self._ended.discard(request)
        self.requests.drop(request)


def _instructions(schedule: Schedule, rank: int) -> int:
    """How many instructions a rank has for a chunk, without a SAMPLE."""
    ranks = schedule.stage_ranks
    count = 0
    for stage in schedule.rank_stages[rank]:
        count += 1
        count += stage > 0 and ranks[stage - 1] != rank
        count += stage + 1 < len(ranks) and ranks[stage + 1] != rank
    return count


class Feed:
    """What the coordinator sends, read by a thread of its own. ``count`` messages have come.

    ``cancel`` is told each request to cancel, from that thread. Silence of ``seconds`` means that the coordinator
    is gone. ``settled`` says whether a device is through with all that is queued; it is asked by who waits for more,
    since that is how the end of what is queued is found, and reported.
    """

    def __init__(self, inbox: Inbox, seconds: float, cancel: Callable[[int], None]) -> None:
        self.settled: Callable[[], bool] = lambda: True
        self._inbox, self._seconds, self._cancel = inbox, seconds, cancel
        self._sequence, self._digest = 0, ""
        self._segments: SimpleQueue[Segment | VppcError | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="feed", daemon=True)

    @property
    def count(self) -> int:
        return self._inbox.count

    def open(self) -> Loaded:
        """The opening schedule, proven; from here on the thread listens."""
        data = self._receive()
        while data == BEAT.encode():
            data = self._receive()
        loaded = proven(data, "the opening schedule")
        if "buffer_tokens" not in loaded.schedule.extra:
            raise InputError("does not say how many tokens a buffer holds (buffer_tokens)", file="the opening schedule")
        self._digest = loaded.digest
        self._thread.start()
        return loaded

    def take(self) -> Segment | None:
        """The next segment, None when there will be none; blocks as long as the coordinator lives. Raises RunFailed
        when it is gone, or has sent another segment than the next, InputError when what it has sent is none."""
        segment = self._next()
        if isinstance(segment, VppcError):
            raise segment
        return segment

    def _next(self) -> Segment | VppcError | None:
        while not self.settled():
            with suppress(Empty):
                return self._segments.get(timeout=GAP)
        return self._segments.get()

    def _listen(self) -> None:
        try:
            while (data := self._receive()) != CLOSE.encode():
                if data.startswith(CANCEL.encode()):
                    self._cancel(int(data.removeprefix(CANCEL.encode())))
                elif data != BEAT.encode():
                    self._segments.put(self._read(data))
            self._segments.put(None)
        except VppcError as error:
            self._segments.put(error)

    def _receive(self) -> bytes:
        try:
            return self._inbox.receive(self._seconds)
        except RuntimeError:  # what torch's stores raise
            raise RunFailed(
                f"the coordinator is dead or stopped: it has said nothing for {self._seconds:g} s"
            ) from None

    def _read(self, data: bytes) -> Segment:
        segment = segment_of(data)
        if segment.sequence != self._sequence + 1 or segment.previous != self._digest:
            raise RunFailed(
                f"segment {segment.sequence} behind {segment.previous[:12]} was sent, "
                f"where segment {self._sequence + 1} behind {self._digest[:12]} comes next"
            )
        self._sequence, self._digest = segment.sequence, hashlib.sha256(data).hexdigest()
        return segment


class Report(NamedTuple):
    """What a process says of itself.

    ``read`` messages have been read; the instructions from ``first`` on have ended, each at ``times`` [start, end,
    start, end, ..]; ``tokens`` are (request, token, when). All in seconds from the start of the run, on the
    processes' clock, which reads ``now``, and from which this process's is ``clock`` away: the offset, and its
    uncertainty. ``rank`` is the pipeline rank, ``running`` false before the start and
    ``done`` true after the last instruction of a closed stream. ``prefixes``: the runner takes cached tokens for
    granted; one that computes keeps none from one request to the next. ``longest`` is how many tokens its prompts
    have at most, None for any number.
    """

    process: int
    rank: int
    read: int
    first: int
    times: list[float]
    tokens: list[tuple[int, int, float]]
    now: float
    clock: tuple[float, float]
    running: bool
    done: bool
    prefixes: bool
    longest: int | None = None

    def encode(self) -> str:
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def decode(cls, data: bytes) -> Report:
        return cls(*json.loads(data))


class Reporter:
    """Tells the coordinator what this process has done, from a thread of its own: when there is news, and every
    :data:`INTERVAL` anyway.

    Keeps times as :class:`runtime.interpreter.Times` does. ``origin`` is the start of the run on the common clock,
    ``prefixes`` and ``longest`` are as in :class:`Report`.
    """

    def __init__(self, outbox: Outbox, process: int, rank: int, clock: Clock, feed: Feed) -> None:
        self.origin = 0.0
        self.prefixes = False
        self.longest: int | None = None
        self._outbox, self._process, self._rank, self._clock, self._feed = outbox, process, rank, clock, feed
        self._times: list[float] = []  # on this process's own clock
        self._tokens: list[tuple[int, int, float]] = []
        self._first = 0
        self._news, self._done = threading.Event(), False
        self._lost: RuntimeError | None = None
        self._thread = threading.Thread(target=self._tell, name="reporter", daemon=True)
        self._thread.start()

    def add(self, start: float, end: float) -> None:
        self._times += (start, end)
        if not self._news.is_set():
            self._news.set()

    def report(self, start: float, end: float) -> None:
        """As :meth:`add`, on the common clock."""
        self.add(start - self._clock.offset, end - self._clock.offset)

    def deliver(self, token: Token) -> None:
        """A token has been made, now."""
        self._tokens.append((token.request, token.token, self._clock.now()))
        self._news.set()

    def close(self) -> None:
        """Tell what is left, and that the program is through. Raises RunFailed when the coordinator is gone."""
        self._done = True
        self._news.set()
        self._thread.join()
        if self._lost is not None:
            raise RunFailed(f"the coordinator is dead or stopped: {self._lost}")

    def _tell(self) -> None:
        try:
            done = False
            while not done:
                self._news.wait(INTERVAL)
                self._news.clear()
                done = self._done
                self._outbox.send(self._said(done).encode())
                time.sleep(GAP)
        except RuntimeError as error:  # what torch's stores raise; the watchdog has the word for it, or close
            self._lost = error

    def _said(self, done: bool) -> Report:
        # times are counted first: whoever sees the time of a SAMPLE has its tokens, or there are none
        origin, offset = self.origin, self._clock.offset - self.origin
        times, count = self._times, len(self._times) // 2 * 2
        tokens, made = self._tokens, len(self._tokens)
        report = Report(
            process=self._process,
            rank=self._rank,
            read=self._feed.count,
            first=self._first,
            times=[round(each + offset, 6) for each in times[:count]],
            tokens=[(request, token, round(when - origin, 6)) for request, token, when in tokens[:made]],
            now=self._clock.now() - origin,
            clock=(self._clock.offset, self._clock.uncertainty),
            running=origin > 0,
            done=done,
            prefixes=self.prefixes,
            longest=self.longest,
        )
        del times[:count], tokens[:made]
        self._first += count // 2
        return report
