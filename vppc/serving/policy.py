"""Queue policies: which request gets the next chunk.

==========  =============================================================================================
policy      the next chunk goes to
==========  =============================================================================================
fcfs        the request that came first
dual-queue  the same, as the VPP paper has it: batches that have not reached the fold before those that have,
            without regard to whose first token is nearer, and one batch more in flight than there are ranks
srpf        the request with the fewest tokens left (shortest remaining prefill first)
deadline    the request whose latest start for its TTFT target is nearest; those that are late come last
==========  =============================================================================================

**Starvation bound**: under every policy a request that has waited ``patience`` seconds since it came goes before
all that have not, the longest wait first. So a request waits at most that long and then for those that came before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from vppc.costs.model import CostModel, ideal_seconds
from vppc.errors import InputError
from vppc.ir.schedule import Request


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue: its ``number`` in the order of coming, when it came (``since``, seconds of the clock),
    how many of its tokens are cached or in chunks (``covered``), and its ``index`` in the stream, or -1."""

    request: Request
    number: int
    since: float
    covered: int
    index: int = -1
    queued: bool = False
    """Whether it has come to the queue."""
    gone: bool = False
    """Whether nothing more is to be taken: it is covered, or cancelled."""

    @property
    def left(self) -> int:
        """Tokens of the prompt that are in no chunk yet."""
        return self.request.prompt_tokens - self.covered


Key: TypeAlias = Callable[[Waiting, float], tuple[float, ...]]
"""What requests are sorted by, smallest first, at a time; as time passes it may only grow."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A named policy. ``finish_first`` lets a late stage of an earlier prompt go before an early one of a later
    prompt, where no rank runs dry by it; ``one_more`` has one chunk more in flight than there are ranks. Of one that
    goes by costs ``key_by`` gives the key by others."""

    name: str
    key: Key
    patience: float = 60.0
    finish_first: bool = True
    one_more: bool = False
    key_by: Callable[[CostModel], Key] | None = None

    def repriced(self, cost: CostModel) -> Policy:
        """The same policy by other costs."""
        return self if self.key_by is None else replace(self, key=self.key_by(cost))


def ttft_target_of(request: Request, target: float) -> float:
    """Seconds to a request's first token that are in time: its own ``ttft_target``, or the one of all."""
    return float(request.extra.get("ttft_target", target))


def _came_first(waiting: Waiting, now: float) -> tuple[float, ...]:
    return (waiting.since,)


def _shortest(waiting: Waiting, now: float) -> tuple[float, ...]:
    return (waiting.left,)


def _latest_start(cost: CostModel, target: float) -> Key:
    """A request starts its due time less the work of all its layers early: its chunks pass rank after rank, between
    those of others. (With that work spread over the ranks, requests begin too late in bursts, and more miss.)"""

    def key(waiting: Waiting, now: float) -> tuple[float, ...]:
        request = waiting.request
        left = replace(request, cached_tokens=waiting.covered)
        due = waiting.since + ttft_target_of(request, target)
        start = due - ideal_seconds(cost, (left,), 1)
        return start < now, start

    return key


POLICIES = ("fcfs", "dual-queue", "srpf", "deadline")


def policy(name: str, cost: CostModel, *, patience: float = 60.0, ttft_target: float = 10.0) -> Policy:
    """The policy of that name.

    ``ttft_target`` seconds is for requests that do not carry their own as ``ttft_target``. Raises InputError for an
    unknown name, and for times that are negative.
    """
    for what, seconds in (("the starvation bound", patience), ("the TTFT target", ttft_target)):
        if not seconds >= 0:
            raise InputError(f"{what} is {seconds} seconds", remedy="give 0 or more")
    match name:
        case "fcfs":
            return Policy(name, _came_first, patience)
        case "dual-queue":
            return Policy(name, _came_first, patience, finish_first=False, one_more=True)
        case "srpf":
            return Policy(name, _shortest, patience)
        case "deadline":
            key_by = partial(_latest_start, target=ttft_target)
            return Policy(name, key_by(cost), patience, key_by=key_by)
    raise InputError(f"unknown queue policy {name!r}", place="--policy", remedy=f"choose one of {', '.join(POLICIES)}")


class Queue:
    """The waiting requests in the order of a policy; all operations take time logarithmic in their number."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._heap: list[tuple[tuple[float, ...], int, Waiting]] = []
        self._coming: deque[Waiting] = deque()  # in order of coming, those gone included
        self._out: set[int] = set()  # numbers of those that were popped and not given back
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiting: Waiting) -> None:
        """A request comes in; ``number`` and ``since`` never decrease from one to the next."""
        if len(self._coming) > 2 * self._count + _SLACK:
            self._coming = deque(each for each in self._coming if not each.gone)
        self._coming.append(waiting)
        waiting.queued = True
        self._count += 1
        self._push(waiting, waiting.since)

    def pop(self, now: float) -> Waiting | None:
        """Take out the request that gets the next chunk; None when there is none."""
        coming, heap = self._coming, self._heap
        while coming and coming[0].gone:
            coming.popleft()
        oldest = next((each for each in coming if not each.gone and each.number not in self._out), None)
        if oldest is not None and now - oldest.since >= self.policy.patience:
            self._out.add(oldest.number)
            return oldest
        while heap:
            key, number, waiting = heappop(heap)
            if waiting.gone or number in self._out:
                continue
            actual = self.policy.key(waiting, now)
            if actual > key:
                heappush(heap, (actual, number, waiting))
                continue
            self._out.add(number)
            return waiting
        return None

    def reprice(self, cost: CostModel) -> None:
        """From now on the policy goes by other costs."""
        self.policy = self.policy.repriced(cost)
        self._sweep()

    def take_out(self, waiting: Waiting) -> Waiting:
        """Take out this very request."""
        self._out.add(waiting.number)
        return waiting

    def give_back(self, waiting: Waiting, now: float) -> None:
        """A request that was popped waits on, with what is left of it."""
        self._out.discard(waiting.number)
        self._push(waiting, now)

    def drop(self, waiting: Waiting) -> None:
        """A request leaves the queue for good."""
        waiting.gone = True
        self._out.discard(waiting.number)
        self._count -= 1

    def _push(self, waiting: Waiting, now: float) -> None:
        heap = self._heap
        if len(heap) > 2 * self._count + _SLACK:
            self._sweep()
        heappush(heap, (self.policy.key(waiting, now), waiting.number, waiting))

    def _sweep(self) -> None:
        """One entry for each request, by what its key was when it came: without those gone, and old keys, that never
        came to the top."""
        kept = {number: each for _, number, each in self._heap if not each.gone}
        self._heap[:] = [(self.policy.key(each, each.since), number, each) for number, each in kept.items()]
        heapify(self._heap)


_SLACK = 64
"""Entries without use that a queue keeps beside those of as many requests again as wait."""
