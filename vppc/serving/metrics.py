"""What serving a workload came to: throughput, times to first token, and why ranks were idle.

The clock starts at the first arrival and ends with the last operation: the makespan. A rank's idle time in it, the
contract's bubble and exposed transfer, is divided by what the rank was idle for, moment by moment:

=============  ============================================================================================
empty          no request is in the system
transfer       the input of the rank's next operation is under way
starved        requests are in the pipeline, but none waits to enter: there is nothing to pack
held           requests wait, and rank 0 may not let one in: chunks in flight, resident KV or a barrier
imbalance      requests wait, and the rank's next input is not computed yet
=============  ============================================================================================

A request waits from its arrival until its last chunk enters the pipeline.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vppc.analysis.memory import most_resident
from vppc.analysis.order_timeline import Timeline
from vppc.costs.model import OpCosts
from vppc.ir.schedule import Order, Schedule
from vppc.serving.policy import ttft_target_of


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of times in seconds the mean, percentiles by nearest rank, and the longest."""

    mean: float
    p50: float
    p90: float
    p99: float
    longest: float

    @classmethod
    def of(cls, times: Iterable[float]) -> Distribution:
        """The distribution of at least one time."""
        ordered = sorted(times)
        p50, p90, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99))
        return cls(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class RankUse:
    """The makespan as one rank spends it, in seconds; the module says what it is idle for.

    ``kv_tokens`` is the most KV that it held at once, of requests with a chunk in the pipeline, in tokens.
    """

    rank: int
    compute: float
    collective: float
    transfer: float
    imbalance: float
    held: float
    starved: float
    empty: float
    kv_tokens: int

    @property
    def needed(self) -> float:
        """Seconds in which it worked, or requests waited for it: all but those in which more could have come."""
        return self.compute + self.collective + self.transfer + self.imbalance + self.held

    @property
    def bubble(self) -> float:
        """Idle time without exposed transfers."""
        return self.imbalance + self.held + self.starved + self.empty


@dataclass(frozen=True, slots=True)
class ServingReport:
    """What a run came to; times in seconds, rates a second.

    ``tokens`` are those computed, without cached ones. ``queueing`` is from a request's arrival to the start of its
    first chunk. ``depth`` is the mean number of requests in the system, ``depth_at_last`` how many there are when the
    last one comes, itself included. ``goodput`` are the requests a second whose first token came within ``target``, or
    within their own; without a target there is none.
    """

    requests: int
    tokens: int
    chunks: int
    makespan: float
    ttft: Distribution
    queueing: Distribution
    depth: float
    depth_at_last: int
    ranks: tuple[RankUse, ...]
    target: float | None
    goodput: float | None

    @property
    def throughput(self) -> float:
        """Tokens computed a second."""
        return self.tokens / self.makespan if self.makespan else math.inf

    @property
    def kv_tokens(self) -> int:
        """The most KV tokens that a rank held at once."""
        return max(use.kv_tokens for use in self.ranks)

    def bubble_ratio(self, use: RankUse) -> float:
        """The part of the makespan that is bubble on a rank."""
        return use.bubble / self.makespan if self.makespan else 0.0

    def json(self) -> dict[str, Any]:
        """All fields, the throughput and every rank's bubble ratio."""
        ranks = [asdict(use) | {"bubble_ratio": self.bubble_ratio(use)} for use in self.ranks]
        return asdict(self) | {"throughput": self.throughput, "ranks": ranks}


def serving_report(
    schedule: Schedule, order: Order, timeline: Timeline, costs: OpCosts, target: float | None = None
) -> ServingReport:
    """Judge a run: the chunks of ``schedule``, of at least one request, run in ``order`` at the times of ``timeline``.

    Every request's last chunk has run. ``costs`` are of the same schedule.
    """
    crowd = _Crowd(schedule, timeline)
    end = timeline.finish
    makespan = end - crowd.start
    ttft = [token - request.arrival for token, request in zip(crowd.first_tokens, schedule.requests, strict=True)]
    queueing = [start - request.arrival for start, request in zip(crowd.started, schedule.requests, strict=True)]
    timed = zip(ttft, schedule.requests, strict=True)
    good = None if target is None else sum(time <= ttft_target_of(request, target) for time, request in timed)
    return ServingReport(
        requests=len(schedule.requests),
        tokens=sum(chunk.tokens for chunk in schedule.chunks),
        chunks=len(schedule.chunks),
        makespan=makespan,
        ttft=Distribution.of(ttft),
        queueing=Distribution.of(queueing),
        depth=math.fsum(ttft) / makespan if makespan else 0.0,  # Little's law
        depth_at_last=crowd.present_at(max(request.arrival for request in schedule.requests)),
        ranks=tuple(_rank_use(schedule, order, timeline, costs, crowd, rank) for rank in range(schedule.pp)),
        target=target,
        goodput=None if good is None else good / makespan if makespan else math.inf,
    )


class _Crowd:
    """Who is there: for every request when it starts, when all of it has entered, and when it has its first token."""

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        stages = len(schedule.stages)
        requests = schedule.requests
        self.started = [math.inf] * len(requests)
        self.first_tokens = [math.inf] * len(requests)
        entered = [0.0] * len(requests)
        for index, chunk in enumerate(schedule.chunks):
            start, end = timeline.starts[index * stages], timeline.ends[(index + 1) * stages - 1]
            for part in chunk.parts:
                request = part.request
                self.started[request] = min(self.started[request], start)
                if part.decode:
                    continue
                entered[request] = max(entered[request], start)
                if part.end == requests[request].prompt_tokens:
                    self.first_tokens[request] = end
        changes = [(request.arrival, 1, 1) for request in requests]
        changes += [(when, -1, 0) for when in entered]
        changes += [(when, 0, -1) for when in self.first_tokens]
        changes.sort()
        self.start = changes[0][0]
        self.times: list[float] = []
        self.states: list[int] = []  # from each of the times on: 0 nobody is there, 1 nobody waits, 2 somebody waits
        waiting = present = 0
        for when, waits, comes in changes:
            waiting += waits
            present += comes
            self.times.append(when)
            self.states.append(2 if waiting else 1 if present else 0)

    def present_at(self, when: float) -> int:
        """Requests that have come by then, and have no first token yet, if all have come."""
        return sum(token > when for token in self.first_tokens)

    def divide(self, start: float, end: float, seconds: list[float]) -> None:
        """Add the stretch from ``start`` to ``end`` to ``seconds``, by state."""
        at = bisect_right(self.times, start) - 1
        while start < end:
            until = self.times[at + 1] if at + 1 < len(self.times) else math.inf
            until = min(until, end)
            if until > start:
                seconds[self.states[at]] += until - start
                start = until
            at += 1


def _rank_use(
    schedule: Schedule, order: Order, timeline: Timeline, costs: OpCosts, crowd: _Crowd, rank: int
) -> RankUse:
    stages, ranks = len(schedule.stages), schedule.stage_ranks
    busy = collective = transfer = held = imbalance = 0.0
    idle = [0.0, 0.0, 0.0]
    now = crowd.start
    for op in order.ranks[rank]:
        start = timeline.starts[op]
        stage = op % stages
        if start > now:
            waited = idle[2]
            if stage and ranks[stage - 1] != rank:
                sent, there = timeline.ends[op - 1], timeline.arrivals[op]
                shown = min(max(sent, now), start), min(max(there, now), start)
                transfer += shown[1] - shown[0]
                crowd.divide(now, shown[0], idle)
                crowd.divide(shown[1], start, idle)
            else:
                crowd.divide(now, start, idle)
            if stage:
                imbalance += idle[2] - waited
            else:
                held += idle[2] - waited
        now = timeline.ends[op]
        busy += now - start
        collective += costs.collective[op]
    waited = idle[2]
    crowd.divide(now, timeline.finish, idle)
    return RankUse(
        rank=rank,
        compute=busy - collective,
        collective=collective,
        transfer=transfer,
        imbalance=imbalance + idle[2] - waited,
        held=held,
        starved=idle[1],
        empty=idle[0],
        kv_tokens=most_resident(schedule, rank, (divmod(op, stages) for op in order.ranks[rank])),
    )
