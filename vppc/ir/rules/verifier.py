"""The verifier: a schedule, and the segments that follow it, against all rules."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

from vppc.analysis.deadlock import Blocked, Progress, Track
from vppc.errors import Finding
from vppc.ir.certificate import Certificate
from vppc.ir.rules.channels import check_used, match
from vppc.ir.rules.claim import check_lifetimes, check_order, lifetimes
from vppc.ir.rules.closing import check_done
from vppc.ir.rules.explain import explain
from vppc.ir.rules.forget import Forgotten, forget
from vppc.ir.rules.header import check_header
from vppc.ir.rules.memory import check_capacity, check_limits
from vppc.ir.rules.program import Pipe, Tape, accept, blank_tapes
from vppc.ir.rules.progress import check_progress
from vppc.ir.rules.prompts import Prompts
from vppc.ir.rules.registry import Report
from vppc.ir.rules.segments import check_chain
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Segment


class Verifier:
    """The proof of a stream, a schedule that grows by segments; each is read once.

    ``digest`` is the digest of the schedule's file, for the ``previous`` of its first segment; without one that
    is not compared. After a segment that breaks a rule nothing more is read.
    """

    def __init__(self, schedule: Schedule, digest: str = "") -> None:
        self.schedule = schedule
        ranks = schedule.stage_ranks
        self.prompts = Prompts(rejoins=bool(ranks) and ranks[0] == ranks[-1] == 0)
        self.tapes: list[Tape] = []
        self.steps: list[tuple[int, int]] = []
        self._pipes = [Pipe(channel.id, channel.src, channel.dst) for channel in schedule.channels]
        self._digest, self._sequence = digest, 0
        self._forgotten: Forgotten | None = None
        self._sized = 0
        self._report = Report()
        check_header(schedule, self._report)
        self.prompts.add(schedule.requests, schedule.chunks, self._report)
        self.prompts.cancel(schedule.extra.get("cancelled", ()), self._report)
        self._readable = not self._report
        if self._readable:
            self.tapes = blank_tapes(schedule, self._pipes, self.prompts)
            self._scan(0, [program.code for program in schedule.programs])
        self._progress = Progress([Track(tape.code, tape.waits, tape.partner) for tape in self.tapes])

    def extend(self, segment: Segment, digest: str = "") -> None:
        """Read the next segment; ``digest`` is that of its file. Takes time linear in the segment."""
        if self._report:
            self._readable = False
            return
        if self._forgotten is not None:
            segment = self._forgotten.shifted(segment)
        check_chain(segment, self._sequence + 1, self._digest, [len(tape) for tape in self.tapes], self._report)
        self._sequence, self._digest = segment.sequence, digest
        first = len(self.prompts.chunks)
        self.prompts.add(segment.requests, segment.chunks, self._report)
        self.prompts.cancel(segment.extra.get("cancelled", ()), self._report)
        if self._report:
            self._readable = False
            return
        code = [array("i") for _ in self.tapes]
        for more in segment.programs:
            code[more.rank] = more.code
        self._scan(first, code)

    def findings(self, *, closed: bool) -> tuple[Finding, ...]:
        """What is wrong with the stream so far; ``closed`` if no segment is to come. Empty when it is proven."""
        report = self._report.copy()
        if self.tapes:
            self._judge(report, closed=closed and self._readable)
        return report.findings()

    def forget(self, over: int) -> None:
        """Drop what the stream is through with; no more parts of its first ``over`` requests are to come.

        After that there is no certificate, memory limits (M1) are judged by what is left, and the numbers in findings
        count from there. Call it when there were no findings; it takes time linear in what there is.
        """
        before = 0 if self._forgotten is None else self._forgotten.requests
        gone = forget(over - before, self.tapes, self._pipes, self.prompts, self._progress)
        self._forgotten = gone if self._forgotten is None else self._forgotten.and_then(gone)
        self._sized -= gone.chunks
        self.steps.clear()

    @property
    def held(self) -> tuple[Blocked, ...]:
        """The ranks that wait for what only a later segment posts, as of the last :meth:`findings`."""
        return tuple(self._progress.blocked())

    def certificate(self) -> Certificate:
        """The certificate of a stream without findings."""
        return Certificate(array("i", chain.from_iterable(self.steps)), tuple(map(lifetimes, self.tapes)))

    def _scan(self, first_chunk: int, code: Sequence[array[int]]) -> None:
        for tape, more in zip(self.tapes, code, strict=True):
            if first_chunk < len(self.prompts.chunks):
                tape.expect(first_chunk)
            if not more:
                continue
            index = len(tape)
            rows = tape.extend(more)
            while (index := accept(tape, rows, index)) < len(tape):
                explain(tape, index, self._report)
                index += 1

    def _judge(self, report: Report, *, closed: bool) -> None:
        match(self._pipes, self.tapes, report, closed=closed)
        if closed:
            self.prompts.check_ends(report)
            for tape in self.tapes:
                check_done(tape, report)
            if self.prompts.chunks:
                check_used(self._pipes, report)
        if report:
            return
        self.steps += check_progress(self._progress, self.tapes, report)
        if report:
            return
        check_capacity(self.schedule, self.prompts, self._sized, report)
        if closed:
            check_limits(self.tapes, self.prompts, report)
            claim = self.schedule.certificate
            if claim is not None and not self._sequence:
                check_order(claim, self._progress.tracks, self.tapes, report)
                check_lifetimes(claim, self.tapes, report)
        if not report:
            self._sized = len(self.prompts.chunks)
