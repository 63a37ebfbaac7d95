"""Worlds of real processes for tests: forked from a server that has imported torch, or started by torchrun.

Importing torch takes seconds, so the processes of a world are forked where that is done already. They get what a
launcher would give them in their environment; nobody but they themselves ends them when one dies.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from runtime.__main__ import main

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
LIMIT = 240.0
"""Seconds after which a world is ended from outside, and the test fails."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the processes of a world ended: exit statuses (a signal's is negative), what they wrote, and how long
    after the last moment that the test marked."""

    statuses: list[int]
    out: list[str]
    err: list[str]
    seconds: float


class World:
    """Running processes; each is told a process number, and runs ``target(*arguments)``."""

    def __init__(
        self,
        folder: Path,
        size: int,
        target: Callable[..., None] = main,
        arguments: Callable[[int], Sequence[Any]] = lambda process: (),
        *,
        port: int | None = None,
        processes: Sequence[int] | None = None,
        context: Any = None,
    ) -> None:
        """``processes`` are those that are started, all of them when not given; ``context`` says how."""
        self.folder = folder
        environment = {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port or free_port()),
            "OMP_NUM_THREADS": "1",
        }
        context = context or _server()
        self.processes: list[BaseProcess] = []
        self.numbers = list(range(size) if processes is None else processes)
        for process in self.numbers:
            each = {**environment, "RANK": str(process), "LOCAL_RANK": str(process)}
            started = context.Process(
                target=_process, args=(folder, each, target, tuple(arguments(process))), daemon=True
            )
            started.start()
            self.processes.append(started)
        self.marked = time.monotonic()

    def mark(self) -> None:
        """From here on the seconds count."""
        self.marked = time.monotonic()

    def kill(self, process: int, number: int) -> None:
        """Send a signal to one of the processes."""
        pid = self.processes[process].pid
        assert pid is not None
        os.kill(pid, number)

    def wait_for(self, text: str, process: int = 0) -> str:
        """Wait until a process has written something that matches to stderr; all that it has written."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            written = self.read("err", process)
            if re.search(text, written):
                return written
            time.sleep(0.02)
        self.end()
        raise AssertionError(f"{text!r} was not written: {self.written()}")

    def read(self, what: str, process: int) -> str:
        file = self.folder / f"{what}.{process}"
        return file.read_text() if file.exists() else ""

    def written(self) -> str:
        return "\n".join(f"{file.name}: {file.read_text()}" for file in sorted(self.folder.glob("err.*")))

    def ended(self) -> Ended:
        """Wait for all processes; one that does not end by itself fails the test."""
        deadline = self.marked + LIMIT
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        seconds = time.monotonic() - self.marked
        left = [index for index, process in enumerate(self.processes) if process.exitcode is None]
        if left:
            self.end()
            raise AssertionError(f"processes {left} did not end: {self.written()}")
        return Ended(
            [int(process.exitcode or 0) for process in self.processes],
            [self.read("out", number) for number in self.numbers],
            [self.read("err", number) for number in self.numbers],
            seconds,
        )

    def end(self) -> None:
        """End whatever still runs."""
        for process in self.processes:
            process.kill()
            process.join()


def run(
    folder: Path, size: int, target: Callable[..., None] = main, arguments: Callable[[int], Sequence[Any]] | None = None
) -> Ended:
    """A world from start to end."""
    return World(folder, size, target, arguments or (lambda process: ())).ended()


def succeeded(ended: Ended) -> Ended:
    assert ended.statuses == [0] * len(ended.statuses), ended.err
    return ended


class Launcher:
    """torchrun and its processes, which are in sessions of their own and known by a mark in their environment."""

    def __init__(self, arguments: Sequence[str], **options: str | int) -> None:
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in options.items()
        ]
        self.mark = uuid.uuid4().hex
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "runtime", *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "VPPC_TEST": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.agent.communicate()

    def rank(self, number: int) -> int:
        """The process of a rank, once it runs."""
        return eventually(lambda: next(iter(self.left(f"RANK={number}")), None))

    def left(self, variable: str = "") -> list[int]:
        """Its processes, those with the variable set so, that have not ended."""
        wanted = {f"VPPC_TEST={self.mark}", variable or f"VPPC_TEST={self.mark}"}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted <= set((folder / "environ").read_bytes().decode(errors="replace").split("\0")):
                    found.append(int(folder.name))
            except OSError:  # it ended in this moment, or is not ours
                continue
        return found

    def ended(self) -> tuple[int, str, str]:
        """Wait for the agent: its status and what was written. None of its processes may be left."""
        out, err = self.agent.communicate(timeout=LIMIT)
        assert not self.left(), err
        return self.agent.returncode, out, err


def eventually(look: Callable[[], T | None]) -> T:
    """What ``look`` finds, once it finds something."""
    deadline = time.monotonic() + LIMIT
    while (found := look()) is None:
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def journal(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of every process's journal, behind the header."""
    return {
        file.name: [json.loads(line) for line in file.read_text().splitlines()[1:]]
        for file in sorted(folder.glob("*.jsonl"))
    }


def _server() -> Any:
    """Where processes are forked; it has imported what they need. Started once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.distributed_c10d", "runtime.run", "faulty"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _process(
    folder: Path, environment: Mapping[str, str], target: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}.{environment['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    import torch

    torch.set_num_threads(1)
    target(*arguments)
    sys.stdout.flush()
