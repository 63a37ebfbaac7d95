"""The best order of given chunks on given stages, proven by a constraint solver (CP-SAT of OR-Tools).

Needs the extra ``exact``. Seconds become whole ticks, rounded down, so that the solver's bound is one for the real
costs too; the order it finds is priced at the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from vppc.analysis.breakdown import clock_start
from vppc.analysis.order_timeline import timeline
from vppc.costs.model import OpCosts
from vppc.errors import InputError
from vppc.ir.dag import Dag
from vppc.ir.schedule import Order, Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_TICKS = 1_000_000
"""Ticks of the longest schedule that is considered."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The best order that was found, its makespan, and what no order is quicker than, in seconds."""

    order: Order
    makespan: float
    bound: float


def best_order(
    schedule: Schedule, costs: OpCosts, longest: float, time_limit: float = 30.0, gates: Sequence[int] = ()
) -> Exact:
    """The order with the least makespan; ``longest`` is the makespan of some order, in seconds.

    ``schedule`` has chunks and stages. Receives are posted in time and buffers do not run out, as in
    :mod:`vppc.analysis.order_timeline`. ``gates`` are those of :mod:`vppc.passes.admission`: the chunk that must have
    left before a chunk enters, or -1. Stops after ``time_limit`` seconds with what it has; the bound is then lower.
    Raises InputError without OR-Tools, and where the solver finds nothing in time.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError(
            "the exact optimum needs OR-Tools, which is not installed",
            place="--exact",
            remedy="pip install 'vppc[exact]'",
        ) from None
    tick = longest / _TICKS if longest else 1.0
    horizon = _TICKS + 1
    stages, ranks = len(schedule.stages), schedule.stage_ranks
    dag = Dag.of(schedule)
    origin = clock_start(schedule)
    model = cp_model.CpModel()
    length = [floor(seconds / tick) for seconds in costs.seconds]
    start = [model.new_int_var(0, horizon, "") for _ in length]
    finish = model.new_int_var(0, horizon, "")
    on_rank: list[list[cp_model.IntervalVar]] = [[] for _ in range(schedule.pp)]
    on_channel: dict[tuple[int, int], list[cp_model.IntervalVar]] = {}
    for op, (begin, ticks) in enumerate(zip(start, length, strict=True)):
        chunk, stage = divmod(op, stages)
        on_rank[ranks[stage]].append(model.new_fixed_size_interval_var(begin, ticks, ""))
        model.add(finish >= begin + ticks)
        if not stage:
            model.add(begin >= floor((schedule.chunk_arrivals[chunk] - origin) / tick))
        for before in dag.predecessors(op):
            crosses = before == op - 1 and stage and ranks[stage - 1] != ranks[stage]
            if not crosses:
                model.add(begin >= start[before] + length[before])
                continue
            ticks_over = floor(costs.transfer[chunk] / tick)
            leaves = model.new_int_var(0, horizon, "")
            model.add(leaves >= start[before] + length[before])
            model.add(begin >= leaves + ticks_over)
            pair = ranks[stage - 1], ranks[stage]
            on_channel.setdefault(pair, []).append(model.new_fixed_size_interval_var(leaves, ticks_over, ""))
    for chunk, gate in enumerate(gates):
        if gate >= 0:
            gone = gate * stages + schedule.rank_stages[0][-1]
            model.add(start[chunk * stages] >= start[gone] + length[gone])
    for intervals in (*on_rank, *on_channel.values()):
        model.add_no_overlap(intervals)
    model.minimize(finish)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = _solve(solver, model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InputError(f"no order was found in {time_limit:g} s", place="--exact", remedy="allow more seconds")
    starts = [solver.value(each) for each in start]
    by_start = sorted(range(len(starts)), key=lambda op: (starts[op], op))
    order = Order(tuple(tuple(op for op in by_start if ranks[op % stages] == rank) for rank in range(schedule.pp)))
    return Exact(order, timeline(schedule, costs, order).finish - origin, solver.best_objective_bound * tick)


def _solve(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve on another thread, so that a signal ends the program and not only the search.

    The solver's own handler would take Ctrl-C for "that is enough", and leave the process without one afterwards.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        solving = pool.submit(solver.solve, model)
        try:
            return solving.result()
        except BaseException:
            solver.stop_search()
            raise
