"""The coordinator: requests come in line by line, verified segments go out to the ranks, first tokens come back.

One loop does everything that changes anything; threads only wait for it: one for lines, one for the ranks' reports.
Every pass of the loop submits what is due, lets the compiler advance to the present, sends what it gives, and then
sleeps until something happens, :data:`TICK` seconds at most. Times are seconds from the moment when all ranks were
ready to run, on the coordinator's clock.

What comes out, a JSON object each, as it happens:

    {"id": "a", "token": 17, "ttft": 0.211}     the first token, and its time from the moment the request counted
    {"id": "a", "cancelled": true}
    {"id": "a", "refused": "64 requests wait already"}      a full queue, or a server that is about to end
    {"line": 3, "error": "line 3: ..."}                     a line that is no request, or one that cannot be served
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from runtime.faults import RunFailed
from runtime.mailbox import INTERVAL
from runtime.stream import Report
from vppc.errors import InputError, VppcError
from vppc.ir.document import schedule_text, segment_text
from vppc.ir.instruction import WIDTH
from vppc.ir.schedule import Request
from vppc.ir.segment import Segment
from vppc.serving.clock import QueueFull
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.drift import Drift
from vppc.serving.lines import Cancel, Line, parse_line, read_lines
from vppc.serving.ranks import Ranks
from vppc.serving.refit import Found, Refit
from vppc.serving.stream_journal import StreamJournal

TICK = 0.1
"""Seconds between two passes of the loop, at most."""
PAUSE = 0.0005
"""And at least, so that what happens at once is answered at once."""
CLOCK_DRIFT = 1e-4
"""Seconds a second by which clocks of two machines part, at most."""
AHEAD = 1024
"""Lines that are read and do not count yet; further ones stay where they are."""


class End(NamedTuple):
    """No more lines count: the input has ended; or SIGTERM has come, and what is not accepted by then is refused."""

    terminated: bool


Event: TypeAlias = Report | Line | End | Found | VppcError


class _Due(NamedTuple):
    """What was asked, the moment when it counts, and the line."""

    when: float
    line: int
    asked: Request | Cancel


@dataclass(slots=True)
class _Open:
    """A request that is to get its first token; ``index`` in the stream, or -1."""

    request: Request
    came: float
    index: int = -1


@dataclass(slots=True)
class Served:
    """What a server has done; ``ttfts`` in seconds; ``makespan`` from the first request to the last first token."""

    accepted: int = 0
    cancelled: int = 0
    refused: int = 0
    wrong: int = 0
    ttfts: array[float] = field(default_factory=lambda: array("d"))
    first: float = 0.0
    last: float = 0.0

    @property
    def makespan(self) -> float:
        return max(0.0, self.last - self.first)  # there may be no first token

    def summary(self, drift: float | None) -> str:
        """A line for the operator; ``drift`` is that of the last FORWARDs."""
        words = [f"{len(self.ttfts)} first tokens of {self.accepted} requests in {self.makespan:.3f} s"]
        if self.ttfts:
            ttfts = sorted(self.ttfts)
            p50, p99 = ttfts[(len(ttfts) - 1) // 2], ttfts[(99 * len(ttfts) - 1) // 100]
            words.append(f"TTFT P50 {p50:.3f} s, P99 {p99:.3f} s, at most {ttfts[-1]:.3f} s")
        counts = ((self.cancelled, "cancelled"), (self.refused, "refused"), (self.wrong, "wrong"))
        words += [f"{count} {what}" for count, what in counts if count]
        if drift is not None:
            words.append(f"FORWARDs took {abs(drift):.1%} {'longer' if drift > 0 else 'less'} than planned")
        return "; ".join(words)


class Coordinator:
    """Serves one stream on ``ranks`` of ``tp`` processes.

    ``write`` gets what comes out; ``notice`` what an operator is to know, in words; ``journal`` what was sent and run.
    """

    def __init__(
        self,
        compiler: IncrementalCompiler,
        ranks: Ranks,
        drift: Drift,
        write: Callable[[Mapping[str, Any]], None],
        notice: Callable[[str], None],
        *,
        tp: int = 1,
        journal: StreamJournal | None = None,
    ) -> None:
        self.served = Served()
        self._journal = journal
        self._prefixes = True  # all ranks take cached prefixes for granted
        self._longest = math.inf  # tokens of a prompt that all of them take
        self._compiler, self._ranks, self._drift, self._tp = compiler, ranks, drift, tp
        self._write, self._notice = write, notice
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._refit = Refit(drift, notice, self._events.put)
        self._room = threading.Semaphore(AHEAD)  # for lines
        self._due: list[_Due] = []
        self._open: dict[str, _Open] = {}
        self._started: dict[int, _Open] = {}  # by index in the stream
        self._indices = 0
        self._ended = self._terminated = False
        self._start = time.monotonic()
        self._skews = [math.inf] * ranks.size  # from each process's clock to this one, and a report's quickest way
        self._measured = [0.0] * ranks.size  # when that was
        self._running: set[int] = set()
        self._done: set[int] = set()
        pp = len(compiler.opening().programs)
        self._sent, self._reached = [0] * pp, [0] * pp
        self._went_on = time.monotonic()
        self._beat = 0.0

    @property
    def skew(self) -> float:
        """What the ranks' clock is behind this one, seconds; by that of them that is the least behind."""
        return min(self._skews)

    def serve(self, lines: BinaryIO) -> Served:
        """Serve until the input ends or SIGTERM comes, and all that was accepted is done.

        ``lines`` is closed where it ends; closing it elsewhere would wait for a line. Raises RunFailed when the ranks
        fail, CheckFailed for a segment that breaks a rule.
        """
        ranks = self._ranks
        ranks.send("".join(schedule_text(self._compiler.opening())))
        ranks.listen(self._events.put)
        with _drained_by_sigterm(self._events.put), ExitStack() as unread:
            unread.enter_context(lines)
            while len(self._running) < ranks.size:
                self._pass(TICK)
            unread.pop_all()  # from here on it is the reader's
            self._start, self._skews = time.monotonic(), [math.inf] * ranks.size
            threading.Thread(target=self._read, args=(lines,), name="lines", daemon=True).start()
            while self._due or self._open or not self._ended:
                self._step()
            self._send(self._compiler.close())
            ranks.close()
            while len(self._done) < ranks.size:
                self._pass(TICK)
            ranks.ended()
        return self.served

    def _step(self) -> None:
        """One pass of the loop."""
        now = self._now()
        self._take_due(now)
        self._send(self._compiler.advance(now))
        upcoming = min(self._compiler.next_event(), self._due[0].when if self._due else now + TICK)
        self._pass(min(max(upcoming - self._now(), PAUSE), TICK))

    def _pass(self, seconds: float) -> None:
        """Wait that long for something to happen, and look after the ranks."""
        with suppress(Empty):
            self._handle(self._events.get(timeout=seconds))
        for _ in range(self._events.qsize()):  # no more: those who come meanwhile must not keep ranks waiting
            self._handle(self._events.get_nowait())
        now = time.monotonic()
        if now - self._beat > INTERVAL / 2:
            self._beat = now
            self._ranks.beat()
            self._ranks.check()
            self._check_progress(now)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Report):
            self._heard(event)
        elif isinstance(event, Line):
            self._asked(event)
        elif isinstance(event, Found):
            if (cost := self._refit.take(event)) is not None:
                self._compiler.replan(cost)
        elif isinstance(event, End):
            now = self._now()
            self._take_due(now)  # what counts by now is not too late, whoever is asked first
            self._ended, self._terminated = True, self._terminated or event.terminated
        else:
            self._ranks.check()  # which knows more, perhaps
            raise event

    # -- requests

    def _read(self, lines: BinaryIO) -> None:
        try:
            with lines:
                for line in read_lines(lines):
                    self._room.acquire()
                    self._events.put(line)
        except (OSError, ValueError) as error:  # a ValueError where it is closed
            self._events.put(
                InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file="requests")
            )
        self._events.put(End(terminated=False))

    def _asked(self, line: Line) -> None:
        try:
            asked = parse_line(line)
        except InputError as error:
            self._room.release()
            self._wrong(line.number, error)
        else:
            heappush(self._due, _Due(max(asked.arrival, self._now()), line.number, asked))

    def _take_due(self, now: float) -> None:
        """Take what counts by now. Of a server that is about to end, also what is to come: a request is refused, and
        one is given up when it was said, if it is still open then."""
        kept = []
        while self._due and (self._due[0].when <= now or self._terminated):
            due = heappop(self._due)
            if due.when > now and isinstance(due.asked, Cancel) and due.asked.id in self._open:
                kept.append(due)
                continue
            self._room.release()
            self._take(due, now)
        for due in kept:
            heappush(self._due, due)

    def _take(self, due: _Due, now: float) -> None:
        asked = due.asked
        try:
            if isinstance(asked, Cancel):
                self._cancel(asked, now)
            elif self._terminated:
                self._refuse(asked.id, "the server is about to end")
            else:
                self._add(replace(asked, arrival=due.when), now)
        except QueueFull as error:
            self._refuse(asked.id, error.problem)
        except InputError as error:
            self._wrong(due.line, error, asked.id)

    def _add(self, request: Request, now: float) -> None:
        if request.cached_tokens and not self._prefixes:
            raise InputError(
                f"{request.cached_tokens} tokens are cached, and these ranks keep no prefixes",
                remedy="leave cached_tokens out: they are computed",
            )
        if request.prompt_tokens > self._longest:
            raise InputError(
                f"{request.prompt_tokens} tokens are more than the {self._longest} that these ranks' model takes",
                remedy="a shorter prompt",
            )
        if request.id in self._open:
            raise InputError(f"the id {request.id!r} is in use", remedy="give each request an id of its own")
        self._compiler.add(request, now)
        if not self._open:
            self._went_on = time.monotonic()
        self._open[request.id] = _Open(request, request.arrival)
        if not self.served.accepted:
            self.served.first = request.arrival
        self.served.accepted += 1

    def _cancel(self, cancel: Cancel, now: float) -> None:
        if cancel.id not in self._open:
            raise InputError(f"no request {cancel.id!r} is open: it is through, or has not come")
        self._compiler.cancel(cancel.id, now)
        index = self._open.pop(cancel.id).index
        if index >= 0:  # some of it has been sent, perhaps all
            del self._started[index]
            self._drift.cancelled(index)
            self._ranks.cancel(index)
        self.served.cancelled += 1
        self._write({"id": cancel.id, "cancelled": True})

    def _refuse(self, id: str, why: str) -> None:
        self.served.refused += 1
        self._write({"id": id, "refused": why})

    def _wrong(self, number: int, error: InputError, id: str | None = None) -> None:
        self.served.wrong += 1
        self._write({"line": number, **({} if id is None else {"id": id}), "error": str(error)})

    # -- ranks

    def _send(self, segment: Segment | None) -> None:
        if segment is None:
            return
        for request in segment.requests:
            started = self._open.get(request.id)
            if started is not None and started.request is request:
                started.index = self._indices
                self._started[self._indices] = started
            self._indices += 1
        for program in segment.programs:
            self._sent[program.rank] = program.start + len(program.code) // WIDTH
        self._drift.sent(segment)
        if self._journal is not None:
            self._journal.sent(segment)
        self._ranks.send("".join(segment_text(segment)))
        self._went_on = time.monotonic()

    def _heard(self, report: Report) -> None:
        self._ranks.heard(report)
        if self._journal is not None:
            self._journal.heard(report)
        if report.running:
            self._running.add(report.process)
            self._prefixes &= report.prefixes
            self._longest = min(self._longest, report.longest or math.inf)
            self._compare_clocks(report.process, report.now)
        skew = self._skews[report.process]
        if report.done:
            self._done.add(report.process)
        for index, token, when in report.tokens:
            self._token(index, token, when + skew)
        rank, shard = divmod(report.process, self._tp)
        if report.times and shard == 0:
            reached = report.first + len(report.times) // 2
            self._reached[rank] = reached
            self._went_on = time.monotonic()
            self._compiler.reached(rank, reached - 1, report.times[-1] + skew)
            self._drift.ran(rank, report.first, report.times)
            self._refit.look()

    def _compare_clocks(self, process: int, theirs: float) -> None:
        """The quickest report tells most; old ones count for less and less, since clocks drift apart: those of two
        machines with ranks, too, which agreed on one at the start."""
        now = self._now()
        known = self._skews[process] + (now - self._measured[process]) * CLOCK_DRIFT
        self._skews[process], self._measured[process] = min(known, now - theirs), now

    def _token(self, index: int, token: int, when: float) -> None:
        started = self._started.pop(index, None)
        if started is None:  # it was cancelled
            return
        del self._open[started.request.id]
        ttft = when - started.came
        self.served.ttfts.append(ttft)
        self.served.last = max(self.served.last, when)
        self._write({"id": started.request.id, "token": token, "ttft": round(ttft, 6)})

    def _check_progress(self, now: float) -> None:
        """What is open must go on; who holds it up, where it is a process, the watchdog finds before this."""
        behind = [rank for rank, reached in enumerate(self._reached) if reached < self._sent[rank]]
        if not (self._open or behind) or now - self._went_on <= self._ranks.timeout:
            return
        who = f"rank {behind[0]} has not gone on behind instruction {self._reached[behind[0]]}" if behind else "no rank"
        raise RunFailed(f"{who} for {self._ranks.timeout:g} s, with {len(self._open)} requests open")

    def _now(self) -> float:
        return time.monotonic() - self._start


@contextmanager
def _drained_by_sigterm(put: Callable[[End], None]) -> Iterator[None]:
    """The first SIGTERM ends the input, a second one the process."""

    def leave(number: int, _: object) -> None:
        if asked:
            sys.exit(128 + number)
        asked.append(number)
        put(End(terminated=True))

    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
