"""Small leaps from a good point: a chunk more or less, or layers elsewhere; kept where they help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, pairwise
from random import Random
from typing import TypeAlias

from vppc.tuning.case import Admit, Case, Point
from vppc.tuning.descent import Cooling, descend, nearest

_SETTLE = Cooling(60, (0.005, 0.0005), (0.05, 0.003), relist=20)

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
    leaps = cycle((*recuts, swap_layers, swap_layers) if layers else recuts)
    while visits > 0:
        visits -= _SETTLE.steps * len(case.cutting) * len(case.ranks)
        there = next(leaps)(case, point, random)
        if there is None:
            continue
        onto, sizes, counts = there
        start = onto.start(sizes, counts, admits)
        if onto is case:
            start = min(start, case.at(sizes, counts, point.order), key=lambda each: each.value)
        moved = descend(onto, start, admits[:1], _SETTLE)
        if moved.value < point.value:
            case, point = onto, moved
    return case, point


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
