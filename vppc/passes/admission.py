"""When a chunk may enter the pipeline: limits on chunks in flight, on resident KV, and request barriers.

All say the same thing, "chunk c enters after chunk g has left", since chunks leave in the order in
which they enter. So they become one number a chunk, its *gate* g, or -1.

Rank 0 lets chunks in, and it must see them leave. It does where it holds the last stage (V, zigzag with an
even vp); there a gate is exact. On a loop, and on a zigzag with an odd vp, a chunk counts as gone when rank 0
has run the last of its own stages on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from vppc.errors import InputError
from vppc.ir.dag import Dag
from vppc.ir.placement import hops
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits on what is in the pipeline at once; None means no limit.

    ``max_in_flight`` counts chunks entered and not finished, ``max_resident_tokens`` the prompt tokens of
    requests entered and not finished. With ``barrier`` a request starts when rank 0 has finished the one before.
    """

    max_in_flight: int | None = None
    max_resident_tokens: int | None = None
    barrier: bool = False

    def gates(self, schedule: Schedule) -> list[int]:
        """For every chunk, the chunk that must have left before it enters, or -1."""
        ahead = self.max_in_flight or len(schedule.chunks)
        gates = [max(-1, chunk - ahead) for chunk in range(len(schedule.chunks))]
        for chunk, samples in enumerate(Dag.of(schedule).token):
            gates[chunk] = max(gates[chunk], *samples, -1)  # a decode waits for the token before it
        if self.barrier:
            for chunk, (before, group) in enumerate(pairwise(chunk_groups(schedule)), 1):
                if before != group:
                    gates[chunk] = chunk - 1
        if self.max_resident_tokens is not None:
            _tighten_for_kv(gates, schedule, self.max_resident_tokens)
        return gates


def default_in_flight(ranks: tuple[int, ...], packed: bool) -> int:
    """Chunks in flight that the order needs: one more than a chunk's hops, for the V 2 pp - 1.

    Packing runs further ahead, for the V 3 pp, to have the next request at hand when a drain begins.
    """
    needed = hops(ranks)[-1] + 1
    return 3 * (needed + 1) // 2 if packed else needed


def chunk_groups(schedule: Schedule) -> list[int]:
    """For every chunk the number of its group: chunks that share requests, directly or through others.

    One prompt after another makes a group a prompt. A barrier can only stand between groups.
    """
    last = _last_chunks(schedule)
    groups: list[int] = []
    group, open_until = -1, -1
    for index, chunk in enumerate(schedule.chunks):
        group += open_until < index
        groups.append(group)
        open_until = max(open_until, *(last[part.request] for part in chunk.parts))
    return groups


def _last_chunks(schedule: Schedule) -> dict[int, int]:
    return {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}


def _tighten_for_kv(gates: list[int], schedule: Schedule, limit: int) -> None:
    last = _last_chunks(schedule)
    resident: deque[tuple[int, int]] = deque()  # (last chunk, tokens) of the requests let in, oldest first
    total = 0
    seen: set[int] = set()
    for index, chunk in enumerate(schedule.chunks):
        for part in chunk.parts:
            if part.request in seen:
                continue
            seen.add(part.request)
            request = schedule.requests[part.request]
            resident.append((last[part.request], request.prompt_tokens))
            total += request.prompt_tokens
            while total > limit:
                gone, tokens = resident.popleft()
                if gone >= index:
                    raise InputError(
                        f"the prompts in chunk {index} need {total} resident KV tokens, the limit is {limit}",
                        place=f"request {request.id}",
                        remedy="raise the limit on resident tokens",
                    )
                total -= tokens
                gates[index] = max(gates[index], gone)
