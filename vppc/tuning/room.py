"""What memory leaves for layers: which splits a search may use, and how long chunks may be.

A plan's buffers and resident tokens are known when it is compiled. So a search starts from the least that any plan of
these chunks asks for, and what it finds is checked; a plan that does not fit says what a next search has to leave room
for (:meth:`Room.beside`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from vppc.analysis.memory import Memory, RankLoad, RankMemory
from vppc.analysis.memory_remedies import balanced_ranges
from vppc.ir.partition import Ranges
from vppc.ir.placement import edges
from vppc.tuning.workload import Limits, Workload

_FEWEST_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Room:
    """A model on devices, and what every rank has to hold beside its layers (``ranges`` of ``loads`` do not count)."""

    memory: Memory
    loads: tuple[RankLoad, ...]

    @classmethod
    def at_best(cls, memory: Memory, workload: Workload, ranks: Sequence[int]) -> Room:
        """Beside the least that a plan with chunks as long as allowed asks for: two buffers, the longest prompt."""
        longest = max(request.prompt_tokens for request in workload.requests)
        tokens = min(workload.limits.most, max(run.tokens for run in workload.runs))
        channels = edges(ranks)
        modules = {rank: set[str]() for rank in ranks}
        modules[ranks[0]].add("embed")
        modules[ranks[-1]].add("head")
        loads = (
            RankLoad(
                rank=rank,
                ranges=((0, memory.spec.layers),),
                modules=frozenset(modules[rank]),
                channels=sum(rank in pair for pair in channels),
                buffers=_FEWEST_BUFFERS,
                chunk_tokens=tokens,
                kv_tokens=longest,
                prefix_tokens=max(0, longest - tokens),
            )
            for rank in sorted(modules)
        )
        return cls(memory, tuple(loads))

    def beside(self, loads: Sequence[RankLoad]) -> Room:
        """Beside what a compiled plan asks for, too."""
        return replace(
            self,
            loads=tuple(
                replace(
                    load,
                    buffers=max(load.buffers, mine.buffers),
                    kv_tokens=max(load.kv_tokens, mine.kv_tokens),
                )
                for load, mine in zip(loads, self.loads, strict=True)
            ),
        )

    def shorter(self, tokens: int) -> Room:
        """The same with chunks of so many tokens at most."""
        return replace(
            self,
            loads=tuple(replace(load, chunk_tokens=min(load.chunk_tokens, tokens)) for load in self.loads),
        )

    def used(self, ranges: Ranges, ranks: Sequence[int]) -> tuple[RankMemory, ...]:
        """The memory of every rank with these layers."""
        held: dict[int, list[tuple[int, int]]] = {load.rank: [] for load in self.loads}
        for layers, rank in zip(ranges, ranks, strict=True):
            held[rank].append(layers)
        return tuple(self.memory.of(replace(load, ranges=tuple(held[load.rank]))) for load in self.loads)

    def fits(self, ranges: Ranges, ranks: Sequence[int]) -> bool:
        """Whether all ranks fit with these layers."""
        return all(rank.free >= 0 for rank in self.used(ranges, ranks))

    def allows(self, counts: Sequence[float], ranks: Sequence[int]) -> bool:
        """Whether all ranks fit with so many layers on every stage."""
        return self.fits(tuple(pairwise(accumulate(map(round, counts), initial=0))), ranks)

    def split(self, ranks: Sequence[int]) -> Ranges | None:
        """Layers with which all ranks fit, or None where none were found."""
        return balanced_ranges(self.memory, self.loads, ranks)

    def most_layers(self) -> list[int]:
        """How many layers every rank has room for, if all were the heaviest."""
        most = []
        for load in self.loads:
            each = self.memory.layer_bytes(load.kv_tokens)
            room = self.memory.of(load).free + sum(sum(each[first:last]) for first, last in load.ranges)
            most.append(max(0, room // max(each)))
        return most

    def longest_chunk(self, limits: Limits, ranks: Sequence[int], ranges: Ranges | None) -> int:
        """The longest chunk, in tokens, with which a split fits (these layers, if given); 0 where none does."""

        def fits(units: int) -> bool:
            room = self.shorter(units * limits.align)
            return room.fits(ranges, ranks) if ranges else room.split(ranks) is not None

        low, high = limits.least // limits.align - 1, limits.most // limits.align
        if fits(high):
            return high * limits.align
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low * limits.align if low * limits.align >= limits.least else 0

    def least_memory(self, limits: Limits, ranks: Sequence[int], ranges: Ranges | None) -> int:
        """The bytes of a device with which the shortest chunks fit, to a MiB."""
        low, high = 0, 2**20  # MiB
        while high - low > 1:
            middle = (low + high) // 2
            device = replace(self.memory.device, memory=middle * 2**20)
            room = replace(self, memory=replace(self.memory, device=device))
            low, high = (low, middle) if room.longest_chunk(limits, ranks, ranges) else (middle, high)
        return high * 2**20
