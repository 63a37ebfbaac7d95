"""prompt_batching: short prompts together in one chunk, under a token budget.

A chunk with few tokens pays the same launches and fixed costs as a full one. Runs after chunking.

No request waits for one that arrives later: a chunk starts when all its requests have arrived, so only
prompts with the same arrival are put together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

from vppc.ir.schedule import Chunk, Part, Schedule
from vppc.passes.chunking import require_positive


@dataclass(frozen=True, slots=True)
class BatchPrompts:
    """Merges consecutive chunks that hold whole prompts of one arrival, up to ``token_budget`` tokens.

    A chunk of a longer prompt is left alone, and the order of the prompts stays. Raises InputError for a budget
    below 1.
    """

    name: ClassVar[str] = "prompt_batching"
    token_budget: int

    def __post_init__(self) -> None:
        require_positive("token budget", self.token_budget)

    def __call__(self, schedule: Schedule) -> Schedule:
        chunk_count = Counter(part.request for chunk in schedule.chunks for part in chunk.parts)
        groups: list[list[Part]] = []
        room, arrival = 0, None  # of the last group; no room where it must not grow
        for chunk, chunk_arrival in zip(schedule.chunks, schedule.chunk_arrivals, strict=True):
            whole = all(chunk_count[part.request] == 1 for part in chunk.parts)
            if whole and chunk.tokens <= room and chunk_arrival == arrival:
                groups[-1].extend(chunk.parts)
                room -= chunk.tokens
            else:
                groups.append(list(chunk.parts))
                room, arrival = self.token_budget - chunk.tokens if whole else 0, chunk_arrival
        return replace(schedule, chunks=tuple(Chunk(tuple(parts)) for parts in groups))
