"""The serving simulator: a workload on a pipeline's clock, by the cost model; no instruction is made.

The clock is that of the incremental compiler (:mod:`vppc.serving.clock`), so a run here is the plan that a server
makes for the same requests at the same moments. Transfers overlap compute, receives are posted in time, and compute
is not slowed down beside transfers: ``interference`` of the costs is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter

from vppc.analysis.memory import Memory, RankMemory, loads_with, unfit
from vppc.analysis.order_timeline import Timeline
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Model, Order, Request, Schedule
from vppc.passes.balanced_split import BalancedSplit
from vppc.passes.list_schedule import Ran
from vppc.passes.strategies import BALANCED, Options, layout_of
from vppc.serving.batching import Limits
from vppc.serving.chunk_rules import Learning, chunk_rule
from vppc.serving.clock import Pipeline, header_of
from vppc.serving.metrics import ServingReport, serving_report
from vppc.serving.policy import policy
from vppc.serving.workloads import STAGGER, Workload


@dataclass(frozen=True, slots=True)
class Setting:
    """How a workload is served: the strategy and its chunks, the queue's policy, what a rank may hold.

    ``target`` is a TTFT target in seconds, for goodput and the deadline policy; ``patience`` the starvation bound.
    With ``fill`` a chunk holds parts of any prompts, as vLLM's batches do, else of whole ones only. ``memory`` is the
    model on its devices, where they are known.
    """

    cost: CostModel
    options: Options
    policy: str = "fcfs"
    patience: float = 60.0
    target: float | None = None
    fill: bool = True
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A simulated run: requests with their arrivals and the chunks made of them, when each operation ran, and the
    activation ``buffers`` of every rank."""

    schedule: Schedule
    order: Order
    timeline: Timeline
    buffers: int

    def report(self, cost: CostModel, target: float | None = None) -> ServingReport:
        """What it came to; ``cost`` is that of the simulation, ``target`` a TTFT in seconds for goodput."""
        return serving_report(self.schedule, self.order, self.timeline, OpCosts.of(self.schedule, cost), target)

    def fullest(self, memory: Memory, kv_tokens: Sequence[int]) -> RankMemory:
        """The rank on which the least is left of a device, with as many KV tokens as each of them held at once.

        Raises InputError where what is there for one request at a time, the longest, does not fit: the weights, say.
        """
        buffers = [self.buffers] * self.schedule.pp
        longest = max(request.prompt_tokens for request in self.schedule.requests)
        one, held = (
            min(map(memory.of, loads_with(self.schedule, buffers, tokens)), key=lambda rank: rank.free)
            for tokens in ([min(longest, most) for most in kv_tokens], kv_tokens)
        )
        if one.free < 0:
            raise InputError(unfit(one), remedy=_remedy(one, memory))
        return held


def serve(workload: Workload, setting: Setting) -> ServedRun:
    """Serve a workload until the last first token. Raises InputError for what cannot be served.

    A rule that learns has served the same workload as many times before as the options have ``warmups``.
    """
    cost, options = setting.cost, setting.options
    rule = chunk_rule(options, cost)
    header = header_of(_balanced(options, cost, workload.requests), Model(cost.name or "unnamed", cost.layer_count))
    limits = Limits(
        chunk_size=options.chunk_size,
        max_in_flight=options.max_in_flight,
        max_buffers=options.max_buffers,
        max_resident_tokens=options.max_resident_tokens,
        fill=setting.fill,
    )
    extra = {} if setting.target is None else {"ttft_target": setting.target}
    order = policy(setting.policy, cost, patience=setting.patience, **extra)
    for _ in range(options.warmups if isinstance(rule, Learning) else 0):
        _driven(Pipeline(header, cost, limits, order, options.strategy, rule), workload)
    pipeline = Pipeline(header, cost, limits, order, options.strategy, rule)
    return _run(header, *_driven(pipeline, workload), pipeline.buffers)


def _remedy(rank: RankMemory, memory: Memory) -> str:
    """What to do about a rank that has no room for one request."""
    more = "share the model over more devices (--tp, --pp)"
    if rank.weights > rank.limit:
        return f"{more}, or take smaller weights (--weight-dtype); {memory.weight_dtype} weights alone do not fit"
    return f"{more}, or make smaller chunks (--chunk-size); the longest prompt alone does not fit"


def _balanced(options: Options, cost: CostModel, requests: tuple[Request, ...]) -> Options:
    """The options, with the layers of the stages where these are to be balanced: for all requests that will come."""
    if options.split != BALANCED:
        return options
    whole = Schedule(options.strategy, Model("", cost.layer_count), options.pp, 1, requests=requests)
    ranges = BalancedSplit(cost, options.chunk_size)(whole, layout_of(options)[2])
    return replace(options, split=None, ranges=ranges)


def _driven(pipeline: Pipeline, workload: Workload) -> tuple[tuple[Request, ...], tuple[Chunk, ...], list[Ran]]:
    """Let all requests come and run; returns them in the order in which they started, their chunks, and what ran."""
    if workload.concurrency is None:
        for request in workload.requests:
            pipeline.submit(request, 0.0)
        pipeline.run()
    else:
        waiting = deque(workload.requests)
        for user in range(min(workload.concurrency, len(waiting))):
            pipeline.submit(replace(waiting.popleft(), arrival=user * STAGGER), 0.0)
        while (now := pipeline.next_event()) < inf:
            pipeline.run(nextafter(now, inf))
            for token in pipeline.take_finished():
                if waiting:  # the user who has this token sends the next request
                    pipeline.submit(replace(waiting.popleft(), arrival=token.made), now)
    committed = pipeline.take_committed()
    return committed.requests, committed.chunks, list(committed.operations)


def _run(
    header: Schedule, requests: tuple[Request, ...], chunks: tuple[Chunk, ...], ran: list[Ran], buffers: int
) -> ServedRun:
    schedule = replace(header, requests=requests, chunks=chunks)
    stages = len(schedule.stages)
    starts, ends, arrivals = ([0.0] * (stages * len(chunks)) for _ in range(3))
    orders: list[list[int]] = [[] for _ in range(schedule.pp)]
    for chunk, stage, rank, start, end, arrives in ran:
        op = chunk * stages + stage
        starts[op], ends[op] = start, end
        if stage + 1 < stages:
            arrivals[op + 1] = arrives
        orders[rank].append(op)
    arrivals[::stages] = schedule.chunk_arrivals
    return ServedRun(schedule, Order(tuple(map(tuple, orders))), Timeline(starts, ends, arrivals), buffers)
