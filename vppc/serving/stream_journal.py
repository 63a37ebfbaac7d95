"""The journal of a stream: what was sent and when it ran, written at the end as the runtime writes that of a run.

The ranks drop what they have run, and a server should not grow, so until the end all of it lies in nameless files
beside the journal: the segments as they were sent, and 16 bytes an instruction for every process.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from runtime.clock import Clock
from runtime.journal import Journal, delete_others
from runtime.stream import Report
from vppc.compiler import certified
from vppc.errors import CheckFailed, InputError
from vppc.files import check_writable, write_text
from vppc.ir.document import parse_segment, schedule_text, segment_text
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.segment import Continuation, Segment
from vppc.ir.stream import extend

_TIMES = 2 * array("d").itemsize
"""Bytes of the start and the end of an instruction."""


class StreamJournal:
    """Keeps a stream on ``size`` processes, ``tp`` a rank, in a ``folder``.

    All that writes raises InputError where it cannot: for a folder that cannot be made, and without space.
    """

    def __init__(self, folder: str, opening: Schedule, size: int, tp: int) -> None:
        self._folder, self._opening, self._tp = Path(folder), opening, tp
        self._segments: IO[bytes] | None = None
        self._times: list[IO[bytes] | None] = [None] * size
        self._clocks = [Clock(0.0, 0.0)] * size
        with self._written():
            self._folder.mkdir(parents=True, exist_ok=True)
        check_writable(str(self._folder / "schedule.json"))

    def sent(self, segment: Segment) -> None:
        """A segment is on its way."""
        line = "".join(segment_text(segment)).replace("\n", "") + "\n"
        with self._written():
            self._segments = self._segments or self._nameless()
            self._segments.write(line.encode())

    def heard(self, report: Report) -> None:
        """A process says what it has run."""
        self._clocks[report.process] = Clock(*report.clock)
        if report.times:
            with self._written():
                kept = self._times[report.process] = self._times[report.process] or self._nameless()
                kept.write(array("d", report.times).tobytes())

    def close(self, skew: float) -> None:
        """Write it all, also of a stream that was broken off, with ``skew`` seconds added to the processes' times.

        Arrivals are on the coordinator's clock, so that is what it is for.
        """
        schedule = self._schedule()
        sha = hashlib.sha256()
        write_text(str(self._folder / "schedule.json"), _hashed(schedule_text(schedule), sha.update))
        with self._written():
            delete_others(self._folder, ".jsonl", len(self._times) // self._tp, self._tp)
        for process, (kept, clock) in enumerate(zip(self._times, self._clocks, strict=True)):
            rank, shard = divmod(process, self._tp)
            journal = Journal(self._folder, schedule.programs[rank], rank, shard, sha.hexdigest(), clock)
            for start, end in self._kept_pairs(kept):
                journal.report(start + skew, end + skew)
            journal.close()

    def _schedule(self) -> Schedule:
        """The opening schedule with all segments as one, proven if all that was begun was also ended."""
        requests: list[Request] = []
        chunks: list[Chunk] = []
        cancelled: list[int] = []
        codes = [array("i") for _ in self._opening.programs]
        for segment in self._kept_segments():
            requests += segment.requests
            chunks += segment.chunks
            cancelled += segment.extra.get("cancelled", ())
            for program in segment.programs:
                codes[program.rank] += program.code
        programs = tuple(Continuation(rank, 0, code) for rank, code in enumerate(codes))
        extra = {"cancelled": cancelled} if cancelled else {}
        whole = extend(self._opening, Segment(1, "", tuple(requests), tuple(chunks), programs, extra))
        try:
            return certified(whole)
        except CheckFailed:
            return whole

    def _nameless(self) -> IO[bytes]:
        return TemporaryFile(dir=self._folder)

    def _kept_segments(self) -> Iterator[Segment]:
        if self._segments is not None:
            with self._again(self._segments) as kept:
                yield from map(parse_segment, kept)

    def _kept_pairs(self, kept: IO[bytes] | None) -> Iterator[tuple[float, float]]:
        if kept is not None:
            with self._again(kept):
                while pair := kept.read(_TIMES):
                    start, end = array("d", pair)
                    yield start, end

    @contextmanager
    def _again(self, kept: IO[bytes]) -> Iterator[IO[bytes]]:
        """A nameless file, from its beginning, for the last time. What was not on the disk yet goes there first."""
        try:
            with self._written():
                kept.seek(0)
            yield kept
        finally:
            with suppress(OSError):  # without space, said above
                kept.close()

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", file=str(self._folder), remedy="name a folder with space"
            ) from None


def _hashed(pieces: Iterable[str], update: Callable[[bytes], object]) -> Iterator[str]:
    for piece in pieces:
        update(piece.encode())
        yield piece
