"""A lower bound on the makespan of any order of the same chunks, layer split and placement.

**Heads and tails.** The *head* of an operation is the length of the longest path to its start through the
dependency DAG (activations with their transfers, KV prefixes, tokens), from the arrival of a chunk on; its
*tail* is the longest path from its end to the end of everything. No order can start it before its head, or
have less than its tail to do after it. Transfers have heads and tails in the same way.

**Claim.** Let J be any set of operations of one rank, or of transfers of one channel. Then

    makespan >= (least head in J) + (sum of the seconds of J) + (least tail in J)

*Proof.* A rank runs one operation at a time, and a channel one transfer. Nothing of J starts before the least
head, so the one that ends last ends no earlier than the least head plus all seconds of J; after that at least
its own tail must follow, which is no less than the least tail. QED. All operations of a rank as J give "fill,
work and tail"; a single operation on the longest path gives the critical path.

**The best set** is found by running the operations of a rank preemptively, always the released one with the
longest tail (Jackson's rule; Carlier, The one-machine sequencing problem, 1982). Take the operation whose end C
plus tail q is largest, and the last moment t before C at which the rank idled or ran something with a tail
below q. The set J of what ran from t to C has tails of q or more; all of it was released at t or later, since
anything earlier would have run before t instead; and it was completed by C, since otherwise what is left would
end later with a tail as long. So J gives t + (C - t) + q, the preemptive makespan, which no set can exceed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, pairwise
from operator import add

from vppc.analysis.breakdown import clock_start
from vppc.costs.model import OpCosts
from vppc.ir.dag import Dag
from vppc.ir.schedule import Schedule

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class LowerBound:
    """``seconds`` = ``head`` + ``work`` + ``tail`` of the set of operations that binds, on ``resource``.

    ``resource`` is the rank ("rank 1") or the pair of ranks with their channel ("channel 0 -> 1"); nothing in
    the set can start before ``head``, it needs ``work``, and what must follow it ``tail`` seconds.
    """

    resource: str
    head: float
    work: float
    tail: float

    @property
    def seconds(self) -> float:
        return self.head + self.work + self.tail


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What one resource must run, one at a time; lists are parallel, in seconds."""

    resource: str
    heads: list[float]
    seconds: list[float]
    tails: list[float]


def lower_bound(schedule: Schedule, costs: OpCosts) -> LowerBound:
    """The largest bound over all ranks and channels; the proof is above. n log n in the operations.

    ``schedule`` needs chunks and stages. Pairs of ranks with several channels do not bind. The clock starts as
    in :func:`vppc.analysis.breakdown.makespan`. Interference can only add to what is bounded here.
    """
    dag = Dag.of(schedule)
    heads, tails = longest_paths(schedule, costs, dag)
    bounds = [_one_at_a_time(jobs) for jobs in _resources(schedule, costs, heads, tails)]
    return max(bounds, key=lambda bound: (bound.seconds, bound.work))


def longest_paths(schedule: Schedule, costs: OpCosts, dag: Dag) -> tuple[list[float], list[float]]:
    """The head and the tail of every operation, in seconds from the start of the clock; linear."""
    ranks = schedule.stage_ranks
    stages, seconds = dag.stages, costs.seconds
    hop = [False] + [here != there for here, there in pairwise(ranks)]
    origin = clock_start(schedule)
    heads: list[float] = []
    for chunk, (prefix, token, arrival) in enumerate(zip(dag.prefix, dag.token, schedule.chunk_arrivals, strict=True)):
        transfer = costs.transfer[chunk]
        ready = arrival - origin
        for earlier in token:
            last = (earlier + 1) * stages - 1
            ready = max(ready, heads[last] + seconds[last])
        for stage in range(stages):
            if hop[stage]:
                ready += transfer
            for earlier in prefix:
                before = earlier * stages + stage
                end = heads[before] + seconds[before]
                if end > ready:
                    ready = end
            heads.append(ready)
            ready += seconds[chunk * stages + stage]
    tails = [0.0] * len(heads)
    for chunk in range(len(dag.prefix) - 1, -1, -1):
        prefix, transfer = dag.prefix[chunk], costs.transfer[chunk]
        after = 0.0  # from the end of a stage to the end of everything, through the chunk's next stage
        for stage in range(stages - 1, -1, -1):
            op = chunk * stages + stage
            if tails[op] < after:
                tails[op] = after
            after = tails[op] + seconds[op]
            for earlier in prefix:
                before = earlier * stages + stage
                if tails[before] < after:
                    tails[before] = after
            if hop[stage]:
                after += transfer
        for earlier in dag.token[chunk]:
            last = (earlier + 1) * stages - 1
            tails[last] = max(tails[last], after)
    return heads, tails


def _resources(schedule: Schedule, costs: OpCosts, heads: list[float], tails: list[float]) -> Iterable[_Jobs]:
    """The operations of every rank, and the transfers of every pair of ranks that has one channel."""
    stages, seconds = len(schedule.stages), costs.seconds
    ranks = schedule.stage_ranks
    for rank, mine in enumerate(schedule.rank_stages):
        jobs = _Jobs(f"rank {rank}", [], [], [])
        for stage in mine:
            jobs.heads.extend(heads[stage::stages])
            jobs.seconds.extend(seconds[stage::stages])
            jobs.tails.extend(tails[stage::stages])
        yield jobs
    channels = Counter((channel.src, channel.dst) for channel in schedule.channels)
    crossings: dict[tuple[int, int], list[int]] = {}
    for stage, pair in enumerate(pairwise(ranks)):
        if pair[0] != pair[1] and channels[pair] < 2:
            crossings.setdefault(pair, []).append(stage)
    for (src, dst), senders in crossings.items():
        jobs = _Jobs(f"channel {src} -> {dst}", [], [], [])
        for stage in senders:
            jobs.heads.extend(map(add, heads[stage::stages], seconds[stage::stages]))
            jobs.seconds.extend(costs.transfer)
            jobs.tails.extend(map(add, tails[stage + 1 :: stages], seconds[stage + 1 :: stages]))
        yield jobs


def _one_at_a_time(jobs: _Jobs) -> LowerBound:
    """The best bound that a resource gives: the one of the set J of the proof."""
    heads, seconds, tails = jobs.heads, jobs.seconds, jobs.tails
    by_head = sorted(range(len(heads)), key=heads.__getitem__)
    threshold = _binding_tail(jobs, by_head)
    best = 0.0, 0.0, 0.0
    value = first = work = 0.0
    least = _NEVER
    for job in by_head:
        if tails[job] < threshold:
            continue
        if heads[job] > first + work:  # the resource idles before this one: a new set begins
            first, work, least = heads[job], 0.0, _NEVER
        work += seconds[job]
        least = min(least, tails[job])
        if first + work + least >= value:  # of equals the larger set, which says more
            value = first + work + least
            best = first, work, least
    return LowerBound(jobs.resource, *best)


def _binding_tail(jobs: _Jobs, by_head: list[int]) -> float:
    """The tail q of the proof: of the job that ends last, its tail included, in the preemptive run."""
    by_tail = sorted(range(len(jobs.tails)), key=jobs.tails.__getitem__, reverse=True)
    urgency = [0] * len(by_tail)  # of every job, its place in by_tail; in the run a job goes by that number
    for place, job in enumerate(by_tail):
        urgency[job] = place
    left = [jobs.seconds[job] for job in by_tail]
    tails = [jobs.tails[job] for job in by_tail]
    released: list[int] = []  # a heap: the most urgent job first
    now = latest = binding = 0.0
    for until in chain(by_head, (None,)):
        stop = _NEVER if until is None else jobs.heads[until]
        while released:
            running = released[0]
            end = now + left[running]
            if end > stop:
                left[running] = end - stop
                break
            heappop(released)
            now = end
            if end + tails[running] >= latest:
                latest, binding = end + tails[running], tails[running]
        now = stop
        if until is not None:
            heappush(released, urgency[until])
    return binding
