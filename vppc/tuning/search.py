"""The search on one placement: how many chunks, how long, on which layers, in which order.

1. Cut prompts into more and more chunks, and let each cutting descend a little, layers included.
2. Look closer at the best, and between them and their neighbours, with other bounds on chunks in flight: from layers
   that can be divided, which are made whole after, and from whole layers as even as they can be. With many stages a
   rank also from stages that are thin where prompts enter and leave: no descent leads there from equal ones, or back.
3. From each of these points move single layers and make the order better, since what was behind before may be ahead
   after. From the best two leap on, settle the sizes again, round them to the alignment and move single units.

Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, product

from vppc.ir.partition import Ranges
from vppc.ir.placement import hops
from vppc.sums import plain_sum
from vppc.tuning.case import Admit, Case, Point
from vppc.tuning.descent import Cooling, Stages, descend, nearest
from vppc.tuning.polish import align, move_layers, whole_layers
from vppc.tuning.prices import Prices
from vppc.tuning.room import Room
from vppc.tuning.wander import wander
from vppc.tuning.workload import Cutting, Workload

_GLANCE = Cooling(60, (0.01, 0.002), (0.1, 0.01), relist=6)
_LOOKS = (
    Cooling(140, (0.005, 0.0005), (0.1, 0.002), resequence=False),
    Cooling(140, (0.005, 0.0005), (0.1, 0.002), relist=20),
)
_FINISH = Cooling(200, (0.003, 0.0001), (0.02, 0.0005), relist=20)
_WANDER = 25_000
"""Visits of operations that are spent on leaps from a point, times the ranks cubed."""

_WANDER_MOST = 2_000_000

_WALKS = 2
"""Points from which to leap, where they do not have many operations."""

_MANY = 500
"""Operations from which on the search looks at fewer points."""

_TOO_MANY = 10_000
"""Operations from which on there are so many chunks that fill and drain are small: only a glance is taken."""

_ALIGN = 600_000
"""Visits of operations spent on moving single units between chunks, at most."""

_SWELL = 0.8
"""How much thicker the stages in the middle are than the mean, and how much thinner those at both ends."""

_SWELLING = 3
"""Stages a rank from which on that is tried."""

_CLEARLY = 0.99
"""While the finest cutting is this much better than all others, finer ones are tried."""

_IN_FLIGHT = (0.75, 1.2, 0.6, 2.0)
"""Chunks in flight, in parts of a chunk's transfers and two more; the most promising first."""


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
    """The search on one placement. ``effort`` 1.0 is what fits into seconds; ``ranges`` fixes the layers, and ``room``
    bounds them."""

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
        room: Room | None = None,
        effort: float = 1.0,
    ) -> None:
        self.prices, self.workload, self.effort = prices, workload, effort
        cutting = workload.cut_into([1] * len(workload.runs))
        self.shape = Case(prices, cutting, placement, pp, vp, share, max_in_flight, room)
        self.ranges = ranges
        self.starts = [_counts(ranges)] if ranges else self._starts()
        self.groups: Stages = () if ranges else self.shape.rank_stages
        self.max_in_flight = max_in_flight

    def _starts(self) -> list[tuple[float, ...]]:
        """Layers to start from: divided equally within each rank, swelling, and whole ones as even as can be."""
        shape, layers = self.shape, self.prices.layers
        most = [layers] * shape.pp
        if shape.room is not None:
            most = shape.room.most_layers()
            split = shape.room.split(shape.ranks)
            if split and (sum(most) < layers or min(most) < shape.vp):  # heavy and light layers must be told apart
                return [_counts(split)]
        totals = _even(layers, most, shape.vp)
        swells = (0.0, _SWELL) if shape.vp >= _SWELLING else (0.0,)
        return [*(_divided(totals, shape, swell) for swell in swells), _evenly(totals, shape)]

    @property
    def cramped(self) -> bool:
        """Whether layers cannot lie as they like: spread as evenly as can be, they do not fit."""
        shape = self.shape
        return not shape.allows(_evenly(_even(self.prices.layers, [self.prices.layers] * shape.pp, shape.vp), shape))

    def promise(self) -> float:
        """What a short search comes to, in seconds: to choose the searches worth running."""
        return min(map(_value, self._glances))

    @cached_property
    def _glances(self) -> list[_Tried]:
        """Of every cutting the best from layers that are divided; more of them while the last is clearly the best."""
        glances = list(map(self._glance, self._ladder()))
        while _value(glances[-1]) < _CLEARLY * min(map(_value, glances[:-1]), default=0.0):
            finer = self._finer(glances[-1].case.cutting)
            if finer is None:
                break
            glances.append(self._glance(finer))
        return glances

    def _glance(self, cutting: Cutting) -> _Tried:
        starts = self.starts[:1] if self._huge else self.starts[:-1] or self.starts
        return min((self._descended(cutting, self.ways[0], _GLANCE, counts) for counts in starts), key=_value)

    def _finer(self, cutting: Cutting) -> Cutting | None:
        """A cutting into twice as many chunks, or None where that is not allowed, or takes too long to look at."""
        finer = self.workload.cut_into([pieces if pieces == 1 else 2 * pieces for pieces in cutting.pieces])
        return None if finer.pieces == cutting.pieces or self._too_many(finer) else finer

    def run(self, keep: int = 1, *, quick: bool = False) -> list[Found]:
        """The best points found, ``keep`` at most, the best first; ``quick`` looks less closely."""
        if self._huge:
            looks = sorted(self._glances, key=_value)[:keep]
            return [self._aligned(self._with_whole_layers(tried)) for tried in looks]
        finished = sorted(map(self._finish, self._looks(keep, quick)), key=_value)
        first = finished[: 1 if quick or _many(finished[0]) else _WALKS]
        visits = 0 if quick else int(min(_WANDER_MOST, _WANDER * self.shape.pp**3) * self.effort)
        finished[: len(first)] = [self._leapt(tried, visits) for tried in first]
        return [self._aligned(tried) for tried in sorted(finished, key=_value)[:keep]]

    def _leapt(self, tried: _Tried, visits: int) -> _Tried:
        """Where leaps from a point lead, settled."""
        admits = [*tried.admits, *(admit for way in self.ways for admit in way)]
        case, point = wander(tried.case, tried.point, admits, visits, layers=bool(self.groups))
        point = descend(case, point, tried.admits, _FINISH)
        return replace(tried, case=case, point=case.resequenced(point, 2))

    @property
    def _huge(self) -> bool:
        return self._too_many(self.shape.cutting)

    def _too_many(self, cutting: Cutting) -> bool:
        return len(cutting) * len(self.shape.ranks) >= _TOO_MANY

    def _looks(self, keep: int, quick: bool) -> list[_Tried]:
        """The best points of a close look, their layers whole: all of them where that takes little."""
        cuttings = self._around(self._glances)
        chosen: list[_Tried] = []
        for counts, cooling in product(self.starts, _LOOKS[:1] if quick else _LOOKS):
            looks = [self._descended(cutting, self.ways[0], cooling, counts) for cutting in cuttings]
            looks.sort(key=_value)
            for tried in looks[: 1 if _many(looks[0]) else 2]:
                looks += [self._descended(tried.case.cutting, admits, cooling, counts) for admits in self.ways[1:]]
            looks.sort(key=_value)
            chosen += map(self._with_whole_layers, looks[: max(2, keep)])
        allowed = [tried for tried in chosen if tried.case.allows(tried.point.counts)]
        best: dict[object, _Tried] = {}
        for tried in sorted(allowed or chosen, key=_value):
            best.setdefault((tried.case.cutting.pieces, tried.point.counts), tried)
        points = list(best.values())
        return points[: keep if quick else max(3, keep)] if _many(points[0]) else points

    def _aligned(self, tried: _Tried) -> Found:
        tries = min(1500, _ALIGN // (len(tried.case.cutting) * len(tried.case.ranks)))
        return Found(tried.case, align(tried.case, tried.point, tries))

    def _ladder(self) -> list[Cutting]:
        """Cuttings into more and more chunks: from the fewest, as many more as fill and drain could make use of."""
        workload = self.workload
        fewest = workload.cut_into([1] * len(workload.runs))
        useful = 2 * min(len(self.shape.ranks), 2 * self.shape.pp)
        tokens = sum(run.tokens for run in workload.runs)
        shortest = tokens / (len(fewest) + useful * max(1, len(fewest.movable)))
        steps = (0.0, 0.35) if self._huge else (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
        return _distinct(workload.cut(1.0 / ((1.0 - part) / workload.limits.most + part / shortest)) for part in steps)

    def _around(self, glances: Sequence[_Tried]) -> list[Cutting]:
        """The best two cuttings, those half way from the best to its neighbours on the ladder, and next to it."""
        best = min(range(len(glances)), key=lambda i: glances[i].point.value)
        cuttings = [tried.case.cutting for tried in sorted(glances, key=_value)[:2]]
        here = cuttings[0].pieces
        for beside in (best - 1, best + 1):
            if 0 <= beside < len(glances):
                there = glances[beside].case.cutting.pieces
                half = [round((a + b) / 2) for a, b in zip(here, there, strict=True)]
                cuttings.append(self.workload.cut_into(half))
        beside_it = ([pieces + more * (pieces > 1 or len(here) == 1) for pieces in here] for more in (-1, 1))
        cuttings += map(self.workload.cut_into, beside_it)
        return _distinct(cuttings)

    @cached_property
    def ways(self) -> list[tuple[Admit, ...]]:
        """How orders may be made: with each bound on chunks in flight, the most promising first."""
        around = hops(self.shape.ranks)[-1] + 2
        bounds = [max(1, round(around * factor)) for factor in _IN_FLIGHT]
        if self.max_in_flight is not None:
            bounds = [min(bound, self.max_in_flight) for bound in bounds]
        kinds = (False, True) if len(self.workload.runs) > 1 else (False,)
        return [tuple(Admit(bound, prompts_first) for prompts_first in kinds) for bound in dict.fromkeys(bounds)]

    def _start(self, cutting: Cutting, admits: tuple[Admit, ...], counts: tuple[float, ...]) -> _Tried:
        """Equal chunks on stages of so many layers."""
        case = replace(self.shape, cutting=cutting)
        sizes = [float(self.workload.runs[run].tokens) for run in cutting.run_of]
        for first, last in cutting.movable:
            sizes[first:last] = [sizes[first] / (last - first)] * (last - first)
        return _Tried(case, case.start(sizes, counts, admits), admits)

    def _descended(
        self, cutting: Cutting, admits: tuple[Admit, ...], cooling: Cooling, counts: tuple[float, ...]
    ) -> _Tried:
        """What such a start comes down to; layers that are not whole yet move, too."""
        start = self._start(cutting, admits, counts)
        groups = () if _whole(counts) else self.groups
        return replace(start, point=descend(start.case, start.point, admits, cooling, groups))

    def _with_whole_layers(self, tried: _Tried) -> _Tried:
        if _whole(tried.point.counts):
            return tried
        return replace(tried, point=whole_layers(tried.case, tried.point, tried.admits))

    def _finish(self, tried: _Tried) -> _Tried:
        case, point = tried.case, tried.point
        if self.groups:
            point = move_layers(case, point, tried.admits, 10)
        return replace(tried, point=case.resequenced(point, 3))


def _many(tried: _Tried) -> bool:
    return len(tried.case.cutting) * len(tried.case.ranks) >= _MANY


def _value(tried: _Tried) -> float:
    return tried.point.value


def _counts(ranges: Ranges) -> tuple[float, ...]:
    return tuple(float(last - first) for first, last in ranges)


def _even(layers: int, most: Sequence[int], least: int) -> list[int]:
    """The layers of ranks, as even as their limits allow; the first ranks get more, which wait least at both ends."""
    totals = [least] * len(most)
    for _ in range(layers - sum(totals)):
        open_ranks = [rank for rank, total in enumerate(totals) if total < most[rank]] or range(len(most))
        totals[min(open_ranks, key=totals.__getitem__)] += 1
    return totals


def _divided(totals: Sequence[int], shape: Case, swell: float) -> tuple[float, ...]:
    """Layers that are divided among the stages of each rank: equally, or more in the middle of the pipeline."""
    stages = len(shape.ranks)
    weights = [1.0 + swell * (1.0 - 2.0 * abs((2 * stage + 1) / stages - 1.0)) for stage in range(stages)]
    counts = [0.0] * stages
    for total, mine in zip(totals, shape.rank_stages, strict=True):
        whole = plain_sum([weights[stage] for stage in mine])
        shares = nearest([total * weights[stage] / whole for stage in mine], 1.0, total, total)
        for stage, share in zip(mine, shares, strict=True):
            counts[stage] = share
    return tuple(counts)


def _evenly(totals: Sequence[int], shape: Case) -> tuple[float, ...]:
    """Whole layers of all stages, each rank's as even as can be; later stages get the remainder."""
    counts = [0.0] * len(shape.ranks)
    for total, stages in zip(totals, shape.rank_stages, strict=True):
        each, left = divmod(total, shape.vp)
        for nth, stage in enumerate(stages):
            counts[stage] = float(each + (nth >= shape.vp - left))
    return tuple(counts)


def _whole(counts: Iterable[float]) -> bool:
    return all(count.is_integer() for count in counts)


def _distinct(cuttings: Iterable[Cutting]) -> list[Cutting]:
    return list({cutting.pieces: cutting for cutting in cuttings}.values())
