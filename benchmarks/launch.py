"""Worlds of processes on this machine, for benchmarks."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from vppc.files import write_text
from vppc.ir.document import schedule_text
from vppc.ir.schedule import Schedule

T = TypeVar("T")


def launch(size: int, work: Callable[..., T], *arguments: Any) -> list[T]:
    """What ``work(*arguments)``, a little, returns on each of ``size`` processes of one world, a thread each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    processes = [
        context.Process(target=_process, args=(process, size, port, results, work, arguments))
        for process in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)  # and they have said why
    found = dict(results.get() for _ in range(size))
    return [found[process] for process in range(size)]


def plan_file(schedule: Schedule, file: Path) -> str:
    """Write a schedule; its path."""
    write_text(str(file), schedule_text(schedule))
    return str(file)


def _process(process: int, size: int, port: int, results: Any, work: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(RANK=str(process), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    results.put((process, work(*arguments)))
