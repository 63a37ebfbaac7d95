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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from runtime.__main__ import main

ROOT = Path(__file__).parents[1]
LIMIT = 60.0
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
    ) -> None:
        """``processes`` are those that are started, all of them when not given."""
        self.folder = folder
        environment = {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port or free_port()),
            "OMP_NUM_THREADS": "1",
        }
        context = _server()
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


def torchrun(arguments: Sequence[str], **options: str | int) -> subprocess.Popen[str]:
    """A launcher and its processes, in a session of their own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "runtime", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(launcher: subprocess.Popen[str], limit: float = LIMIT) -> tuple[int, str, str]:
    """Wait for a launcher: its status and what was written. Nothing of its session may be left."""
    try:
        out, err = launcher.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        out, err = launcher.communicate()
        raise AssertionError(f"the launcher did not end: {err}") from None
    left = session(launcher.pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} are left: {err}"
    return launcher.returncode, out, err


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, leading = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended in this moment
            continue
        if int(leading) == leader and state != "Z":
            found.append(int(stat.parent.name))
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
