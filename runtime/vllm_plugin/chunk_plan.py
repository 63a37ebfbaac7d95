"""A tuned chunk plan: where the chunks of a prompt end, by the prompt's length."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vppc.errors import InputError
from vppc.ir.schedule import Schedule
from vppc.passes.online_chunking import Batch, Behind

PLACE = "vppc.chunks"


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """For each planned prompt where its chunks end, the last at its length, the shortest prompt first.

    A prompt follows the shortest planned one that is not shorter than it; one that is longer than all has no plan. No
    chunk has more than ``largest`` tokens, also of a prompt whose plan begins behind what was cached and which is not.
    """

    ends: tuple[tuple[int, ...], ...]
    largest: int

    def room(self, prompt: int, computed: int) -> int | None:
        """The tokens of the next chunk of a prompt of which ``computed`` tokens are; None for no plan."""
        at = bisect_left(self.ends, prompt, key=lambda ends: ends[-1])
        if at == len(self.ends):
            return None
        ends = self.ends[at]
        return min(self.largest, ends[bisect_right(ends, computed)] - computed)


class PlannedChunks:
    """A plan as the rule of batches (:class:`vppc.serving.batching.ChunkRule`): the first prompt in a batch says how
    many prompt tokens the batch has, so a planned chunk is not made longer by others; what it leaves, others fill.
    Prompts without a plan are cut after ``most`` tokens."""

    def __init__(self, plan: ChunkPlan, most: int) -> None:
        self._plan, self._most = plan, most
        self._room = math.inf  # prompt tokens of the batch that is being made

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        room = self._plan.room(prefix + left, prefix)
        planned = room or self._most
        if not taken:
            self._room = room or math.inf
        return int(min(left, planned, self._room - sum(tokens for tokens, _ in taken)))

    def record(self, batch: Batch) -> None:
        """A plan does not learn."""


def read_chunk_plan(given: str | Sequence[int], file: str) -> ChunkPlan:
    """The plan of a schedule file, as ``vppc tune`` and ``vppc compile`` write it, or of one prompt's chunk sizes.

    Raises InputError where there is none; ``file`` is where the sizes stand.
    """
    if isinstance(given, str):
        from vppc.ir.document import read_schedule

        return planned(read_schedule(given), given)
    if not given or not all(type(size) is int and size > 0 for size in given):
        raise InputError(
            f"{given!r} are no chunk sizes", file=file, place=PLACE, remedy="[2048, 1024, 1024], in tokens"
        )
    return ChunkPlan((tuple(accumulate(given)),), max(given))


def planned(schedule: Schedule, file: str) -> ChunkPlan:
    """The chunks of a schedule's prompts; of several of a length, those of the first."""
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    ends: list[list[int]] = [[] for _ in schedule.requests]
    largest = 0
    for chunk in schedule.chunks:
        for part in chunk.parts:
            if not part.decode:
                ends[part.request].append(part.end)
                largest = max(largest, part.tokens)
    for request, reached in zip(schedule.requests, ends, strict=True):
        if reached:
            found.setdefault(request.prompt_tokens, {}).setdefault(request.cached_tokens, tuple(reached))
    if not found:
        raise InputError("has no prompts", file=file, place="chunks", remedy="compile or tune one with prompts")
    # of a length, the prompt with the least cached has a plan for the most of it
    return ChunkPlan(tuple(by_cached[min(by_cached)] for _, by_cached in sorted(found.items())), largest)


def check_fit(plan: ChunkPlan, scheduler: Any) -> None:
    """Raises InputError where vLLM's scheduler, of that configuration, would not let the plan's chunks through."""
    most, cut = scheduler.max_num_batched_tokens, scheduler.long_prefill_token_threshold
    large = f"has a chunk of {plan.largest} tokens, and"
    reasons = (
        (plan.largest > most, f"{large} a batch has at most {most}", "a larger --max-num-batched-tokens"),
        (0 < cut < plan.largest, f"{large} prompts are cut at {cut}", "no --long-prefill-token-threshold"),
    )
    for found, why, remedy in reasons:
        if found:
            raise InputError(f"does not fit: {why}", file="--additional-config", place=PLACE, remedy=remedy)
