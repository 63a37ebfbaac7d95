"""The journal of a stream: what was sent and when it ran, written at the end as the runtime writes that of a run.

The ranks drop what they have run, so the coordinator keeps it: 24 bytes an instruction and 16 more for every process,
and the chunks. So a server with a journal grows.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from runtime.clock import Clock
from runtime.journal import Journal
from runtime.stream import Report
from vppc.compiler import certified
from vppc.errors import CheckFailed, InputError
from vppc.files import check_writable, write_text
from vppc.ir.document import digest, schedule_text
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.segment import Continuation, Segment
from vppc.ir.stream import extend


class StreamJournal:
    """Keeps a stream on ``size`` processes, ``tp`` a rank. Raises InputError for a folder that cannot be made."""

    def __init__(self, folder: str, opening: Schedule, size: int, tp: int) -> None:
        self._folder, self._opening, self._tp = Path(folder), opening, tp
        self._requests: list[Request] = []
        self._chunks: list[Chunk] = []
        self._cancelled: list[int] = []
        self._code = [array("i") for _ in opening.programs]
        self._times = [array("d") for _ in range(size)]
        self._clocks = [Clock(0.0, 0.0)] * size
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", file=folder, remedy="name a folder to write to"
            ) from None
        check_writable(str(self._folder / "schedule.json"))

    def sent(self, segment: Segment) -> None:
        """A segment is on its way."""
        self._requests += segment.requests
        self._chunks += segment.chunks
        self._cancelled += segment.extra.get("cancelled", ())
        for program in segment.programs:
            self._code[program.rank] += program.code

    def heard(self, report: Report) -> None:
        """A process says what it has run."""
        self._times[report.process].extend(report.times)
        self._clocks[report.process] = Clock(*report.clock)

    def close(self, skew: float) -> None:
        """Write it all, also of a stream that was broken off, with ``skew`` seconds added to the processes' times.

        Arrivals are on the coordinator's clock, so that is what it is for. Raises InputError where there is no space.
        """
        schedule = self._schedule()
        text = "".join(schedule_text(schedule))
        write_text(str(self._folder / "schedule.json"), text)
        name = digest(text.encode())
        for process, (times, clock) in enumerate(zip(self._times, self._clocks, strict=True)):
            rank, shard = divmod(process, self._tp)
            journal = Journal(self._folder, schedule.programs[rank], rank, shard, name, clock)
            for start, end in zip(times[::2], times[1::2], strict=True):
                journal.report(start + skew, end + skew)
            journal.close()

    def _schedule(self) -> Schedule:
        """The opening schedule with all segments as one, proven if all that was begun was also ended."""
        programs = tuple(Continuation(rank, 0, code) for rank, code in enumerate(self._code))
        extra = {"cancelled": self._cancelled} if self._cancelled else {}
        whole = extend(self._opening, Segment(1, "", tuple(self._requests), tuple(self._chunks), programs, extra))
        try:
            return certified(whole)
        except CheckFailed:
            return whole
