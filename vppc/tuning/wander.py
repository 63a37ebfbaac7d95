"""Small leaps from a good point: a chunk more or less, or layers elsewhere.

A leap is taken where it helps, and in the beginning also where it loses little, which leads out of what is best only
among its neighbours. (Threshold accepting: Dueck and Scheuer, Threshold accepting, 1990.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, pairwise
from random import Random
from typing import TypeAlias

from vppc.tuning.case import Admit, Case, Point
from vppc.tuning.descent import Cooling, descend, nearest

_SETTLE = Cooling(60, (0.005, 0.0005), (0.05, 0.003), relist=20)

_LENIENCE = 0.003
"""How far behind the best a leap may land, in parts of it: at first, then less and less."""

Sizes: TypeAlias = list[float]
Leap: TypeAlias = Callable[[Case, Point, Random], tuple[Case, Sizes, tuple[float, ...]] | None]
"""From a point to another case, sizes and layers; None where there is no such neighbour."""


def wander(
    case: Case, point: Point, admits: Sequence[Admit], visits: int, *, layers: bool, seed: int = 0
) -> tuple[Case, Point]:
    """The best of leap after leap, until operations have been visited so many times; ``layers`` may move.

    Deterministic for a ``seed``.
    """
    random = Random(seed)
    recuts: tuple[Leap, ...] = (one_less, one_more, drop_smallest)
    relayers: tuple[Leap, ...] = (shift_layers, swap_layers, shift_layers) if case.vp > 1 else (swap_layers,)
    leaps = cycle((*recuts, *relayers) if layers else recuts)
    best_case, best = case, point
    left = visits
    while left > 0:
        left -= _SETTLE.steps * len(case.cutting) * len(case.ranks)
        there = next(leaps)(case, point, random)
        if there is None:
            continue
        onto, sizes, counts = there
        start = onto.start(sizes, counts, admits)
        if onto is case:
            start = min(start, case.at(sizes, counts, point.order), key=lambda each: each.value)
        moved = descend(onto, start, admits[:1], _SETTLE)
        if moved.value < best.value:
            best_case, best = onto, moved
        if moved.value < point.value or moved.value < best.value * (1.0 + _LENIENCE * left / visits):
            case, point = onto, moved
    return best_case, best


def one_more(case: Case, point: Point, random: Random) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """A prompt in one chunk more, of sizes that rise and fall as before."""
    return _recut(case, point, random, 1)


def one_less(case: Case, point: Point, random: Random) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """A prompt in one chunk less, of sizes that rise and fall as before."""
    return _recut(case, point, random, -1)


def drop_smallest(case: Case, point: Point, random: Random) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """The smallest chunk of a prompt gone, the others a little longer."""
    found = _runs(case)
    if not found:
        return None
    run, first, last = random.choice(found)
    sizes = list(point.sizes[first:last])
    del sizes[min(range(len(sizes)), key=sizes.__getitem__)]
    return _with_run(case, point, run, sizes)


def shift_layers(case: Case, point: Point, random: Random) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """One layer between two stages of a rank, and one between two of another, or the same: their work stays."""
    counts = list(point.counts)
    for _ in range(2):
        stages = random.choice(case.rank_stages)
        thick = [stage for stage in stages if counts[stage] > 1]
        if not thick or len(stages) == 1:
            return None
        giver = random.choice(thick)
        counts[giver] -= 1
        counts[random.choice([stage for stage in stages if stage != giver])] += 1
    return (case, list(point.sizes), tuple(counts)) if case.allows(counts) else None


def swap_layers(case: Case, point: Point, random: Random) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """One layer from a stage to another, and one from another still to a fourth."""
    counts = list(point.counts)
    for _ in range(2):
        thick = [stage for stage, count in enumerate(counts) if count > 1]
        if not thick:
            return None
        counts[random.choice(thick)] -= 1
        counts[random.randrange(len(counts))] += 1
    return (case, list(point.sizes), tuple(counts)) if case.allows(counts) else None


def _runs(case: Case) -> list[tuple[int, int, int]]:
    """The runs of several chunks: (run, first chunk, after the last)."""
    return [(case.cutting.run_of[first], first, last) for first, last in case.cutting.movable]


def _recut(case: Case, point: Point, random: Random, more: int) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    found = _runs(case)
    if not found:
        return None
    run, first, last = random.choice(found)
    sizes = point.sizes[first:last]
    cuts = list(accumulate(sizes, initial=0.0))
    count = len(sizes) + more

    def at(place: float) -> float:
        whole = min(int(place), len(sizes) - 1)
        return cuts[whole] + (place - whole) * sizes[whole]

    anew = [at(k * len(sizes) / count) for k in range(count + 1)]
    return _with_run(case, point, run, [after - before for before, after in pairwise(anew)])


def _with_run(case: Case, point: Point, run: int, sizes: Sizes) -> tuple[Case, Sizes, tuple[float, ...]] | None:
    """The case with other chunks of one run, as far as limits allow so many."""
    workload, pieces = case.cutting.workload, list(case.cutting.pieces)
    first = case.cutting.firsts[run]
    last = first + pieces[run]
    pieces[run] = len(sizes)
    cutting = workload.cut_into(pieces)
    if cutting.pieces[run] != len(sizes):
        return None
    total = workload.runs[run].tokens
    fitted = nearest(sizes, workload.limits.least, workload.limits.most, total) if len(sizes) > 1 else [float(total)]
    anew = [*point.sizes[:first], *fitted, *point.sizes[last:]]
    return replace(case, cutting=cutting), anew, point.counts
