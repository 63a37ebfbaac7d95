"""The schedule: what is prefilled, in which chunks, on which stages, by which programs.

One immutable :class:`Schedule` goes through all passes. Early passes fill ``chunks`` and ``stages``, then
``order`` (which operations a rank runs, one after another), and the last ones ``programs``. Only the final
form is written to a file; ``order`` is the compiler's own.

An *operation* is a (chunk, stage) pair. Where millions of them are handled it is the integer
``chunk * len(stages) + stage``, see :meth:`Schedule.op`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from vppc.ir.certificate import Certificate
from vppc.ir.instruction import Program

Json = Mapping[str, Any]
"""A JSON object that is carried along unchanged."""


class Op(NamedTuple):
    """The unit of work: ``stage`` run on ``chunk``."""

    chunk: int
    stage: int


@dataclass(frozen=True, slots=True)
class Model:
    """The model by name, and how many layers it has."""

    name: str
    layers: int
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous range of layers, half-open, on one rank; stages are numbered as a chunk visits them."""

    stage: int
    rank: int
    layers: tuple[int, int]
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Channel:
    """A one-way FIFO between two ranks."""

    id: int
    src: int
    dst: int
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. ``cached_tokens`` of its ``prompt_tokens`` are already in the KV cache; ``arrival`` in seconds."""

    id: str
    prompt_tokens: int
    cached_tokens: int = 0
    arrival: float = 0.0
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """``tokens`` tokens of one request (by index) from absolute position ``start``."""

    request: int
    start: int
    tokens: int
    decode: bool = False
    extra: Json = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit that flows through the pipeline: parts of one or more requests."""

    parts: tuple[Part, ...]
    extra: Json = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens the chunk carries, which is how many rows its activations have."""
        return sum([part.tokens for part in self.parts])


@dataclass(frozen=True, slots=True)
class Order:
    """For every rank the operations it runs, in order, as integers (see :meth:`Schedule.op`).

    ``steps`` is set for blocking schedules: the global step in which each operation runs. A rank posts the
    transfers of a step after its last operation and waits for all of them before the next step.
    """

    ranks: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Schedule:
    """A schedule document. ``extra`` holds the optional and unknown top-level keys of the file as they are:
    ``cost``, ``payload``, ``prediction``, ``provenance``, ``tp``, ``buffer_tokens``, ..."""

    strategy: str
    model: Model
    pp: int
    vp: int
    stages: tuple[Stage, ...] = ()
    channels: tuple[Channel, ...] = ()
    requests: tuple[Request, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    order: Order | None = None
    programs: tuple[Program, ...] = ()
    extra: Json = field(default_factory=dict)
    certificate: Certificate | None = None

    def op(self, op: int) -> Op:
        """The (chunk, stage) of an operation's number."""
        return Op(*divmod(op, len(self.stages)))

    @cached_property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return tuple(stage.rank for stage in self.stages)

    @cached_property
    def rank_stages(self) -> tuple[tuple[int, ...], ...]:
        """The stages of every rank, ascending."""
        held: list[list[int]] = [[] for _ in range(self.pp)]
        for stage in self.stages:
            if stage.rank < self.pp:
                held[stage.rank].append(stage.stage)
        return tuple(map(tuple, held))

    @cached_property
    def samples(self) -> tuple[bool, ...]:
        """For every chunk, whether a prompt ends or a request decodes in it, so that a token is made."""
        ends = [request.prompt_tokens for request in self.requests]
        return tuple(any(p.decode or p.end == ends[p.request] for p in c.parts) for c in self.chunks)

    @cached_property
    def chunk_arrivals(self) -> tuple[float, ...]:
        """For every chunk, the seconds before which it cannot start: its requests have not all arrived."""
        arrivals = [request.arrival for request in self.requests]
        return tuple(max((arrivals[p.request] for p in c.parts), default=0.0) for c in self.chunks)
