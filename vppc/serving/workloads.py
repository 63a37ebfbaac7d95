"""Workloads: which requests come, and when.

Two ways to come. In an *open loop* each request comes at its arrival, whatever becomes of those before. In a *closed
loop* there are as many users as ``concurrency`` says, and each sends the next request when the one before has its
first token; arrivals mean nothing. The users' first requests come ``STAGGER`` apart, since no client sends many at one
moment: a pipeline that was empty then starts with the first alone.

The suites are those of the VPP paper's section 6.1, one output token a request:

=====================  ======================================================================================
short-4k, -8k, -16k    100 requests of that many tokens at once
long-64k .. long-1m    4 requests of that many tokens, one at a time
mixed                  500 requests of 7 to 122,710 tokens, 16 at a time
=====================  ======================================================================================

Of the mixed lengths the paper says mean 22.5K, median 10K, P90 64K and the two ends. :func:`mixed_lengths` is a
distribution that has them; what they do between is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from vppc.errors import InputError
from vppc.ir.schedule import Request

STAGGER = 1e-3
"""Seconds between the first requests of the users in a closed loop."""

MIXED_QUANTILES = ((0.0, 7), (0.5, 10_000), (0.9, 64_000), (1.0, 122_710))
"""Share of the mixed requests, and the length in tokens that so many do not exceed."""
MIXED_POWER = 0.2
"""Between quantiles the length's 0.2nd power is linear, which gives 500 requests a mean of 22,523 tokens."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent; with ``concurrency`` a closed loop of that many users.

    Raises InputError for a workload without requests and a concurrency below 1.
    """

    name: str
    requests: tuple[Request, ...] = field(hash=False)
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.requests:
            raise InputError("the workload has no requests", remedy="at least one")
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"a concurrency of {self.concurrency}", place="--concurrency", remedy="at least 1")

    @property
    def tokens(self) -> int:
        """The tokens to compute: those of all prompts that are not cached."""
        return sum(request.prompt_tokens - request.cached_tokens for request in self.requests)

    @property
    def rate(self) -> float | None:
        """Requests a second of an open loop, on average; None for a closed one and for requests that come at once."""
        arrivals = [request.arrival for request in self.requests]
        span = max(arrivals) - min(arrivals)
        return (len(arrivals) - 1) / span if self.concurrency is None and span else None

    def paced(self, rate: float, seed: int) -> Workload:
        """An open loop in which ``rate`` requests a second come, on average.

        Requests that have arrivals of their own keep their pattern, stretched; those that would come at once, or
        in a closed loop, come at random: with independent exponential gaps, drawn from ``seed``. Raises InputError
        for a rate that is not positive.
        """
        if not rate > 0:
            raise InputError(f"a rate of {rate} requests a second", place="--rate", remedy="more than 0")
        arrivals = [request.arrival for request in self.requests]
        first, last = min(arrivals), max(arrivals)
        if self.concurrency is None and last > first:
            stretch = (len(arrivals) - 1) / rate / (last - first)
            arrivals = [(arrival - first) * stretch for arrival in arrivals]
        else:
            random, now = Random(seed), 0.0
            for index in range(1, len(arrivals)):
                now += random.expovariate(rate)
                arrivals[index] = now
            arrivals[0] = 0.0
        requests = (replace(request, arrival=at) for request, at in zip(self.requests, arrivals, strict=True))
        return Workload(self.name, tuple(requests))


def mixed_lengths(count: int) -> list[int]:
    """Tokens of ``count`` prompts, ascending: the quantiles of the paper's mixed suite, evenly spaced.

    Raises InputError for a count below 2.
    """
    if count < 2:
        raise InputError(f"{count} requests of mixed lengths", remedy="at least 2")
    return [_mixed_quantile(index / (count - 1)) for index in range(count)]


def _mixed_quantile(share: float) -> int:
    for (low, short), (high, long) in pairwise(MIXED_QUANTILES):
        if share <= high:
            between = (share - low) / (high - low)
            start, end = math.pow(short, MIXED_POWER), math.pow(long, MIXED_POWER)
            return round(math.pow(start + between * (end - start), 1 / MIXED_POWER))
    raise ValueError(f"{share} is no share")


def _named(lengths: Sequence[int]) -> tuple[Request, ...]:
    return tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(lengths))


def _mixed(name: str, seed: int) -> Workload:
    lengths = mixed_lengths(500)
    Random(seed).shuffle(lengths)
    return Workload(name, _named(lengths), concurrency=16)


def _equal(tokens: int, count: int, concurrency: int) -> Callable[[str, int], Workload]:
    return lambda name, _: Workload(name, _named([tokens] * count), concurrency)


_K = 1024
_SUITES: dict[str, Callable[[str, int], Workload]] = {
    **{f"short-{length}k": _equal(length * _K, 100, 100) for length in (4, 8, 16)},
    **{f"long-{length}k": _equal(length * _K, 4, 1) for length in (64, 128, 256, 512)},
    "long-1m": _equal(_K * _K, 4, 1),
    "mixed": _mixed,
}
SUITES = tuple(_SUITES)


def suite(name: str, seed: int = 0) -> Workload:
    """One of the paper's suites; ``seed`` shuffles the mixed one. Raises InputError for another name."""
    if name not in _SUITES:
        raise InputError(f"unknown suite {name!r}", place="--suite", remedy=f"one of {', '.join(SUITES)}")
    return _SUITES[name](name, seed)
