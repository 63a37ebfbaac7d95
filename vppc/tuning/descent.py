"""Descent: chunk sizes, and layers of stages as if they could be divided, down the slope of the smoothed goal.

Both are shares of a whole (a prompt's tokens, the model's layers), with limits on each share. A step goes down the
slope, averaged over the last few, and back to the nearest shares that are allowed. The smoothing and the steps
become smaller on the way. Every few steps the order is made anew at the current prices and taken if it is better.

A token of a late chunk, behind a long prefix, takes many times the seconds of an early one. So distances between
sizes are not measured in tokens alone: a token weighs as many seconds as one of its chunk takes, which is half way
from tokens to seconds, and slopes go down as steeply early in the prompt as late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from vppc.sums import plain_sum
from vppc.tuning.case import Admit, Case, Point


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a descent goes: so many steps, from the first to the last temperature and width, on a geometric scale.

    Temperatures are in parts of a mean operation's seconds, widths in parts of a mean share. Orders are made anew every
    ``relist`` steps, and with ``resequence`` also from the order before, to and fro. That finds better orders, but
    also holds a descent where it is.
    """

    steps: int
    temperature: tuple[float, float] = (0.05, 0.002)
    width: tuple[float, float] = (0.1, 0.005)
    relist: int = 10
    resequence: bool = True


_CHECK = 3  # steps from one look at the unsmoothed goal to the next
_VISITS, _FEWEST_STEPS = 1_000_000, 8
"""Visits of operations in a descent, at most, and the steps that remain even so: of thousands of chunks, few."""

_MEMORY = 0.8
"""How much of the direction of the last step is kept."""


Stages = Sequence[Sequence[int]]
"""Groups of stages: layers move within a group only."""


def descend(case: Case, start: Point, admits: Sequence[Admit], cooling: Cooling, stages: Stages = ()) -> Point:
    """The best point on the way down from ``start``; layers move within the groups of ``stages``.

    ``admits`` are the ways in which orders are made anew; with none the order of the start stays.
    """
    limits = case.cutting.workload.limits
    movable = case.cutting.movable
    chunks = [range(first, last) for first, last in movable]
    moving = sum(map(len, chunks))
    sizes, counts = list(start.sizes), list(start.counts)
    mean_size = plain_sum(plain_sum(sizes[first:last]) for first, last in movable) / moving if moving else 0.0
    mean_count = case.prices.layers / len(counts)
    down_sizes, down_counts = [0.0] * len(sizes), [0.0] * len(counts)
    even = [1.0] * len(counts)
    order, best = start.order, start
    wiring = case.wired(order)
    steps = min(cooling.steps, max(_FEWEST_STEPS, _VISITS // (len(sizes) * len(counts))))
    for step in range(steps):
        quote = case.quote(sizes, counts)
        relist = bool(admits) and step % cooling.relist == 0
        if relist or step % _CHECK == 0:
            now = Point(tuple(sizes), tuple(counts), order, wiring.value(quote.seconds, quote.transfers))
            if relist:
                now = _reordered(case, admits, now, cooling.resequence)
                if now.order is not order:
                    order, wiring = now.order, case.wired(now.order)
            best = min(best, now, key=lambda point: point.value)
        part = step / steps
        temperature = _between(cooling.temperature, part) * plain_sum(quote.seconds) / len(quote.seconds)
        width = _between(cooling.width, part)
        _, slopes, slow = wiring.slopes(quote.seconds, quote.transfers, temperature)
        if moving:
            ease = _ease(sizes, quote.seconds)
            steepest = _centred(case.token_slopes(sizes, quote, slopes, slow), ease, chunks)
            down_sizes = _remember(down_sizes, steepest)
            sizes = _step(sizes, down_sizes, ease, width * mean_size, moving)
            for first, last in movable:
                total = case.cutting.workload.runs[case.cutting.run_of[first]].tokens
                sizes[first:last] = nearest(sizes[first:last], limits.least, limits.most, total, ease[first:last])
        if stages:
            steepest = _centred(case.layer_slopes(counts, quote, slopes), even, stages)
            down_counts = _remember(down_counts, steepest)
            counts = _step(counts, down_counts, even, width * mean_count / 2, len(counts))
            for group in stages:
                all_of_it = plain_sum([start.counts[stage] for stage in group])
                moved = nearest([counts[stage] for stage in group], 1.0, all_of_it, all_of_it)
                for stage, count in zip(group, moved, strict=True):
                    counts[stage] = count
    return best


def nearest(
    values: Sequence[float], least: float, most: float, total: float, ease: Sequence[float] = ()
) -> list[float]:
    """The nearest numbers from ``least`` to ``most`` with this total: moved in proportion to ``ease``, then cut off.

    Nearest in the sum of squares, each divided by its ease (above 0, equal if not given). ``total`` must lie between
    what the limits allow.
    """
    ease = ease or [1.0] * len(values)
    low = min([(v - most) / e for v, e in zip(values, ease, strict=True)])  # the shift lies between
    high = max([(v - least) / e for v, e in zip(values, ease, strict=True)])
    shift = (plain_sum(values) - total) / plain_sum(ease)
    for _ in range(100):
        moved = [v - shift * e for v, e in zip(values, ease, strict=True)]
        moved = [least if m < least else most if m > most else m for m in moved]
        over = plain_sum(moved) - total
        if abs(over) <= 1e-9 * total:
            break
        if over > 0:
            low = shift
        else:
            high = shift
        free = plain_sum([e for m, e in zip(moved, ease, strict=True) if least < m < most])
        shift += over / free if free else 0.0  # exact, if the same numbers stay free
        if not low < shift < high:
            shift = (low + high) / 2
    return moved


def _reordered(case: Case, admits: Sequence[Admit], now: Point, resequence: bool) -> Point:
    """The point with the best of its order, one made better from it (with ``resequence``), and those made anew."""
    quote = case.quote(now.sizes, now.counts)
    points = [now, case.resequenced(now, 1)] if resequence else [now]
    points += [case.at(now.sizes, now.counts, case.listed(quote, admit)) for admit in admits]
    return min(points, key=lambda point: point.value)


def _between(ends: tuple[float, float], part: float) -> float:
    first, last = ends
    return first * exp(part * log(last / first))


def _ease(sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Tokens a second of every chunk, in parts of their mean."""
    stages = len(seconds) // len(sizes)
    speeds = [
        size / (plain_sum(seconds[first : first + stages]) or 1.0)
        for size, first in zip(sizes, range(0, len(seconds), stages), strict=True)
    ]
    mean = plain_sum(speeds) / len(speeds)
    return [speed / mean for speed in speeds]


def _centred(slopes: Sequence[float], ease: Sequence[float], groups: Stages) -> list[float]:
    """The steepest way up that keeps the total of each group; zero outside the groups."""
    result = [0.0] * len(slopes)
    for group in groups:
        all_ease = plain_sum([ease[member] for member in group])
        mean = plain_sum([ease[member] * slopes[member] for member in group]) / all_ease
        for member in group:
            result[member] = ease[member] * (slopes[member] - mean)
    return result


def _remember(before: list[float], now: list[float]) -> list[float]:
    return [_MEMORY * b + (1.0 - _MEMORY) * n for b, n in zip(before, now, strict=True)]


def _step(values: list[float], up: Sequence[float], ease: Sequence[float], width: float, moving: int) -> list[float]:
    """One step down, ``width`` long in the root mean square over what moves."""
    length = (plain_sum([u * u / e for u, e in zip(up, ease, strict=True)]) / moving) ** 0.5
    return [v - width * u / length for v, u in zip(values, up, strict=True)] if length else list(values)
