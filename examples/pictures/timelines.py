"""Small schedules as timelines, one below the other on one scale, as ``vppc plot`` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from vppc.analysis.order_timeline import timeline
from vppc.analysis.times import Timing
from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.model import CostModel, OpCosts
from vppc.ir.instruction import Forward, Program
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.strategies import Options
from vppc.render.lanes import Run
from vppc.render.plot import Style, plot

WIDTH = 900
"""In pixels, a little less than a page's column, so that letters keep their size."""


def cost_of(transfer: float) -> CostModel:
    """Four layers, chunk k takes k + 1 seconds in each, and a transfer as long as is said."""
    return paper_cost(4, 1.0, transfer)


@cache
def after_passes(strategy: str, prompts: tuple[int, ...], transfer: float) -> dict[str, Schedule]:
    """What every pass of a strategy made of prompts of so many chunks, on two ranks; by the pass's name."""
    cost, made = cost_of(transfer), dict[str, Schedule]()
    requests = tuple(Request(f"r{index}", chunks) for index, chunks in enumerate(prompts))
    options = Options(strategy=strategy, pp=2, chunk_size=1)
    compile_schedule(
        requests,
        Model(cost.name, cost.layer_count),
        cost,
        options,
        after=lambda step, schedule: made.update({step.name: schedule}),
    )
    return made


def compiled(name: str, strategy: str, prompts: tuple[int, ...], transfer: float = 0.0) -> Run:
    """The run of a strategy's schedule."""
    schedule = after_passes(strategy, prompts, transfer)["allocate_buffers"]
    return Run(name, schedule, simulate(schedule, OpCosts.of(schedule, cost_of(transfer))))


def lowered(name: str, schedule: Schedule, transfer: float) -> Run:
    """The run that the order of a schedule comes to, with transfers and buffers as the compiler adds them."""
    cost = cost_of(transfer)
    programs = AllocateBuffers(cost)(InsertTransfers(cost)(schedule))
    return Run(name, programs, simulate(programs, OpCosts.of(programs, cost)))


def bare(name: str, schedule: Schedule, transfer: float) -> Run:
    """The run of an order before there are programs: what is computed, and when, without the transfers between."""
    assert schedule.order is not None
    planned = timeline(schedule, OpCosts.of(schedule, cost_of(transfer)), schedule.order)
    programs = []
    for rank, ops in enumerate(schedule.order.ranks):
        forwards = [Forward(*schedule.op(op), None, None) for op in ops]
        programs.append(Program.of(rank, 0, forwards))
    starts = tuple([planned.starts[op] for op in ops] for ops in schedule.order.ranks)
    ends = tuple([planned.ends[op] for op in ops] for ops in schedule.order.ranks)
    return Run(name, replace(schedule, programs=tuple(programs), channels=()), Timing(starts, ends, ()))


def drawn(runs: Iterable[Run]) -> str:
    """The runs as one picture."""
    return plot(tuple(runs), Style(width=WIDTH, rows=1))


def seeing() -> Iterator[tuple[str, str]]:
    """A plan, and a run of it in which rank 1 takes half as long again, by file name."""
    plan = compiled("plan", "vpp-async", (6,), 0.6)
    costs = OpCosts.of(plan.schedule, cost_of(0.6))
    ranks = plan.schedule.stage_ranks * len(plan.schedule.chunks)
    slow = [seconds * (1.5 if rank == 1 else 1.0) for seconds, rank in zip(costs.seconds, ranks, strict=True)]
    run = replace(plan, name="run, rank 1 slow", timing=simulate(plan.schedule, replace(costs, seconds=slow)))
    yield "seeing-timeline.svg", plot((plan, run), Style("timeline", WIDTH, rows=1))


def idea() -> Iterator[tuple[str, str]]:
    """The pictures of the idea, by file name."""
    yield "idea-straight.svg", drawn([compiled("straight", "cpp", (5,))])
    yield "idea-folded.svg", drawn([compiled("straight", "cpp", (5,)), compiled("folded", "vpp", (5,))])
    hidden = [compiled(name, strategy, (5,), 0.5) for name, strategy in (("vpp", "vpp"), ("vpp-async", "vpp-async"))]
    yield "idea-hidden.svg", drawn(hidden)
    packed = [compiled(name, name, (5, 3), 0.5) for name in ("vpp-async", "vpp-packed")]
    yield "idea-packed.svg", drawn(packed)


def passes() -> Iterator[tuple[str, str]]:
    """What each pass that orders, and the one that inserts transfers, gets and makes, by file name."""
    one = after_passes("vpp-async", (5,), 0.5)
    yield "pass-order.svg", drawn([bare("order", one["order"], 0.5)])
    pair = [lowered("before: order", one["order"], 0.5), lowered("after: async_reorder", one["async_reorder"], 0.5)]
    yield "pass-async-reorder.svg", drawn(pair)
    two = after_passes("vpp-packed", (3, 3), 0.5)
    names = (("before: async_reorder", "async_reorder"), ("after: request_packing", "request_packing"))
    yield "pass-request-packing.svg", drawn(lowered(name, two[step], 0.5) for name, step in names)
    three = after_passes("vpp-async", (3,), 0.5)
    inserted = three["insert_transfers"]
    after = Run("after: SEND, RECV, WAIT", inserted, simulate(inserted, OpCosts.of(inserted, cost_of(0.5))))
    yield "pass-insert-transfers.svg", drawn([bare("before: an order", three["async_reorder"], 0.5), after])
