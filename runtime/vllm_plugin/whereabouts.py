"""Where the ranks of a folded server stand, in words, for the log of one that ends."""

from __future__ import annotations

from runtime.vllm_plugin.page import Page
from vppc.serving.batch_order import Entry

MOST_NAMED = 4
"""Requests of a chunk, in a message."""


class Whereabouts:
    """The page says on which chunk each process is, of which a rank has ``tp``; here it is known for which requests,
    while a chunk is in flight. Who is between two chunks is told of with those who wait for it."""

    def __init__(self, page: Page, tp: int) -> None:
        self._page, self._tp = page, tp
        self._requests: dict[int, list[str]] = {}
        self._entered = 0

    def enter(self, entry: Entry) -> None:
        """The next chunk is in flight."""
        self._requests[self._entered] = [entry.prompts[part.request].id for part in entry.chunk.parts]
        self._entered += 1

    def leave(self) -> None:
        """The oldest chunk is through."""
        del self._requests[next(iter(self._requests))]

    def of(self, process: int, state: str) -> str:
        """For example ``rank 1 is alive, in FORWARD of chunk 41 on stage 1 (request a)``."""
        rank, tp_rank = divmod(process, self._tp)
        who = f"rank {rank}" + (f" (tp rank {tp_rank})" if self._tp > 1 else "")
        row = self._page.ranks()[process]
        return f"{who} {state}, {row}{self._for(row.chunk)}"

    def _for(self, chunk: int) -> str:
        in_flight = dict(self._requests)  # as it is now: another thread goes on
        if chunk in in_flight:
            return f" ({_named(in_flight[chunk])})"
        oldest = min(in_flight, default=None)
        return "" if oldest is None else f"; chunk {oldest} is in flight ({_named(in_flight[oldest])})"


def _named(requests: list[str]) -> str:
    more = f" and {len(requests) - MOST_NAMED} more" if len(requests) > MOST_NAMED else ""
    return f"request{'s' if len(requests) > 1 else ''} {', '.join(requests[:MOST_NAMED])}{more}"
