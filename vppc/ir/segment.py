"""A segment: what a running schedule grows by. A schedule followed by its segments is a schedule."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vppc.ir.instruction import WIDTH
from vppc.ir.schedule import Chunk, Json, Request


@dataclass(frozen=True, slots=True)
class Continuation:
    """More instructions of one rank, from index ``start`` on, which is the length its list must have.

    ``code`` and ``notes`` are as in :class:`vppc.ir.instruction.Program`; the indices of ``notes`` count from the
    first instruction here, those of WAITs from the first of the rank's whole list.
    """

    rank: int
    start: int
    code: array[int]
    notes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    extra: Json = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.code) // WIDTH


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment document. Requests, chunks and instructions go on counting where the stream before ended.

    ``sequence`` numbers the segments of a schedule; ``previous`` is the SHA-256 digest of the file before. ``extra``
    may name ``cancelled`` requests, by index: behind this segment no part of them follows, so that their parts may
    end before their prompts do.
    """

    sequence: int
    previous: str
    requests: tuple[Request, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    programs: tuple[Continuation, ...] = ()
    extra: Json = field(default_factory=dict)
