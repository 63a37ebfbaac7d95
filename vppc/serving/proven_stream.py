"""From what a clock commits to segments, each proven before anybody gets it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vppc.compiler import certified, compiled_keys
from vppc.costs.model import CostModel
from vppc.errors import CheckFailed, Finding
from vppc.ir.document import digest, schedule_text, segment_text
from vppc.ir.instruction import Program
from vppc.ir.rules import Verifier
from vppc.ir.schedule import Chunk, Json, Request, Schedule
from vppc.ir.segment import Segment
from vppc.serving.emit import Emitter

KEPT = 4096
"""Instructions after which the verifier forgets, so that this costs little an instruction."""


class ProvenStream:
    """The stream that :attr:`opening` begins, with no requests and empty programs; it grows by :meth:`segment`.

    ``emitter`` makes the instructions. A rank has ``buffers`` of ``buffer_tokens`` tokens, and ``in_flight`` chunks may
    be in the pipeline. ``extra`` are further keys of the opening.
    """

    def __init__(
        self, setup: Schedule, cost: CostModel, buffers: int, in_flight: int, buffer_tokens: int, extra: Json
    ) -> None:
        self.emitter = Emitter(setup, buffers, in_flight)
        programs = tuple(Program.of(rank, buffers, []) for rank in range(setup.pp))
        keys = {**setup.extra, **extra, "buffer_tokens": buffer_tokens, **compiled_keys(setup.extra, cost)}
        self.opening = certified(replace(setup, programs=programs, extra=keys))
        self._previous = digest("".join(schedule_text(self.opening)).encode())
        self._verifier = Verifier(self.opening, self._previous)
        self._sequence = 0
        self._unforgotten = 0  # instructions since the verifier has forgotten what is through
        self._requests: list[Request] = []
        self._chunks: list[Chunk] = []
        self._cancelled: list[int] = []

    def add(self, requests: Iterable[Request], chunks: Iterable[Chunk], cancelled: Iterable[int]) -> None:
        """More of them, for the next segment; ``cancelled`` are requests, by index, of which no part follows."""
        self._requests += requests
        self._chunks += chunks
        self._cancelled += cancelled

    def segment(self, over: int, *, closed: bool = False, alone: bool = False) -> Segment | None:
        """What there is since the last segment; None when there is nothing. ``closed`` when it is the last.

        The first ``over`` requests are through. ``alone`` is for ranks that may get no further one before they have
        run all of it. Raises CheckFailed where it breaks a rule, or where ranks so alone would wait for a further one.
        """
        programs = self.emitter.take()
        if not (programs or self._requests or self._chunks or self._cancelled):
            return None
        self._sequence += 1
        extra = {"cancelled": self._cancelled} if self._cancelled else {}
        segment = Segment(self._sequence, self._previous, tuple(self._requests), tuple(self._chunks), programs, extra)
        self._requests, self._chunks, self._cancelled = [], [], []
        self._previous = digest("".join(segment_text(segment)).encode())
        self._verifier.extend(segment, self._previous)
        findings = self._verifier.findings(closed=closed)
        if not findings and alone:
            findings = tuple(_held(*each) for each in self._verifier.held)
        if findings:
            raise CheckFailed(findings)
        self._unforgotten += sum(map(len, programs))
        if self._unforgotten > KEPT:
            self._verifier.forget(over)
            self._unforgotten = 0
        return segment


def _held(rank: int, wait: int, peer: int, post: int) -> Finding:
    problem = f"waits at instruction {wait} for what rank {peer} posts in no segment so far"
    return Finding("D2", f"rank {rank}", problem, "send both together: this is a mistake of the compiler's")
