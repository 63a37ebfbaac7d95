"""The watchdog: a thread in every process that notices when a rank dies or stalls, and ends the run.

Every process beats: it writes where it stands to the store that all share, and reads where the others stand. Who
stops beating is dead or stopped. Who beats but stays at one instruction is stalled; if that is a WAIT, somebody
else is to blame. The first to notice writes the verdict to the store, and all end with the same message.

It works while the main thread is stuck inside a transfer: signals reach it through a pipe (``set_wakeup_fd``), and
it ends the process with ``os._exit``, which no stuck transfer can hold up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from runtime.faults import Places

_ENDING = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process last said of itself: how often it has beaten, its instruction, and for how long it has been
    there, in seconds; ``idle`` when it waits for a request to arrive, or is through."""

    count: int
    index: int
    since: float
    idle: bool

    def encode(self) -> str:
        return f"{self.count} {self.index} {self.since:.3f} {int(self.idle)}"

    @classmethod
    def decode(cls, text: bytes) -> Beat:
        count, index, since, idle = text.decode().split()
        return cls(int(count), int(index), float(since), idle == "1")


class Watchdog:
    """Watches all processes from one of them.

    ``store`` is a connection that nobody else uses; ``position`` returns (instruction index, idle) of this
    process; ``timeout`` bounds in seconds how long after a fault all processes end. ``tp`` processes form a rank.
    """

    def __init__(
        self,
        store: Any,
        process: int,
        world: int,
        tp: int,
        places: Places,
        position: Callable[[], tuple[int, bool]],
        timeout: float,
    ) -> None:
        self.store, self.process, self.world, self.tp = store, process, world, tp
        self.places, self.position, self.timeout = places, position, timeout
        self.interval = min(1.0, timeout / 16)
        self.silence = timeout / 4
        self.count = 0
        self.index, self.arrived = -2, time.monotonic()
        self.heard: dict[int, tuple[Beat, float]] = {}  # the newest beat of each process, and when it was new
        self.reader, self.writer = os.pipe()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.on_usr2: Callable[[], None] = lambda: None
        self.stopped = threading.Event()

    def start(self) -> None:
        """Take over this process's signals and begin to beat. Call it on the main thread."""
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        for number in (*_ENDING, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        self.thread.start()

    def stop(self) -> None:
        """Stop watching: all ranks are through."""
        self.stopped.set()

    def end(self, message: str, status: int = 1) -> NoReturn:
        """End this process with a message, after all others have been told; the first verdict stands."""
        with self.lock:
            try:
                verdict = self.store.compare_set("verdict", "", message).decode()
            except Exception:  # noqa: BLE001 - with the store gone, what is known here is the best there is
                verdict = message
            self._exit(verdict, status)

    def fail(self, error: BaseException) -> NoReturn:
        """End the run because of an exception on this rank, or because of what caused it elsewhere.

        A transfer fails where the other end dies. So others are given the time of some beats to be found dead.
        """
        deadline = time.monotonic() + self.silence
        while time.monotonic() < deadline:
            verdict = self._verdict()
            if verdict:
                self._exit(verdict, 1)
            self._listen()
            lost = self._silent(4 * self.interval)
            if lost:
                self.end(self._died(lost))
            time.sleep(self.interval)
        self.end(f"{self._here()}: {error}")

    def _watch(self) -> None:
        while not self.stopped.is_set():
            ready, _, _ = select.select([self.reader], [], [], self.interval)
            for number in os.read(self.reader, 64) if ready else b"":
                self._signal(number)
            try:
                self._beat()
                self._listen()
                verdict = self._verdict()
            except Exception as error:  # noqa: BLE001 - whatever it is, without a store nobody can be watched
                if self.stopped.is_set():
                    return
                self._exit(f"{self._here()}: lost the store that all ranks share: {error}", 1)
            if verdict:
                with self.lock:
                    self._exit(verdict, 1)
            lost = self._silent(self.silence)
            if lost:
                self.end(self._died(lost))
            stalled = self._stalled()
            if stalled:
                self.end(stalled)

    def _signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            self._listen()
            for process in range(self.world):
                sys.stderr.write(f"vppc-run: {self._where(process)}\n")
        elif number == signal.SIGUSR2:
            self.on_usr2()
        elif number == signal.SIGINT:
            self.end("interrupted", 130)
        elif number == signal.SIGTERM:
            self._terminated()

    def _terminated(self) -> NoReturn:
        """A launcher ends everybody when one dies: find out who that was."""
        deadline = time.monotonic() + min(self.silence, 10 * self.interval)
        while time.monotonic() < deadline:
            self._beat()
            self._listen()
            verdict = self._verdict()
            if verdict:
                self._exit(verdict, 1)
            lost = self._silent(4 * self.interval)
            if lost:
                self.end(self._died(lost))
            time.sleep(self.interval)
        self._exit(f"{self._here()}: terminated", 143)

    def _beat(self) -> None:
        index, idle = self.position()
        now = time.monotonic()
        if index != self.index or idle:
            self.index, self.arrived = index, now
        self.count += 1
        self.store.set(f"beat/{self.process}", Beat(self.count, index, now - self.arrived, idle).encode())

    def _listen(self) -> None:
        now = time.monotonic()
        for process in range(self.world):
            key = f"beat/{process}"
            if not self.store.check([key]):
                continue
            beat = Beat.decode(self.store.get(key))
            known = self.heard.get(process)
            if known is None or known[0].count != beat.count:
                self.heard[process] = (beat, now)

    def _verdict(self) -> str:
        return str(self.store.get("verdict").decode()) if self.store.check(["verdict"]) else ""

    def _silent(self, seconds: float) -> list[int]:
        now = time.monotonic()
        return [p for p, (_, heard) in self.heard.items() if p != self.process and now - heard > seconds]

    def _stalled(self) -> str:
        """Whom to blame for no progress within the timeout: who is not waiting; or, when all wait, everybody."""
        beats = {process: beat for process, (beat, _) in self.heard.items()}
        long = {process: beat for process, beat in beats.items() if not beat.idle and beat.since > self.timeout}
        busy = [p for p, beat in long.items() if not self.places.waits(p // self.tp, beat.index)]
        if busy:
            return "; ".join(f"{self._where(p)} has not gone on for {self.timeout:g} s" for p in busy)
        if len(long) == len(beats) == self.world:
            return f"no rank has gone on for {self.timeout:g} s: " + "; ".join(map(self._where, long))
        return ""

    def _died(self, lost: list[int]) -> str:
        return "; ".join(f"{self._where(p)} is dead or stopped: it was last heard there" for p in lost)

    def _where(self, process: int) -> str:
        heard = self.heard.get(process)
        place = self.places(process // self.tp, heard[0].index if heard else -1)
        return f"{place}, tp rank {process % self.tp}" if self.tp > 1 else place

    def _here(self) -> str:
        index, _ = self.position()
        place = self.places(self.process // self.tp, index)
        return f"{place}, tp rank {self.process % self.tp}" if self.tp > 1 else place

    def _exit(self, message: str, status: int) -> NoReturn:
        sys.stderr.write(f"vppc-run: {message}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(status)
