"""The search on one placement: how many chunks, how long, on which layers, in which order.

1. Cut prompts into more and more chunks, and let each cutting descend a little, layers included.
2. Look closer at the best, and between them and their neighbours, with other bounds on chunks in flight.
3. Make the layers of the best few whole, move single ones, make the order better, settle the sizes again; round them
   to the alignment and move single units.

Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from vppc.ir.partition import Ranges
from vppc.ir.placement import hops
from vppc.tuning.case import Admit, Case, Point
from vppc.tuning.descent import Cooling, Stages, descend
from vppc.tuning.polish import align, move_layers, whole_layers
from vppc.tuning.prices import Prices
from vppc.tuning.wander import wander
from vppc.tuning.workload import Cutting, Workload

_GLANCE = Cooling(60, (0.03, 0.01), (0.08, 0.02), relist=6)
_LOOK = Cooling(140, (0.02, 0.002), (0.05, 0.005))
_FINISH = Cooling(150, (0.01, 0.0005), (0.02, 0.001))
_WANDER = 60_000
"""Visits of operations, for each rank, spent on leaps from the best point."""

_IN_FLIGHT = (0.8, 1.0, 0.6)
"""Chunks in flight, in parts of what a chunk's way through all stages takes; the first is tried first."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best point of a placement, whole in layers and sizes."""

    case: Case
    point: Point

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(round(size) for size in self.point.sizes)

    @property
    def ranges(self) -> Ranges:
        """The layers of every stage."""
        return tuple(pairwise(accumulate(map(round, self.point.counts), initial=0)))


@dataclass(frozen=True, slots=True)
class _Tried:
    case: Case
    point: Point
    admits: tuple[Admit, ...]


class Search:
    """The search on one placement. ``effort`` 1.0 is what fits into seconds; ``ranges`` fixes the layers."""

    def __init__(
        self,
        prices: Prices,
        workload: Workload,
        placement: str,
        pp: int,
        vp: int,
        *,
        share: float = 0.0,
        ranges: Ranges | None = None,
        max_in_flight: int | None = None,
        effort: float = 1.0,
    ) -> None:
        self.prices, self.workload, self.effort = prices, workload, effort
        self.shape = Case(prices, workload.cut_into([1] * len(workload.runs)), placement, pp, vp, share)
        self.counts = tuple(float(last - first) for first, last in ranges) if ranges else self._equal()
        self.groups: Stages = () if ranges else self.shape.rank_stages
        self.max_in_flight = max_in_flight

    def _equal(self) -> tuple[float, ...]:
        """Equal stages, but that ranks have whole layers; the first ranks more, which wait least at both ends."""
        shape = self.shape
        base, more = divmod(self.prices.layers, shape.pp)
        return tuple((base + (rank < more)) / shape.vp for rank in shape.ranks)

    def promise(self) -> float:
        """What a short search comes to, in seconds: to choose the searches worth running."""
        return min(map(_value, self._glances))

    @cached_property
    def _glances(self) -> list[_Tried]:
        return [self._glance(cutting) for cutting in self._ladder()]

    def run(self) -> Found:
        """The best point found."""
        glances = self._glances
        looks = [self._look(cutting, _IN_FLIGHT[0]) for cutting in self._around(glances)]
        looks.sort(key=_value)
        for tried in looks[:2]:
            looks += [self._look(tried.case.cutting, factor) for factor in _IN_FLIGHT[1:]]
        looks.sort(key=_value)
        best = min([self._finish(tried) for tried in looks[:3]], key=_value)
        visits = int(_WANDER * self.shape.pp * self.effort)
        case, point = wander(best.case, best.point, best.admits, visits, layers=bool(self.groups))
        point = descend(case, point, best.admits, _FINISH)
        point = case.resequenced(point, self.max_in_flight or len(case.cutting), 2)
        return Found(case, align(case, point, 1500))

    def _ladder(self) -> list[Cutting]:
        """Cuttings into more and more chunks: from the fewest, as many more as fill and drain could make use of."""
        workload = self.workload
        fewest = workload.cut_into([1] * len(workload.runs))
        useful = 2 * min(len(self.shape.ranks), 2 * self.shape.pp)
        tokens = sum(run.tokens for run in workload.runs)
        shortest = tokens / (len(fewest) + useful * len(fewest.movable))
        steps = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
        return _distinct(workload.cut(1.0 / ((1.0 - part) / workload.limits.most + part / shortest)) for part in steps)

    def _around(self, glances: Sequence[_Tried]) -> list[Cutting]:
        """The best cutting, the second best, and those half way from the best to its neighbours on the ladder."""
        best = min(range(len(glances)), key=lambda i: glances[i].point.value)
        cuttings = [tried.case.cutting for tried in sorted(glances, key=_value)[:2]]
        here = glances[best].case.cutting.pieces
        for beside in (best - 1, best + 1):
            if 0 <= beside < len(glances):
                there = glances[beside].case.cutting.pieces
                half = [round((a + b) / 2) for a, b in zip(here, there, strict=True)]
                cuttings.append(self.workload.cut_into(half))
        return _distinct(cuttings)

    def _admits(self, factors: Sequence[float]) -> tuple[Admit, ...]:
        needed = hops(self.shape.ranks)[-1] + 1
        bounds = [max(1, round(needed * factor)) for factor in factors]
        if self.max_in_flight is not None:
            bounds = [min(bound, self.max_in_flight) for bound in bounds]
        orders = (False, True) if len(self.workload.runs) > 1 else (False,)
        return tuple(Admit(bound, first) for bound in dict.fromkeys(bounds) for first in orders)

    def _start(self, cutting: Cutting, admits: tuple[Admit, ...]) -> _Tried:
        """Equal chunks on equal stages, but that every rank has whole layers."""
        case = replace(self.shape, cutting=cutting)
        sizes = [float(self.workload.runs[run].tokens) for run in cutting.run_of]
        for first, last in cutting.movable:
            sizes[first:last] = [sizes[first] / (last - first)] * (last - first)
        quote = case.quote(sizes, self.counts)
        order = case.listed(quote, admits[0])
        value = case.wired(order).value(quote.seconds, quote.transfers)
        return _Tried(case, Point(tuple(sizes), self.counts, order, value), admits)

    def _glance(self, cutting: Cutting) -> _Tried:
        admits = self._admits(_IN_FLIGHT[:1])
        start = self._start(cutting, admits)
        return replace(start, point=descend(start.case, start.point, admits, _GLANCE, self.groups))

    def _look(self, cutting: Cutting, factor: float) -> _Tried:
        admits = self._admits([factor])
        start = self._start(cutting, admits)
        return replace(start, point=descend(start.case, start.point, admits, _LOOK, self.groups))

    def _finish(self, tried: _Tried) -> _Tried:
        case, point, admits = tried.case, tried.point, tried.admits
        ahead = self.max_in_flight or len(case.cutting)
        if self.groups:
            point = whole_layers(case, point, admits)
            point = move_layers(case, point, admits, 10)
        return replace(tried, point=case.resequenced(point, ahead, 3))


def _value(tried: _Tried) -> float:
    return tried.point.value


def _distinct(cuttings: Iterable[Cutting]) -> list[Cutting]:
    return list({cutting.pieces: cutting for cutting in cuttings}.values())
