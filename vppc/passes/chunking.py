"""chunking: prompts into chunks of a fixed size.

All chunking policies share :func:`split_requests`: requests are planned in order of arrival (of their index,
where arrivals are equal), and a policy only says how long the next chunk of a prompt is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Part, Request, Schedule

NextChunk: TypeAlias = Callable[[int, int], int]
"""(tokens of the prompt before the chunk, tokens left from there) -> tokens of the chunk, 1 to what is left."""


MOST_CHUNKS = 2**20
"""Chunks of a schedule at most: what follows is linear in them, but there is no use for more, and memory ends."""


@dataclass(frozen=True, slots=True)
class FixedChunks:
    """Chunks of ``chunk_size`` tokens; the last one of a prompt is what is left.

    Raises InputError for a chunk size below 1, and for too many chunks.
    """

    name: ClassVar[str] = "chunking"
    chunk_size: int

    def __post_init__(self) -> None:
        require_positive("chunk size", self.chunk_size)

    def __call__(self, schedule: Schedule) -> Schedule:
        if sum(-(-(r.prompt_tokens - r.cached_tokens) // self.chunk_size) for r in schedule.requests) > MOST_CHUNKS:
            raise _too_many()
        return replace(schedule, chunks=split_requests(schedule.requests, self.next_chunk))

    def next_chunk(self, prefix: int, left: int) -> int:
        return min(self.chunk_size, left)


def split_requests(requests: Sequence[Request], next_chunk: NextChunk) -> tuple[Chunk, ...]:
    """The uncached tokens of all requests as chunks of one part, an earlier request's chunks before a later one's.

    Raises InputError when they are too many.
    """
    chunks: list[Chunk] = []
    for index in sorted(range(len(requests)), key=lambda i: requests[i].arrival):  # stable: then by index
        start, end = requests[index].cached_tokens, requests[index].prompt_tokens
        while start < end:
            tokens = next_chunk(start, end - start)
            append_chunk(chunks, Part(index, start, tokens))
            start += tokens
    return tuple(chunks)


def append_chunk(chunks: list[Chunk], part: Part) -> None:
    """Append a chunk of one part. Raises InputError when there are :data:`MOST_CHUNKS` already."""
    if len(chunks) >= MOST_CHUNKS:
        raise _too_many()
    chunks.append(Chunk((part,)))


def require_positive(what: str, value: int) -> None:
    """Raise InputError where a number of tokens is below 1."""
    if value < 1:
        raise InputError(f"{what} is {value} tokens", remedy="give at least 1")


def _too_many() -> InputError:
    return InputError(f"the prompts make more than {MOST_CHUNKS:,} chunks", remedy="use larger chunks")
