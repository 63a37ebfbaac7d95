"""From an ordered schedule of any origin to programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

from vppc.costs.document import check_layers, parse_cost
from vppc.costs.model import CostModel, LayerCost
from vppc.errors import CheckFailed, Finding, InputError
from vppc.ir.instruction import Program
from vppc.ir.rules import RULES, check
from vppc.ir.rules.registry import HEADER, SHOWN
from vppc.ir.schedule import Order, Schedule
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.insert_transfers import InsertTransfers


def lower(schedule: Schedule) -> Schedule:
    """The schedule with programs, in its order, for the costs it embeds, or else for equally long layers.

    Raises InputError when it has no order, and CheckFailed when that or the rest of it breaks rules.
    """
    if schedule.order is None:
        raise InputError("neither programs nor an order to make them from", remedy="give a program for every rank")
    for judge in (_rank_findings, _header_findings, _order_findings, _step_findings):
        findings = tuple(islice(judge(schedule, schedule.order), SHOWN))
        if findings:
            raise CheckFailed(findings)
    if "cost" in schedule.extra:
        cost = parse_cost(schedule.extra["cost"], place="cost")
        check_layers(cost, schedule.model.layers, place="cost.layers")
    else:
        cost = CostModel((LayerCost(schedule.model.layers, fixed=1.0),))
    return AllocateBuffers(cost)(InsertTransfers(cost)(schedule))


def _rank_findings(schedule: Schedule, order: Order) -> Iterator[Finding]:
    if len(order.ranks) != schedule.pp:
        yield Finding("S5", "order", f"{len(order.ranks)} orders for {schedule.pp} ranks", "give every rank an order")


def _header_findings(schedule: Schedule, _: Order) -> Iterator[Finding]:
    """What breaks the rules that say nothing of instructions."""
    idle = tuple(Program.of(rank, 0, []) for rank in range(schedule.pp))
    return (found for found in check(replace(schedule, programs=idle)) if RULES[found.code].level == HEADER)


def _order_findings(schedule: Schedule, order: Order) -> Iterator[Finding]:
    """Every rank runs its stages, once, on every chunk."""
    stages, chunks = len(schedule.stages), range(len(schedule.chunks))
    for rank, ops in enumerate(order.ranks):
        runs = Counter(ops)
        mine = {chunk * stages + stage for chunk in chunks for stage in schedule.rank_stages[rank]}
        for op in sorted(runs.keys() | mine):
            what = _name(op, stages)
            if op not in mine:
                yield Finding("P2", f"order {rank}", f"{what} does not belong to rank {rank}", "order it on its rank")
            elif runs[op] != 1:
                code, times = ("P3", f"{runs[op]} times") if runs[op] else ("P4", "never")
                yield Finding(code, f"order {rank}", f"{what} runs {times}", "run every stage once on every chunk")


def _step_findings(schedule: Schedule, order: Order) -> Iterator[Finding]:
    """Where there are steps, a rank runs them in turn, and what a step sends is for a later step to read."""
    if order.steps is None:
        return
    steps, stages, ranks = order.steps, len(schedule.stages), schedule.stage_ranks
    for rank, ops in enumerate(order.ranks):
        position = {op: index for index, op in enumerate(ops)}
        for before, after in pairwise(ops):
            if steps[after] < steps[before]:
                what = f"{_name(after, stages)} of step {steps[after]} after step {steps[before]}"
                yield Finding("D1", f"order {rank}", what, "order a rank's operations by step")
        for op in ops:
            stage = op % stages
            if stage and (position[op - 1] > position[op] if ranks[stage - 1] == rank else steps[op - 1] >= steps[op]):
                what = f"{_name(op, stages)} in step {steps[op]}, {_name(op - 1, stages)} in step {steps[op - 1]}"
                yield Finding(
                    "D1", f"order {rank}", what, "run a stage behind the one before, in a later step on another rank"
                )


def _name(op: int, stages: int) -> str:
    return f"c{op // stages}.s{op % stages}"
