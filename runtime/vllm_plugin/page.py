"""The page: what the processes of a folded server show each other, numbers in a file that all of them map.

A row of the engine's, and one of each rank's. Each number has one writer, and is written whole; a reader may see one of
a row before another, which is good enough to be looked at. What decides something is written in an order: beats, see
:meth:`Page.put_beat`, and when instructions ran, see :meth:`Page.put_ran`.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from runtime.faults import State

_SHOWN = 5
_RAN = _SHOWN + 3
_FIELDS = _RAN + 1
_BYTES = 8
_KEPT = 16384
"""Instructions of a process whose times are kept: more than all chunks in flight have."""


class Doing(IntEnum):
    """What a rank does: waiting for vLLM's next call, or one of our instructions."""

    IDLE = 0
    RECV = 1
    FORWARD = 2
    SAMPLE = 3
    SEND = 4


def instruction(doing: Doing, chunk: int, stage: int) -> str:
    """In words; a RECV is of what ``stage`` takes."""
    return f"{doing.name} of chunk {chunk} {'for' if doing == Doing.RECV else 'on'} stage {stage}"


@dataclass(frozen=True, slots=True)
class EngineRow:
    """``in_flight`` batches; one was for ``active`` seconds, and since ``since`` on the monotonic clock, 0 for none."""

    in_flight: int
    active: float
    since: float


@dataclass(frozen=True, slots=True)
class RankRow:
    """What the rank does or, idle, did last: on which chunk and stage, both from 0; -1 before the first. ``busy``
    seconds went to FORWARDs and SAMPLEs. ``drift``, which the engine knows, is None while unknown."""

    doing: Doing
    chunk: int
    stage: int
    busy: float
    drift: float | None

    def __str__(self) -> str:
        if self.chunk < 0:
            return "before its first chunk"
        if self.doing == Doing.IDLE:
            return f"after {instruction(Doing.FORWARD, self.chunk, self.stage)}, waiting for the engine"
        return f"in {instruction(self.doing, self.chunk, self.stage)}"


@dataclass(frozen=True, slots=True)
class RankBeat:
    """A beat of the process, the ``count``-th: it has stood where it stands for ``since`` seconds."""

    count: int
    state: State
    since: float


class Page:
    """The page of an engine of so many ``processes``, see :func:`page_path`. Raises OSError where there is none."""

    def __init__(self, path: Path, processes: int, *, create: bool = False) -> None:
        self.path = path
        self._rows = processes + 1
        self._times = self._rows * _FIELDS  # where those of the first process begin
        size = (self._times + processes * 2 * _KEPT) * _BYTES
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:  # all of it, since where a disk has no room for what is mapped, writing kills the process
                os.posix_fallocate(descriptor, 0, size)
            self._numbers = memoryview(mmap.mmap(descriptor, size)).cast("d")
        finally:
            os.close(descriptor)
        if create:
            for rank in range(self._rows - 1):
                self.put_rank(rank, RankRow(Doing.IDLE, -1, -1, 0.0, None))
                self.put_drift(rank, None)
                self.put_beat(rank, RankBeat(0, State.IDLE, 0.0))

    def put_engine(self, row: EngineRow) -> None:
        self._numbers[0], self._numbers[1], self._numbers[2] = row.in_flight, row.active, row.since

    def engine(self) -> EngineRow:
        in_flight, active, since = self._numbers[:3]
        return EngineRow(int(in_flight), active, since)

    def put_rank(self, rank: int, row: RankRow) -> None:
        """All but the drift."""
        for at, number in enumerate((row.doing, row.chunk, row.stage, row.busy), (rank + 1) * _FIELDS):
            self._numbers[at] = number

    def put_drift(self, rank: int, drift: float | None) -> None:
        self._numbers[(rank + 1) * _FIELDS + _SHOWN - 1] = math.nan if drift is None else drift

    def ranks(self) -> list[RankRow]:
        found = []
        for at in range(_FIELDS, self._rows * _FIELDS, _FIELDS):
            doing, chunk, stage, busy, drift = self._numbers[at : at + _SHOWN]
            found.append(RankRow(Doing(int(doing)), int(chunk), int(stage), busy, None if math.isnan(drift) else drift))
        return found

    def put_beat(self, rank: int, beat: RankBeat) -> None:
        """``since`` goes first, and is read last: what a process has just begun never looks old."""
        at = (rank + 1) * _FIELDS + _SHOWN
        self._numbers[at + 2] = beat.since
        self._numbers[at + 1] = beat.state
        self._numbers[at] = beat.count

    def beats(self) -> list[RankBeat]:
        numbers = self._numbers
        return [
            RankBeat(int(numbers[at]), State(int(numbers[at + 1])), numbers[at + 2])
            for at in range(_FIELDS + _SHOWN, self._rows * _FIELDS, _FIELDS)
        ]

    def put_ran(self, rank: int, instruction: int, start: float, end: float) -> None:
        """The process's next instruction ran from ``start`` to ``end``, in seconds; that it did goes last."""
        at = self._time(rank, instruction)
        self._numbers[at], self._numbers[at + 1] = start, end
        self._numbers[(rank + 1) * _FIELDS + _RAN] = instruction + 1

    def ran(self, rank: int, first: int) -> list[float]:
        """When the instructions of a process ran, from the ``first`` on: [start, end, start, end, ..]."""
        until = int(self._numbers[(rank + 1) * _FIELDS + _RAN])
        places = [self._time(rank, instruction) for instruction in range(first, until)]
        return [time for at in places for time in (self._numbers[at], self._numbers[at + 1])]

    def _time(self, rank: int, instruction: int) -> int:
        return self._times + 2 * (rank * _KEPT + instruction % _KEPT)

    def remove(self) -> None:
        """Take the page's name away; who has mapped it keeps it."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def page_path(config: Any) -> Path:
    """By vLLM's name for the configuration, which goes with it into all processes."""
    replica = config.parallel_config.data_parallel_rank
    return Path(tempfile.gettempdir()) / (f"vppc-{config.instance_id}" + (f"-{replica}" if replica else ""))
