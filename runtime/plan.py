"""What the runtime reads of a schedule: one that is whole, or one that grows while it runs (:mod:`runtime.stream`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from vppc.ir.instruction import Row
from vppc.ir.schedule import Channel, Chunk, Json, Model, Request, Stage

T = TypeVar("T", covariant=True)


class Lookup(Protocol[T]):
    """Things that are looked up by index."""

    def __getitem__(self, index: int, /) -> T: ...


class Items(Lookup[T], Protocol[T]):
    """Those that there are. A growing plan's come with the first instruction that needs them, and go."""

    def __iter__(self) -> Iterator[T]: ...


class Code(Protocol):
    """The program of a rank. A growing one's length is how much of it has come, whether or not it has gone again."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """One instruction. Raises LookupError where it has gone."""
        ...

    def rows(self) -> Iterator[Row]:
        """The instructions, from the first to the last; a growing program blocks until more come."""
        ...


class Plan(Protocol):
    """A schedule, or one that grows: its head does not change, its requests, chunks and programs are looked up."""

    @property
    def model(self) -> Model: ...
    @property
    def pp(self) -> int: ...
    @property
    def stages(self) -> tuple[Stage, ...]: ...
    @property
    def channels(self) -> tuple[Channel, ...]: ...
    @property
    def stage_ranks(self) -> tuple[int, ...]: ...
    @property
    def rank_stages(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def extra(self) -> Json: ...
    @property
    def requests(self) -> Items[Request]: ...
    @property
    def chunks(self) -> Items[Chunk]: ...
    @property
    def programs(self) -> Lookup[Code]: ...


def samples_of(chunk: Chunk, requests: Lookup[Request]) -> Sequence[int]:
    """The requests that a token is made for in a chunk: those whose prompt ends in it, or that decode."""
    return [p.request for p in chunk.parts if p.decode or p.end == requests[p.request].prompt_tokens]
