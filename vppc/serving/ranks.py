"""The processes that run a stream: started here, or elsewhere and attached to.

Whoever starts them is their launcher: holds the store in which they meet, answers the death of one with SIGTERM to the
others, and has the last word on how it ended. Why, they find out by themselves (:mod:`runtime.watchdog`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from runtime.board import Board, Verdict
from runtime.faults import RunFailed
from runtime.mailbox import Inbox, Outbox
from runtime.stream import BEAT, CANCEL, CLOSE, DOWN, STREAM, UP, Report
from vppc.errors import InputError

HOST = "127.0.0.1"
START = 120.0
"""Seconds within which processes come, at least: importing torch takes seconds, of several at once more."""
POLL = 0.05
"""Seconds between two looks at processes that are to end."""


class Ranks:
    """Processes 0 to ``size`` - 1, and the mailboxes to them and from them; a context manager that leaves none behind.

    ``store`` is a connection to the store that they share, ``children`` those that were started here. ``timeout``
    seconds bound every wait for them.
    """

    def __init__(self, store: Any, size: int, timeout: float, children: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        self.size, self.timeout = size, timeout
        self._store, self._children = store, children
        self._down = Outbox(_part(store, STREAM), DOWN)
        self._board = Board(_part(store, "board"), 0, size)
        self._read = [0] * size  # messages that each process has read
        self._deleted = 0
        self._closed = False

    @classmethod
    def start(cls, size: int, timeout: float, arguments: Sequence[str]) -> Ranks:
        """Start ``size`` processes on this machine, with these arguments of ``python -m runtime``."""
        store = _store(HOST, 0, timeout, holds=True)
        command = [sys.executable, "-m", "runtime", "--stream", "--quiet", "--timeout", f"{timeout:g}", *arguments]
        world = {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(True),
        }
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **world}
        children: list[subprocess.Popen[bytes]] = []
        try:
            for process in range(size):
                children.append(  # noqa: PERF401 - those that started are to end where a later one cannot
                    subprocess.Popen(
                        command,
                        env={**environment, "RANK": str(process), "LOCAL_RANK": str(process)},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,  # a signal to the coordinator's group is the coordinator's to answer
                    )
                )
            return cls(store, size, timeout, children)
        except BaseException:
            _kill(children)
            raise

    @classmethod
    def attach(cls, address: str, port: int, size: int, timeout: float) -> Ranks:
        """Attach to processes that a launcher starts, with its store at that address.

        Raises RunFailed without one, InputError where nodes meet there, and ranks elsewhere.
        """
        try:
            store = _store(address, port, timeout, holds=False)
            names = store.list_keys() if hasattr(store, "list_keys") else ()  # older ones of torch's do not tell
        except (RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunFailed(f"no launcher of ranks at {address}:{port}: {reason}") from None
        if any(name.startswith("torch.rendezvous.") for name in names):
            raise InputError(
                f"at {address}:{port} torchrun's nodes meet, by --rdzv-backend c10d; the ranks do elsewhere",
                place="--attach",
                remedy="take the address that rank 0 says on stderr: ready for vppc serve --attach ..",
            )
        return cls(store, size, timeout)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _kill(self._children)

    def listen(self, put: Callable[[Report | RunFailed], None]) -> None:
        """Give all reports to ``put``, from a thread of its own; at last why there are none any more."""
        inbox = Inbox(_part(self._store, STREAM), UP, only=True)

        def hear() -> None:
            done, patience = 0, max(START, self.timeout)
            try:
                while done < self.size:
                    report = Report.decode(inbox.receive(patience))
                    patience = self.timeout
                    done += report.done
                    put(report)
            except RuntimeError:  # what torch's stores raise
                said = "the ranks are dead or stopped: they have said nothing for" if inbox.count else "no rank came in"
                put(RunFailed(f"{said} {patience:g} s"))

        threading.Thread(target=hear, name="reports", daemon=True).start()

    def send(self, text: str) -> None:
        """Send a message to all: a schedule, a segment, a word. Raises RunFailed when the store is lost."""
        try:
            self._down.send(text)
        except RuntimeError as error:
            raise RunFailed(f"the launcher of the ranks is gone: {error}") from None

    def cancel(self, request: int) -> None:
        """Compute nothing more of a request, by its index in the stream."""
        self.send(f"{CANCEL}{request}")

    def beat(self) -> None:
        """Say that the coordinator lives."""
        self.send(BEAT)

    def heard(self, report: Report) -> None:
        """Let go of the messages that everybody has read by now."""
        self._read[report.process] = report.read
        while self._deleted < min(self._read):
            self._deleted += 1
            self._down.delete(self._deleted)

    def check(self) -> None:
        """Raises RunFailed when the processes have ended, or are about to, with the reason that they found."""
        dead = [child for child in self._children if child.poll() is not None]
        if self._closed and all(child.returncode == 0 for child in dead):
            return
        if not dead and self._verdict() is None:
            return
        for child in self._children:  # launchers answer a death so; the others then look for the dead
            if dead and child.poll() is None:
                child.terminate()
        self._fail()

    def close(self) -> None:
        """No segment comes any more."""
        self._closed = True
        self.send(CLOSE)

    def ended(self) -> None:
        """Wait until the processes started here have ended, after all is done. Raises RunFailed for one that fails."""
        self._wait(self.timeout)
        if any(child.poll() != 0 for child in self._children):
            self._fail()

    def _fail(self) -> None:
        self._wait(self.timeout / 2)
        verdict = self._verdict() or self._cause()
        raise RunFailed(verdict.message, verdict.status)

    def _cause(self) -> Verdict:
        """What can be said of processes that left no word."""
        for process, child in enumerate(self._children):
            status = child.poll()
            if status is None:
                return Verdict(1, f"process {process} does not end")
            if status:
                how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
                return Verdict(max(1, status), f"process {process} ended {how}")
        return Verdict(1, "the ranks ended before the stream did")

    def _verdict(self) -> Verdict | None:
        with suppress(RuntimeError):
            return self._board.verdict()
        return Verdict(1, "the launcher of the ranks is gone, and the store with it")

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(child.poll() is None for child in self._children) and time.monotonic() < deadline:
            time.sleep(POLL)


def _store(address: str, port: int, timeout: float, *, holds: bool) -> Any:
    limit = timedelta(seconds=timeout)
    return dist.TCPStore(address, port, None, holds, limit, wait_for_workers=False)  # type: ignore[attr-defined]


def _part(store: Any, name: str) -> Any:
    """A part of the store over a connection of its own, so that no one else's waiting holds it up."""
    return PrefixStore(name, store.clone())


def _kill(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
