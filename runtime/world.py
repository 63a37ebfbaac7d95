"""The world: all processes of a run, how they meet, and what they do together."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from runtime.faults import RunFailed
from vppc.errors import InputError, VppcError

T = TypeVar("T")


FOREVER = timedelta(days=365)
"""No limit of the process groups' own: how long a WAIT may take is for the watchdog to judge."""


@dataclass(frozen=True, slots=True)
class World:
    """All processes of a run: this one's number, how many there are, and the store that they share.

    ``holder`` is the process that holds the store, None where the launcher does. ``groups`` are the process groups
    made so far, so that one schedule after another can use them.
    """

    process: int
    size: int
    store: Any
    holder: int | None
    groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @classmethod
    def meet(cls, timeout: float) -> World:
        """Find the store that the processes share, as the launcher's environment says.

        Raises InputError when no launcher has set the environment, RunFailed when there is no store.
        """
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise InputError(
                f"is to be started by torchrun, which sets {', '.join(missing)}",
                file="runtime",
                remedy="torchrun --standalone --nproc-per-node P -m runtime SCHEDULE",
            )
        by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        limit = timedelta(seconds=timeout)
        try:
            process, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            with _limit(timeout + 1, f"{_who()} cannot reach the store of the run at {where()} within {timeout:g} s"):
                if by_launcher:
                    store, _, _ = next(rendezvous("env://", timeout=limit))
                else:
                    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                    store = dist.TCPStore(  # type: ignore[attr-defined]
                        address, port, size, process == 0, limit, wait_for_workers=False
                    )
        except (RuntimeError, ValueError) as error:  # torch's own, for a port in use and for who never comes
            raise RunFailed(f"{_who()} cannot meet the others at {where()}: {_first_line(error)}") from None
        store.set_timeout(limit)
        return cls(process, size, store, None if by_launcher else 0)

    def connect(self, timeout: float) -> None:
        """Make the control group, gloo's, when all processes have met. Raises RunFailed when that fails."""
        try:
            with _limit(timeout, f"{_who()} cannot connect to the others within {timeout:g} s"):
                dist.init_process_group(
                    "gloo",
                    store=PrefixStore("world", self.store),
                    rank=self.process,
                    world_size=self.size,
                    timeout=FOREVER,
                )
        except (RuntimeError, ValueError) as error:
            raise RunFailed(f"{_who()} cannot connect to the others: {_first_line(error)}") from None

    def connection(self, name: str) -> Any:
        """A store of its own over a connection of its own, so that no one else's waiting holds it up."""
        return PrefixStore(name, self.store.clone())

    def group(self, processes: Sequence[int], backend: str, number: int = 0) -> Any:
        """The process group of these processes; all processes ask for all groups, in the same order.

        ``number`` tells groups of the same processes apart. A group is made once and kept.
        """
        key = (number, *processes)
        if key not in self.groups:
            self.groups[key] = dist.new_group(list(processes), backend=backend, timeout=FOREVER)
        return self.groups[key]

    def gather(self, value: T) -> list[T]:
        """Every process's value, at every process; one that JSON says: lists, not tuples, and no objects.

        Torch's own way to gather objects runs what it is sent, and needs numpy.
        """
        said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(said)]))
        longest = max(int(length) for length in lengths)
        texts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(said, (0, longest - len(said))))
        return [json.loads(bytes(text[: int(length)].tolist())) for text, length in zip(texts, lengths, strict=True)]

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` returns. When it fails on any process, it fails on all, with the same message and status."""
        result: list[T] = []
        error: VppcError | None = None
        try:
            result.append(work())
        except VppcError as failure:
            error = failure
        mine: Any = None if error is None else [error.exit_status, str(error)]
        said = self.gather(mine)
        failed = {process: (each[0], each[1]) for process, each in enumerate(said) if each is not None}
        if not failed:
            return result[0]
        process, (status, text) = next(iter(failed.items()))
        everybody = len(failed) == self.size and len(set(failed.values())) == 1
        raise RunFailed(text if everybody else f"process {process} cannot run: {text}", status) from error

    def leave(self) -> None:
        """Close the groups."""
        dist.destroy_process_group()


@contextmanager
def _limit(seconds: float, message: str) -> Iterator[None]:
    """Ends the process when what is done here takes too long: torch can wait for a stranger's answer forever."""

    def give_up() -> None:
        sys.stderr.write(f"vppc-run: {message}\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _who() -> str:
    return f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


def where() -> str:
    """The address of the store in which the processes meet."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
