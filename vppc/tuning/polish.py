"""Local search on what can be run: single layers between stages, units of alignment between chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from vppc.sums import plain_sum
from vppc.tuning.case import Admit, Case, Point
from vppc.tuning.descent import Cooling, Stages, descend
from vppc.tuning.rounding import whole_sizes, whole_stages

_CLOSE = 0.005  # temperature for slopes near an optimum, in parts of a mean operation
_MOVES = 10  # moves that are tried from one point
_SETTLE = Cooling(60, (0.005, 0.0005), (0.05, 0.005), relist=20)
_TRY = Cooling(40, (0.005, 0.0005), (0.04, 0.003), relist=20)


def whole_layers(case: Case, point: Point, admits: Sequence[Admit]) -> Point:
    """The point with whole layers on every stage, where every rank's total is whole.

    A third of the ranks is rounded at a time, those that are nearest to whole first, and the rest settles in between.
    """
    open_ranks = list(case.rank_stages)
    while open_ranks:
        open_ranks.sort(
            key=lambda stages: plain_sum(abs(point.counts[stage] - round(point.counts[stage])) for stage in stages)
        )
        some = -(-len(open_ranks) // 3)
        rounded = whole_stages(point.counts, open_ranks[:some])
        open_ranks = open_ranks[some:]
        point = resettled(case, point, rounded, admits, _SETTLE, open_ranks)
    return point


def resettled(
    case: Case, point: Point, counts: tuple[float, ...], admits: Sequence[Admit], cooling: Cooling, stages: Stages = ()
) -> Point:
    """Other layers under the same sizes and order, and all that settling to them."""
    return descend(case, case.at(point.sizes, counts, point.order), admits, cooling, stages)


def move_layers(case: Case, point: Point, admits: Sequence[Admit], tries: int) -> Point:
    """Move one layer from a stage to another while that helps: those of one rank first, whose work stays, and of them
    the moves that slopes promise most from."""
    tried = {point.counts}
    while tries > 0:
        for counts in islice(filter(case.allows, _layer_moves(case, point)), _MOVES):
            if counts in tried:
                continue
            tried.add(counts)
            tries -= 1
            moved = resettled(case, point, counts, admits, _TRY)
            if moved.value < point.value:
                point = moved
                break
            if tries <= 0:
                return point
        else:
            return point
    return point


def _layer_moves(case: Case, point: Point) -> list[tuple[float, ...]]:
    quote = case.quote(point.sizes, point.counts)
    mean = plain_sum(quote.seconds) / len(quote.seconds)
    _, slopes, _ = case.wired(point.order).slopes(quote.seconds, quote.transfers, _CLOSE * mean)
    by_stage = case.layer_slopes(point.counts, quote, slopes)
    stages = range(len(by_stage))
    moves = sorted(
        (case.ranks[a] != case.ranks[b], by_stage[b] - by_stage[a], a, b)
        for a in stages
        for b in stages
        if a != b and point.counts[a] > 1
    )
    return [tuple(count - (s == a) + (s == b) for s, count in enumerate(point.counts)) for *_, a, b in moves]


def align(case: Case, point: Point, tries: int) -> Point:
    """The point with sizes in whole units, and units moved between neighbouring chunks while that helps."""
    wiring = case.wired(point.order)

    def at(sizes: tuple[int, ...]) -> Point:
        quote = case.quote(sizes, point.counts)
        return Point(sizes, point.counts, point.order, wiring.value(quote.seconds, quote.transfers))

    best = at(whole_sizes(case.cutting, point.sizes))
    unit = case.cutting.workload.limits.align
    for units in (8, 4, 2, 1):
        helped = True
        while helped and tries > 0:
            helped = False
            for giver, taker in _neighbours(case):
                sizes = _moved(case, best, giver, taker, units * unit)
                if sizes is None or tries <= 0:
                    continue
                tries -= 1
                moved = at(sizes)
                if moved.value < best.value:
                    best, helped = moved, True
    return best


def _neighbours(case: Case) -> Iterator[tuple[int, int]]:
    """Pairs of chunks of one prompt, one or two apart."""
    for first, last in case.cutting.movable:
        for chunk in range(first, last):
            for other in (chunk - 2, chunk - 1, chunk + 1, chunk + 2):
                if first <= other < last:
                    yield chunk, other


def _moved(case: Case, point: Point, giver: int, taker: int, tokens: int) -> tuple[int, ...] | None:
    """The sizes with tokens moved between two chunks, or None where limits forbid it."""
    limits = case.cutting.workload.limits
    if point.sizes[giver] - tokens < limits.least or point.sizes[taker] + tokens > limits.most:
        return None
    sizes = [round(size) for size in point.sizes]
    sizes[giver] -= tokens
    sizes[taker] += tokens
    return tuple(sizes)
