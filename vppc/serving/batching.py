"""The next chunk: whose tokens, and how many, within the limits of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vppc.errors import InputError
from vppc.passes.chunking import FixedChunks
from vppc.passes.online_chunking import Batch, Behind
from vppc.serving.policy import Queue, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be in the pipeline, and before it, at once; None means no limit of its own.

    ``chunk_size`` tokens are in a chunk at most, of which ``decode_tokens`` are kept free for decoding requests.
    ``max_in_flight`` counts chunks entered and not finished, ``max_buffers`` the activation buffers of a rank,
    ``max_resident_tokens`` the prompt tokens of requests entered and not finished, ``max_queued`` the requests that
    wait for their first chunk. With ``share`` short prompts share a chunk, with ``fill`` also any prompts: what one
    leaves of a chunk the next one begins in, as vLLM has it. Raises InputError for what cannot work.
    """

    chunk_size: int = 8192
    max_in_flight: int | None = None
    max_buffers: int | None = None
    max_resident_tokens: int | None = None
    decode_tokens: int = 0
    max_queued: int | None = None
    share: bool = True
    fill: bool = False

    def __post_init__(self) -> None:
        for name, least in (("chunk_size", 1), ("max_in_flight", 1), ("max_buffers", 2), ("max_resident_tokens", 1),
                            ("decode_tokens", 0), ("max_queued", 1)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < least:
                place = f"--{name.replace('_', '-')}"
                raise InputError(f"{value} is too few", place=place, remedy=f"give at least {least}")
        if self.decode_tokens >= self.chunk_size:
            raise InputError(
                f"{self.decode_tokens} tokens for decoding leave nothing of a chunk of {self.chunk_size}",
                remedy="reserve fewer, or use larger chunks",
            )

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens in a chunk at most."""
        return self.chunk_size - self.decode_tokens


class ChunkRule(Protocol):
    """How long the next chunk of a prompt is; told of what chunks took, so that it can learn."""

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        """Tokens of the next chunk behind ``prefix`` tokens, 1 to ``left``; 0 where ``taken`` parts leave no room."""
        ...

    def record(self, batch: Batch) -> None:
        """A chunk is through, at this time of the clock."""
        ...


class Fixed(FixedChunks):
    """Chunks of one size; there is nothing to learn."""

    def next_chunk(self, prefix: int, left: int, taken: Sequence[Behind] = ()) -> int:
        return min(self.chunk_size, left)

    def record(self, batch: Batch) -> None:
        """Chunks of one size stay as they are."""


class Share(NamedTuple):
    """The next ``tokens`` tokens of a waiting request."""

    waiting: Waiting
    tokens: int


class Batcher:
    """Takes the next chunk from a queue. ``started`` are the requests with some of their tokens in chunks, not all."""

    def __init__(self, queue: Queue, rule: ChunkRule, limits: Limits) -> None:
        self.queue, self.rule, self.limits = queue, rule, limits
        self.started: list[Waiting] = []

    def propose(self, now: float, room: float, *, barrier: bool, idle: bool) -> list[Share]:
        """Whose tokens the next chunk holds; none where nobody may go on.

        ``room`` is how many tokens may become resident. Behind a ``barrier`` a request starts only when the
        pipeline is ``idle`` and nobody else has started. Takes the requests out of the queue: :meth:`take` or
        :meth:`give_back` what is returned.
        """
        if barrier and (self.started or not idle):
            first = self.queue.take_out(self.started[0]) if self.started else None
        else:
            first = self._fitting(now, room)
        if first is None:
            return []
        budget = self.limits.prefill_tokens
        shares = [Share(first, min(budget, self.rule.next_chunk(first.covered, first.left)))]
        fill = self.limits.fill and not barrier
        if fill or (self.limits.share and _is_whole(shares[0])):
            new = first.request.prompt_tokens if first not in self.started else 0
            self._fill(shares, now, budget - shares[0].tokens, room - new, fill=fill)
        return shares

    def take(self, shares: list[Share], now: float) -> None:
        """The chunk is made."""
        for waiting, tokens in shares:
            if waiting in self.started:
                self.started.remove(waiting)
            waiting.covered += tokens
            if waiting.left:
                self.started.append(waiting)
                self.queue.give_back(waiting, now)
            else:
                self.queue.drop(waiting)

    def give_back(self, shares: list[Share], now: float) -> None:
        """The chunk is not made after all."""
        for waiting, _ in shares:
            self.queue.give_back(waiting, now)

    def drop(self, waiting: Waiting) -> None:
        """The request is cancelled."""
        if waiting in self.started:
            self.started.remove(waiting)
        self.queue.drop(waiting)

    def _fitting(self, now: float, room: float) -> Waiting | None:
        """The first in the queue; where its tokens find no room, the first of those that are resident already."""
        first = self.queue.pop(now)
        if first is None or first in self.started or first.request.prompt_tokens <= room:
            return first
        self.queue.give_back(first, now)
        if not self.started:
            return None
        return self.queue.take_out(min(self.started, key=lambda each: self.queue.policy.key(each, now)))

    def _fill(self, shares: list[Share], now: float, budget: int, room: float, *, fill: bool) -> None:
        """Add prompts in the order of the queue while they fit: whole ones, or with ``fill`` as much as fits of any."""
        taken = [_behind(shares[0])]
        while budget and (waiting := self.queue.pop(now)) is not None:
            new = waiting.request.prompt_tokens if waiting not in self.started else 0
            share = Share(waiting, min(budget, self.rule.next_chunk(waiting.covered, waiting.left, taken)))
            if not share.tokens or new > room or not (fill or _is_whole(share)):
                self.queue.give_back(waiting, now)
                return
            shares.append(share)
            taken.append(_behind(share))
            budget -= share.tokens
            room -= new


def _behind(share: Share) -> Behind:
    return share.tokens, share.waiting.covered


def _is_whole(share: Share) -> bool:
    return share.waiting.covered == share.waiting.request.cached_tokens and share.tokens == share.waiting.left
