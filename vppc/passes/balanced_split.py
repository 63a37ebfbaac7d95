"""The layers shared out by their costs.

On a straight placement a rank takes its work, and the time before its first chunk reaches it, and the time that the
last chunk takes from it to the end; nothing is done before the rank that takes longest so. The first chunk of a prompt
is its shortest, mostly, so that the last rank can have most layers.

Where chunks return, ranks work while others are on the way, and what they take is their work. Of ranks that have as
much, those that begin first and end last, the outer ones, are less in the way. (DeepSeek-V3.1's 61 layers on four ranks
in a V: a 16th layer on the fold rank, as engines split, costs 5%, on rank 0 nothing.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import TypeAlias

from vppc.costs.model import CostModel, layer_seconds
from vppc.ir.partition import Ranges, upstream_split
from vppc.ir.schedule import Part, Request, Schedule
from vppc.sums import plain_sum

_INNER = 0.01
"""So much more counts the work of the innermost rank where chunks return: enough to decide between equals."""


_Length: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BalancedSplit:
    """Shares the layers out for the requests of a schedule, each cut into chunks of ``chunk_tokens``, at ``cost``.

    From equal stages, a layer more in the first ones or in the last, layers move one at a time from the rank that
    takes longest to where they are least in the way, until that makes nothing better: a search, not a proof.
    """

    cost: CostModel
    chunk_tokens: int

    def __call__(self, schedule: Schedule, ranks: Sequence[int]) -> Ranges:
        """The layers of every stage, on ``ranks``. Raises InputError when there are more stages than layers."""
        counts = [last - first for first, last in upstream_split(self.cost.layer_count, len(ranks))]
        line = _Line(self.cost, list(_chunks(schedule.requests, self.chunk_tokens)), ranks)
        _, ends = min(_descend(line, [*accumulate(start)]) for start in (counts, counts[::-1]))
        return tuple(pairwise([0, *ends]))


def _descend(line: _Line, ends: list[int]) -> tuple[_Length, list[int]]:
    best = line.length(ends), ends
    while True:
        moved = min(((line.length(each), each) for each in line.moves(best[1])), default=best)
        if moved[0] >= best[0]:
            return best
        best = moved


class _Line:
    """The ranks as a line of machines, for stages that end at given layers."""

    def __init__(self, cost: CostModel, chunks: Sequence[Part], ranks: Sequence[int]) -> None:
        prompts = len({part.request for part in chunks})
        self._all = _Seconds(cost, chunks, prompts, len(ranks))
        self._first = _Seconds(cost, chunks[:1], 0, len(ranks))
        self._last = _Seconds(cost, chunks[-1:], 1, len(ranks))
        self._returns = len(ranks) > len(set(ranks))
        self._stages = [[s for s, rank in enumerate(ranks) if rank == mine] for mine in range(max(ranks) + 1)]

    def length(self, ends: Sequence[int]) -> _Length:
        """What to make small: the seconds of the rank that takes longest; then how uneven ranks and stages are."""
        taken, stages = self._taken(ends), self._all.of(ends)
        lengths = max(taken), math.hypot(*taken), math.hypot(*stages)
        return tuple(float(f"{each:.9g}") for each in lengths)  # sums that differ in their rounding only are equal

    def moves(self, ends: Sequence[int]) -> Iterator[list[int]]:
        """The ends when a stage of the longest rank gives a layer to another stage, those between moving on."""
        taken = self._taken(ends)
        for giver in self._stages[taken.index(max(taken))]:
            if ends[giver] - (ends[giver - 1] if giver else 0) > 1:
                for taker in range(len(ends)):
                    if taker > giver:
                        yield [*ends[:giver], *(end - 1 for end in ends[giver:taker]), *ends[taker:]]
                    elif taker < giver:
                        yield [*ends[:taker], *(end + 1 for end in ends[taker:giver]), *ends[giver:]]

    def _taken(self, ends: Sequence[int]) -> list[float]:
        """Every rank's seconds, as they count."""
        stages = self._all.of(ends)
        work = [plain_sum(stages[s] for s in mine) for mine in self._stages]
        if self._returns:
            return [(1.0 + _INNER * rank / len(work)) * seconds for rank, seconds in enumerate(work)]
        before = [0.0, *accumulate(self._first.of(ends))]
        behind = [*accumulate(reversed(self._last.of(ends)), initial=0.0)][::-1]
        return [before[rank] + seconds + behind[rank + 1] for rank, seconds in enumerate(work)]


class _Seconds:
    """What some chunks take in stages, ``prompts`` of which end."""

    def __init__(self, cost: CostModel, chunks: Sequence[Part], prompts: int, stages: int) -> None:
        self._until = [0.0, *accumulate(_layers(cost, chunks))]
        self._besides = [cost.launch * len(chunks)] * stages
        self._besides[0] += cost.embed.fixed * len(chunks) + cost.embed.per_token * sum(part.tokens for part in chunks)
        self._besides[-1] += (cost.head.fixed + cost.head.per_token) * prompts

    def of(self, ends: Sequence[int]) -> list[float]:
        """Of every stage."""
        ranges = zip(self._besides, pairwise([0, *ends]), strict=True)
        return [besides + self._until[last] - self._until[first] for besides, (first, last) in ranges]


def _layers(cost: CostModel, chunks: Sequence[Part]) -> Iterator[float]:
    """The seconds of every layer on all chunks."""
    first = 0
    for kind in cost.layers:
        seconds = plain_sum(layer_seconds(cost, first, first + 1, (part,)) for part in chunks)
        yield from repeat(seconds, kind.count)
        first += kind.count


def _chunks(requests: Iterable[Request], tokens: int) -> Iterator[Part]:
    for index, request in enumerate(requests):
        for start in range(request.cached_tokens, request.prompt_tokens, tokens):
            yield Part(index, start, min(tokens, request.prompt_tokens - start))
