"""From a task to tuned schedules: the best of each placement, compiled, proven and simulated like any other.

Searches only ever see operations on a clock. What they find goes through the ordinary passes, so that what is
reported is the simulated run of programs, not of the search's model of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

from vppc.analysis.memory import Memory, RankLoad, loads_of
from vppc.analysis.report import Report, predict
from vppc.compiler import run_passes
from vppc.costs.devices import GIB
from vppc.costs.model import CostModel, OpCosts, layer_seconds
from vppc.errors import CheckFailed, Finding, InputError
from vppc.ir.partition import Ranges
from vppc.ir.placement import DEFAULT_VP, stage_ranks
from vppc.ir.schedule import Json, Model, Part, Request, Schedule
from vppc.passes.admission import Admission
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.layout import MOST_OPERATIONS, Layout
from vppc.passes.planned import PlannedChunks, PlannedOrder
from vppc.sums import plain_sum
from vppc.tuning.bounds import best_possible
from vppc.tuning.case import Admit, Case
from vppc.tuning.engines import PLAN, engine_settings
from vppc.tuning.exact import best_order
from vppc.tuning.prices import Prices
from vppc.tuning.robust import Robustness, robustness, worlds
from vppc.tuning.room import Room
from vppc.tuning.search import Found, Search
from vppc.tuning.workload import Limits, Workload

MOST_STAGES = 8
"""Stages a rank that a search goes up to by itself."""

KEPT = 3
"""Points of each search among which a robust choice is made."""

STRATEGY = "tuned"

_NEAR = 1.08
"""Searches that promise no more than the best of all, times this, are run in full..."""

_NEXT = 1.01
"""... and the second of a placement when it promises no more than the first, times this."""

_FULL = 2
"""Searches of a placement that are run in full, at most."""

_QUICK = 0.5
"""Efforts below that are for quick looks only."""

_SHORTER = 0.75
"""By how much chunks become shorter to make room for layers..."""

_SHORTENINGS = 4
"""... and how often, at most."""

_TIGHTENINGS = 4
"""Searches of one placement under a memory limit, at most..."""

_FEW_BUFFERS = (3, 4)
"""... and the buffers a rank with which it is tried beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be tuned. ``share`` of the goal is the mean TTFT, the rest the makespan.

    None for ``placement`` or ``vp`` leaves it to the search; ``ranges`` fixes the layers of the stages, which needs
    both. Prompts that together have no more than ``token_budget`` tokens may share a chunk; None leaves it to the
    search. ``max_buffers`` is per rank, and with ``memory`` every rank has to fit. ``effort`` scales the search.
    With ``robust`` the last choice is by mean and spread of the makespan over worlds with other costs.
    """

    requests: tuple[Request, ...]
    cost: CostModel
    model: Model
    pp: int
    limits: Limits = field(default_factory=Limits)
    share: float = 0.0
    placement: str | None = None
    vp: int | None = None
    ranges: Ranges | None = None
    max_in_flight: int | None = None
    max_buffers: int | None = None
    token_budget: int | None = None
    memory: Memory | None = None
    effort: float = 1.0
    robust: bool = False
    extra: Json | None = None

    def __post_init__(self) -> None:
        if not self.requests:
            raise InputError("there is nothing to prefill", remedy="give at least one prompt")
        if self.ranges is not None and (self.placement is None):
            raise InputError(
                "layer ranges are of one placement", place="--layer-ranges", remedy="name it with --placement and --vp"
            )
        if self.token_budget is not None and self.token_budget > self.limits.most:
            raise InputError(
                f"{self.token_budget} tokens are more than a chunk may have",
                place="--token-budget",
                remedy=f"give {self.limits.most} at most, or a larger --max-chunk",
            )
        if (run := Workload.of(self.requests, self.limits).uncut) is not None:
            raise InputError(
                f"no chunks of {self.limits.least} to {self.limits.most} tokens add up to a prompt of {run.tokens}",
                place="--min-chunk",
                remedy="give a smaller --min-chunk, or a larger --max-chunk",
            )
        beside = self.cost.launch + sum(each.fixed + each.per_token for each in (self.cost.embed, self.cost.head))
        if not layer_seconds(self.cost, 0, self.cost.layer_count, (Part(0, 0, 1),)) + beside:
            raise InputError(
                "by these costs a prompt's first chunk takes no time, so there is nothing to tune",
                place="--cost",
                remedy="vppc calibrate or vppc model writes a cost file",
            )

    def workloads(self, limits: Limits) -> list[Workload]:
        """The ways to put short prompts together: under the budget, or under none, a fourth of a chunk and a chunk."""
        budgets = (0, limits.most // 4, limits.most) if self.token_budget is None else (self.token_budget,)
        ways = (Workload.of(self.requests, limits, min(budget, limits.most)) for budget in budgets)
        return list({way.runs: way for way in ways}.values())


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best schedule found on a placement; times in seconds.

    ``bound`` is what no chunking on its stages is quicker than, ``value`` what was to be made small. ``exact`` is the
    solver's bound of any order of its chunks, when it was asked for.
    """

    found: Found
    schedule: Schedule
    report: Report
    bound: float
    value: float
    robustness: Robustness
    exact: float | None = None

    @property
    def placement(self) -> str:
        return self.found.case.placement

    @property
    def vp(self) -> int:
        return self.schedule.vp

    @property
    def gap(self) -> float:
        """How far ahead any other chunking and order on these stages could be, as a part of this makespan."""
        return max(0.0, 1.0 - self.bound / self.report.makespan) if self.report.makespan else 0.0

    @property
    def ranges(self) -> Ranges:
        return tuple(stage.layers for stage in self.schedule.stages)

    def json(self, plan: str = PLAN) -> dict[str, Any]:
        """What was found, and its price; ``plan`` is the file that it is in."""
        return {
            "placement": self.placement,
            "vp": self.vp,
            "chunks": [chunk.tokens for chunk in self.schedule.chunks],
            "layers": [list(layers) for layers in self.ranges],
            "bound_of_any_chunking": self.bound,
            "gap_to_any_chunking": self.gap,
            "exact_bound": self.exact,
            "robustness": self.robustness.json(),
            "engines": [asdict(setting) for setting in engine_settings(self.schedule, plan)],
            **self.report.json(),
        }


def placements(task: Task) -> list[tuple[str, int]]:
    """The (placement, vp) pairs that a task leaves open. Raises InputError where there is none."""
    layers = task.cost.layer_count
    if task.placement is not None:
        vps = [task.vp] if task.vp is not None else _vps(task.placement)
        pairs = [(task.placement, vp) for vp in vps]
        for placement, vp in pairs:
            stage_ranks(placement, task.pp, vp)  # refuses what does not go together
    elif task.pp == 1:
        pairs = [("straight", 1)]
    else:
        names = ("straight", "v", "zigzag", "loop")
        pairs = [(name, vp) for name in names for vp in _vps(name) if task.vp in (None, vp)]
    fitting = [(placement, vp) for placement, vp in pairs if task.pp * vp <= layers]
    if not fitting:
        raise InputError(
            f"{layers} layers on {task.pp} ranks: no placement that may be used has so few stages",
            place="--pp",
            remedy="use fewer ranks, or fewer stages a rank (--vp)",
        )
    chunks = min(workload.fewest_chunks for workload in task.workloads(task.limits))
    few = [(placement, vp) for placement, vp in fitting if chunks * task.pp * vp <= MOST_OPERATIONS]
    if not few:
        most = MOST_OPERATIONS // (task.pp * min(vp for _, vp in fitting))
        raise InputError(
            f"the prompts make {chunks:,} chunks at least, and {task.pp} ranks run {most:,} at most",
            place="--max-chunk",
            remedy="allow larger chunks",
        )
    return few


def _vps(placement: str) -> list[int]:
    if placement in ("straight", "v"):
        return [DEFAULT_VP[placement]]
    return [vp for vp in range(2, MOST_STAGES + 1) if placement == "loop" or vp > 2]


def steps(task: Task) -> int:
    """How often :func:`tune` calls ``done``: after the short searches of every placement and vp, and the full ones of
    every placement."""
    pairs = placements(task)
    return len(pairs) + len({name for name, _ in pairs})


def tune(task: Task, done: Callable[[str], object] = lambda best: None) -> tuple[Tuned, ...]:
    """The best schedule found of each placement, the best first.

    ``done`` is called after each of :func:`steps`, with the best so far in words; from the first, short search on.

    Of a placement with several vp, the two that a short search likes best are searched in full; more quickly where it
    likes another placement much better. With ``task.memory`` placements that do not fit are left out, and their steps;
    so are those that cannot be run with ``task.max_buffers``. Raises CheckFailed when none fits, and InputError when
    none can be run.
    """
    prices = Prices.of(task.cost)
    contest: dict[str, list[Search]] = {}
    for placement, vp in placements(task):
        for search in _searches(task, prices, placement, vp):
            search.promise()  # the short search, which it remembers
            contest.setdefault(placement, []).append(search)
        done(_so_far(search.promise() for searches in contest.values() for search in searches))
    results: list[Tuned] = []
    refused: list[InputError] = []
    for chosen in _chosen(contest.values()):
        found: list[Tuned] = []
        for search, quick in chosen:
            try:
                found += _fitting(task, prices, search, quick)
            except InputError as error:  # no way to run this order with so few buffers
                refused.append(error)
        if found:
            results.append(min(found, key=lambda tuned: tuned.value))
        done(_so_far(tuned.value for tuned in results))
    if not results:
        raise refused[0] if refused else CheckFailed((_too_little(task),))
    return tuple(sorted(results, key=lambda tuned: tuned.value))


def _so_far(values: Iterable[float]) -> str:
    best = min(values, default=inf)
    return f"best {best:.4g} s" if best < inf else ""


def _chosen(contest: Iterable[list[Search]]) -> Iterator[list[tuple[Search, bool]]]:
    """Of each placement the two searches that promise most, and whether a quick look is enough."""
    ranked = [sorted(searches, key=lambda search: search.promise()) for searches in contest]
    best = min((first.promise() for first, *_ in ranked), default=0.0)
    for first, *others in ranked:
        yield [
            (first, first.promise() > _NEAR * best),
            *((second, second.promise() > _NEXT * first.promise()) for second in others[: _FULL - 1]),
        ]


def _searches(task: Task, prices: Prices, placement: str, vp: int) -> Iterator[Search]:
    """The searches on a placement, for each way to put short prompts together; none where nothing fits.

    Where memory leaves layers little choice, searches with shorter chunks follow, which leave them more.
    """
    ranks = stage_ranks(placement, task.pp, vp)
    for workload in task.workloads(task.limits):
        room = Room.at_best(task.memory, workload, ranks) if task.memory is not None else None
        search = _search(task, prices, workload, placement, vp, room)
        for _ in range(1 + _SHORTENINGS):
            if search is None:
                break
            yield search
            limits = search.workload.limits
            most = round(_SHORTER * limits.most)
            if most < limits.least or task.ranges is not None or not search.cramped:
                break
            shorter = replace(search.workload, limits=replace(limits, max_chunk=most))
            search = _search(task, prices, shorter, placement, vp, room)


def _search(
    task: Task, prices: Prices, workload: Workload, placement: str, vp: int, room: Room | None
) -> Search | None:
    """A search with chunks that are short enough for the room, or None where none is."""
    if room is not None:
        most = room.longest_chunk(workload.limits, stage_ranks(placement, task.pp, vp), task.ranges)
        if not most or any(run.tokens > most for run in workload.runs if len(run.requests) > 1):
            return None
        workload = replace(workload, limits=replace(workload.limits, max_chunk=most))
        room = room.shorter(most)
    if workload.uncut is not None:
        return None
    return Search(
        prices,
        workload,
        placement,
        task.pp,
        vp,
        share=task.share,
        ranges=task.ranges,
        max_in_flight=task.max_in_flight,
        room=room,
        effort=task.effort,
    )


def _fitting(task: Task, prices: Prices, search: Search, quick: bool) -> list[Tuned]:
    """What a search finds, and fits: searched again, with room for what the plan needs, as often as that may help.

    Every buffer makes chunks shorter. So where memory leaves layers little choice, plans with fewer buffers than are
    asked for are tried against it, which may have to wait for one.
    """
    shape: Case = search.shape
    quick = quick or task.effort < _QUICK
    again: Search | None = search
    for _ in range(_TIGHTENINGS):
        if again is None:
            break
        tuned = [finished(task, prices, found) for found in again.run(KEPT if task.robust else 1, quick=quick)]
        room = again.shape.room
        if room is None:
            return tuned
        fit = [each for each in tuned if _fits(room.memory, loads_of(each.schedule))]
        if fit and again is search:
            return fit
        if fit:
            return [*fit, *_with_few_buffers(task, prices, search)]
        loads = loads_of(tuned[0].schedule)
        again = _search(task, prices, again.workload, shape.placement, shape.vp, room.beside(loads))
    return list(_with_few_buffers(task, prices, search))


def _with_few_buffers(task: Task, prices: Prices, search: Search) -> Iterator[Tuned]:
    """What quick searches find with room for a few buffers, and fits with so many."""
    shape: Case = search.shape
    assert shape.room is not None
    for most in _FEW_BUFFERS if search.cramped else ():
        room = shape.room.beside([replace(load, buffers=most) for load in shape.room.loads])
        few = _search(task, prices, search.workload, shape.placement, shape.vp, room)
        if few is None:
            return
        limit = most if task.max_buffers is None else min(most, task.max_buffers)
        [found] = few.run(quick=True)
        try:
            tuned = finished(replace(task, max_buffers=limit), prices, found)
        except InputError:  # no way to run this order with so few
            continue
        if _fits(room.memory, loads_of(tuned.schedule)):
            yield tuned


def _fits(memory: Memory, loads: Sequence[RankLoad]) -> bool:
    return all(memory.of(load).free >= 0 for load in loads)


def _too_little(task: Task) -> Finding:
    """That no placement fits, and what would."""
    assert task.memory is not None
    limit = task.memory.device.memory
    needs = []
    for placement, vp in placements(task):
        ranks = stage_ranks(placement, task.pp, vp)
        for workload in task.workloads(task.limits):
            room = Room.at_best(task.memory, workload, ranks)
            needs.append(room.least_memory(replace(task.limits, min_chunk=task.limits.most), ranks, task.ranges))
    problem = f"no chunks and layers were found with which {task.pp} ranks fit into {limit / GIB:.2f} GiB a device"
    return Finding("M1", "memory", problem, "; or ".join(_would_fit(task, task.memory, min(needs))))


def _would_fit(task: Task, memory: Memory, least: int) -> Iterator[str]:
    if least > memory.device.memory:
        yield f"a plan with two buffers and chunks of {task.limits.most} tokens needs {least / GIB:.2f} GiB (--memory)"
    else:
        yield "fewer chunks in flight (--max-in-flight), or shorter ones (--max-chunk)"
    shortest = replace(task.limits, max_chunk=task.limits.least)
    workload = task.workloads(task.limits)[0]
    for pp in range(task.pp + 1, task.cost.layer_count + 1):
        ranks = stage_ranks("straight", pp, 1)
        if Room.at_best(memory, workload, ranks).shorter(shortest.most).split(ranks):
            yield f"{pp} ranks (--pp)"
            return


def finished(task: Task, prices: Prices, found: Found) -> Tuned:
    """What was found as a schedule: compiled, proven, priced and bounded."""
    case = found.case
    steps = (
        PlannedChunks(case.cutting.chunks(found.sizes)),
        Layout(case.placement, case.vp, None, found.ranges),
        PlannedOrder(found.point.order),
        InsertTransfers(task.cost),
        AllocateBuffers(task.cost, task.max_buffers),
    )
    start = Schedule(STRATEGY, task.model, task.pp, 1, requests=task.requests, extra=task.extra or {})
    schedule = run_passes(start, steps, task.cost)
    report = predict(schedule, task.cost)
    workload = replace(case.cutting.workload, limits=task.limits)  # a search within memory may have had shorter chunks
    bound = best_possible(prices, workload, case.ranks, found.ranges)
    schedule = replace(schedule, extra={**schedule.extra, "prediction": _prediction(report, bound)})
    off = robustness(schedule, task.cost, worlds(task.pp))
    return Tuned(found, schedule, report, bound, off.score if task.robust else goal(task, report), off)


def proven(task: Task, tuned: Tuned, seconds: float) -> Tuned:
    """The schedule with the best order of its chunks that a solver finds in so many seconds, and the solver's bound.

    The solver knows of chunks in flight, but of no buffers, no memory, and no goal but the makespan: where its order
    does not fit or is no better with them, that of the search stays.
    """
    costs, gates = OpCosts.of(tuned.schedule, task.cost), Admission(task.max_in_flight).gates(tuned.schedule)
    exact = best_order(tuned.schedule, costs, tuned.report.makespan, seconds, gates)
    if exact.makespan < tuned.report.makespan * (1.0 - 1e-9):
        better = replace(tuned.found, point=replace(tuned.found.point, order=exact.order))
        with suppress(InputError):  # no way to run this order with so few buffers
            ordered = finished(task, Prices.of(task.cost), better)
            if task.memory is None or _fits(task.memory, loads_of(ordered.schedule)):
                tuned = min(tuned, ordered, key=lambda each: each.value)
    return replace(tuned, exact=exact.bound)


def goal(task: Task, report: Report) -> float:
    """What is to be made short, of the simulated run."""
    return (1.0 - task.share) * report.makespan + task.share * mean_ttft(report)


def mean_ttft(report: Report) -> float:
    """Seconds, of the requests that are sampled."""
    ttft = [seconds for seconds in report.ttft if seconds is not None]
    return plain_sum(ttft) / len(ttft)


def _prediction(report: Report, bound: float) -> dict[str, float]:
    return {
        "makespan": report.makespan,
        "efficiency": report.efficiency,
        "lower_bound": report.bound.seconds,
        "bound_of_any_chunking": bound,
    }


def advice(task: Task, results: Sequence[Tuned]) -> Iterator[str]:
    """When not to do this: plain sentences, none if all is well."""
    best = results[0]
    makespan, ttft = _alone(task)
    if task.pp > 1 and best.report.makespan > 0.95 * makespan and mean_ttft(best.report) > 0.95 * ttft:
        yield (
            f"Do not use pipeline parallelism for this: one rank alone with all layers would need {makespan:.4g} s, "
            f"{task.pp} ranks need {best.report.makespan:.4g} s."
        )
    straight = next((tuned for tuned in results if tuned.placement == "straight"), None)
    if straight is not None and straight is not best and straight.value <= 1.01 * best.value:
        yield (
            "One stage a rank (straight) is within 1% of the best here: more stages a rank are not worth their "
            "transfers and buffers."
        )
    if straight is best and task.pp > 1 and len(results) > 1:
        yield "More stages a rank do not pay here: use the straight placement."


def _alone(task: Task) -> tuple[float, float]:
    """The makespan and the mean TTFT of all prompts on one rank, in the largest chunks, in seconds; infinite where it
    has no memory for all layers."""
    workload = Workload.of(task.requests, task.limits)
    if task.memory is not None:
        most = Room.at_best(task.memory, workload, (0,)).longest_chunk(task.limits, (0,), None)
        if not most:
            return inf, inf
        workload = replace(workload, limits=replace(task.limits, max_chunk=most))
    cutting = workload.cut_into([1] * len(workload.runs))
    sizes: list[float] = []
    for run, pieces in zip(workload.runs, cutting.pieces, strict=True):
        left = run.tokens
        for _ in range(pieces):
            sizes.append(float(min(left, workload.limits.most)))
            left -= round(sizes[-1])
    case = Case(Prices.of(task.cost), cutting, "straight", 1, 1)
    point = case.start(sizes, [float(case.prices.layers)], [Admit(len(cutting))])
    return point.value, replace(case, share=1.0).at(sizes, point.counts, point.order).value
