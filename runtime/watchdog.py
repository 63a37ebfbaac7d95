"""The watchdog: notices in every process when a rank dies or stalls, and ends the run on all.

Every process beats: it writes where it stands to the board that all share, and reads where the others stand, see
:mod:`runtime.beats`. The first to notice writes the verdict on the board, and all end with the same message.

Two threads do this while the main thread may be stuck inside a transfer. One talks to the board, which can block
where the process that holds it is stopped. The other judges and never waits for anything without a limit: signals
reach it through a pipe (``set_wakeup_fd``), and it ends the process with ``os._exit``, which nothing can hold up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from runtime.beats import Hearing, Limits, Pulse
from runtime.board import Beat, Board, Notices, Verdict
from runtime.faults import Position, RunFailed, described
from runtime.peers import Peer
from vppc.errors import VppcError

INTERRUPTED, TERMINATED = Verdict(130, "interrupted"), Verdict(143, "terminated")


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the main thread cannot go on; whether another process may have caused it; when; and the traceback."""

    verdict: Verdict
    dependent: bool
    when: float
    trace: str = ""


class Watchdog:
    """Watches all processes from one of them.

    ``holder`` is the process that holds the board, None where the launcher does. The callbacks are called from a
    thread of the watchdog's: ``on_end`` before the process ends early, ``on_cancel`` with requests to cancel, each as
    (number of the run, request); ``on_usr2`` returns those that the signal asks to cancel, as (run, requests).
    ``quiet``: whoever started the processes reads the verdict on the board, and says it.
    """

    def __init__(
        self, board: Board, process: int, holder: int | None, position: Position, timeout: float, *, quiet: bool = False
    ) -> None:
        self.board, self.process, self.holder, self.position = board, process, holder, position
        self.limits, self.quiet = Limits.of(timeout), quiet
        self.on_end: Callable[[], None] = lambda: None
        self.on_cancel: Callable[[tuple[tuple[int, int], ...]], None] = lambda requests: None
        self.on_usr2: Callable[[], tuple[int, tuple[int, ...]]] = lambda: (0, ())
        self._peer = Peer.here()
        self._pulse, self._hearing = Pulse(position), Hearing[Beat](self.limits)
        self._ticked = 0.0  # when the judge was last known to be free; of the talker, the hearing says it
        self._verdict: Verdict | None = None
        self._proposal: Verdict | None = None  # to be settled on the board
        self._lost: RuntimeError | None = None  # why there is no board any more
        self._failure: _Failure | None = None
        self._terminated: float | None = None
        self._cancel: list[tuple[int, tuple[int, ...]]] = []  # what is to be written on the board
        self._leaving, self._gone, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._reader, self._writer = os.pipe()
        self._handlers: dict[int, Any] = {}  # of signals, before
        self._talker = threading.Thread(target=self._talk, name="watchdog-talker", daemon=True)
        self._judge = threading.Thread(target=self._watch, name="watchdog-judge", daemon=True)

    def open(self) -> None:
        """Beat once, so that the others know that this process has come."""
        self.board.open(self._beat())

    def await_others(self, seconds: float) -> None:
        """Wait until all have come. Raises RunFailed that names who has not."""
        deadline = time.monotonic() + seconds
        try:
            while not all(arrived := self.board.arrived()):
                if time.monotonic() > deadline:
                    missing = ", ".join(str(process) for process, here in enumerate(arrived) if not here)
                    raise RunFailed(f"process {missing} has not come within {seconds:g} s")
                time.sleep(self.limits.interval / 8)
        except RuntimeError:  # what torch's stores raise
            who = "the launcher" if self.holder is None else f"process {self.holder}"
            raise RunFailed(f"{who}, which holds the store of the run, went before all had come") from None

    def start(self) -> None:
        """Take over this process's signals and watch. Call it on the main thread, when all have come."""
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            self._handlers[number] = signal.signal(number, lambda *_: None)
        self._hearing.spoke = self._ticked = time.monotonic()
        self._talker.start()
        self._judge.start()

    def stop(self) -> None:
        """Stop watching: all ranks are through. Whoever holds the board stays until the others need it no more."""
        self._leaving.set()
        self._wake.set()
        self._gone.wait(self.limits.silence)
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._judge.join()
        os.close(self._reader)
        os.close(self._writer)

    def fail(self, verdict: Verdict, *, dependent: bool, trace: str = "") -> NoReturn:
        """End the run because the main thread cannot go on.

        ``dependent``: another process may have caused it (a transfer fails where the other end dies), so that those
        get the time of some beats to be found dead. ``trace`` is printed where this is the reason in the end.
        """
        self._failure = _Failure(verdict, dependent, time.monotonic(), trace)
        while True:  # the judge ends the process
            time.sleep(60)

    # -- the talker's thread

    def _talk(self) -> None:
        try:
            while not self._leaving.is_set():
                if self._proposal is not None:
                    self.board.settle(self._proposal)
                while self._cancel:
                    self.board.cancel(*self._cancel.pop())
                self._hear(self.board.exchange(self._beat()))
                self._wake.wait(self.limits.interval)
                self._wake.clear()
            self.board.leave()
            while self.process == self.holder and self.board.left() < len(self._hearing.newest):
                time.sleep(self.limits.interval / 4)
        except RuntimeError as error:  # what torch's stores raise
            if not self._leaving.is_set():
                self._lost = error
        except Exception as error:  # noqa: BLE001 - a bug; a process that nobody watches must not go on
            self._failure = _Failure(self._broken(error), False, time.monotonic())
        self._gone.set()

    def _beat(self) -> Beat:
        return Beat(*self._pulse.beat(), str(self.position), self._peer)

    def _hear(self, notices: Notices) -> None:
        self._hearing.hear(notices.beats, time.monotonic())
        self._verdict = notices.verdict
        if notices.cancelled:
            self.on_cancel(notices.cancelled)

    # -- the judge's thread

    def _watch(self) -> None:
        try:
            while not self._leaving.is_set():
                ready, _, _ = select.select([self._reader], [], [], self.limits.interval)
                now = time.monotonic()
                if now - self._ticked > self.limits.quick:  # this process was stopped or starved; so was its talker
                    self._hearing.spoke = now
                self._ticked = now
                for number in os.read(self._reader, 64) if ready else b"":
                    self._signal(number)
                if self._verdict is not None:
                    self._exit(self._verdict)
                verdict = self._judgement(now)
                if verdict is not None:
                    self._end(verdict)
        except Exception as error:  # noqa: BLE001 - a bug; a process that nobody watches must not go on
            self._exit(self._broken(error))

    def _broken(self, error: Exception) -> Verdict:
        return Verdict(1, f"{self.position}: its watchdog failed: {described(error)}")

    def _signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            lines = [f"vppc-run: {beat.place}, for {beat.since:.1f} s\n" for beat in self._hearing.newest]
            say("".join(lines) or f"vppc-run: {self.position}\n")
        elif number == signal.SIGUSR2:
            self._cancel.append(self.on_usr2())
            self._wake.set()
        elif number == signal.SIGINT:
            self._end(INTERRUPTED)
        elif number == signal.SIGTERM and self._terminated is None:
            self._terminated = time.monotonic()

    def _judgement(self, now: float) -> Verdict | None:
        """Why the run is to end, if it is."""
        limits, failure = self.limits, self._failure
        if failure is not None and not failure.dependent:
            return failure.verdict
        if self._lost is not None:
            return Verdict(1, self._without_board("lost"))
        if now - self._hearing.spoke > limits.silence:
            return Verdict(1, self._without_board(f"has had no answer for {limits.silence:g} s from"))
        signs = [failure.when] if failure is not None else []
        if self._terminated is not None:  # a launcher ends everybody when one dies
            signs.append(self._terminated)
        silent = self._silent(limits.quick if signs else limits.silence)
        if silent:
            return Verdict(1, self._named(silent, "is dead or stopped"))
        if signs and now - min(signs) > limits.quick + 2 * limits.interval:  # nobody else is to blame
            return failure.verdict if failure is not None else TERMINATED
        stalled = self._hearing.stalled()
        return Verdict(1, self._named(stalled, f"has not gone on for {limits.stall:g} s")) if stalled else None

    def _silent(self, seconds: float) -> list[int]:
        """The other processes that were not heard for so long, while the board answered."""
        return [process for process in self._hearing.silent(seconds) if process != self.process]

    def _named(self, processes: list[int], what: str) -> str:
        beats = self._hearing.newest
        return "; ".join(f"{beats[process].place} {what}" for process in processes)

    def _without_board(self, problem: str) -> str:
        if self.holder is None:
            culprit = "the launcher"
        else:
            beats = self._hearing.newest
            culprit = beats[self.holder].place if beats else f"process {self.holder}"
        return f"{culprit} is dead or stopped: {self.position} {problem} the store that it holds"

    def _end(self, verdict: Verdict) -> NoReturn:
        """End this process when the others can know why, or cannot be told; the first verdict stands."""
        self._proposal = verdict
        self._wake.set()
        deadline = time.monotonic() + self.limits.quick
        while self._verdict is None and not self._gone.is_set() and time.monotonic() < deadline:
            time.sleep(self.limits.interval / 8)
        self._exit(self._verdict or verdict)

    def _exit(self, verdict: Verdict) -> NoReturn:
        try:
            failure = self._failure
            trace = failure.trace if failure is not None and failure.verdict == verdict else ""
            known = self.quiet and self._verdict is not None  # to who started this process
            say(trace if known else f"{trace}vppc-run: {verdict.message}\n")
            self._kill_the_silent()
            self._finish()
            self._leaving.set()
            self._wake.set()
            self._gone.wait(self.limits.quick)
            sys.stdout.flush()
        finally:  # whatever it was, the process ends
            os._exit(verdict.status)

    def _finish(self) -> None:
        try:
            self.on_end()
        except VppcError as error:
            say(f"vppc-run: {error}\n")

    def _kill_the_silent(self) -> None:
        """What does not beat cannot end by itself; a dead process is not there to be killed."""
        silent = self._silent(self.limits.quick - self.limits.interval)
        mute = self._lost is None and time.monotonic() - self._hearing.spoke > self.limits.quick
        if mute and self.holder is not None and self.holder != self.process:
            silent.append(self.holder)
        beats = self._hearing.newest
        for process in silent:
            beats[process].peer.kill()


def say(text: str) -> None:
    """Say it on stderr, if somebody listens."""
    with suppress(OSError, ValueError):  # nobody listens: stderr is a pipe whose reader is gone, or closed
        sys.stderr.write(text)
        sys.stderr.flush()
