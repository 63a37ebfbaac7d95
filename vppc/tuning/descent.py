"""Descent: chunk sizes, and layers of stages as if they could be divided, down the slope of the smoothed goal.

Both are shares of a whole (a prompt's tokens, the model's layers), with limits on each share. A step goes down the
slope, averaged over the last few, and back to the nearest shares that are allowed. The smoothing and the steps
become smaller on the way. Every few steps the order is made anew at the current prices and taken if it is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from vppc.ir.schedule import Order
from vppc.tuning.case import Admit, Case, Point, Quote
from vppc.tuning.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a descent goes: so many steps, from the first to the last temperature and width, on a geometric scale.

    Temperatures are in parts of a mean operation's seconds, widths in parts of a mean share.
    """

    steps: int
    temperature: tuple[float, float] = (0.05, 0.002)
    width: tuple[float, float] = (0.1, 0.005)
    relist: int = 10


_CHECK = 3  # steps from one look at the unsmoothed goal to the next
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
    mean_size = sum(sum(sizes[first:last]) for first, last in movable) / moving if moving else 0.0
    mean_count = case.prices.layers / len(counts)
    down_sizes, down_counts = [0.0] * len(sizes), [0.0] * len(counts)
    order, best = start.order, start
    wiring = case.wired(order)
    for step in range(cooling.steps):
        quote = case.quote(sizes, counts)
        if step % _CHECK == 0 or step % cooling.relist == 0:
            value = wiring.value(quote.seconds, quote.transfers)
            if step % cooling.relist == 0:
                order, wiring, value = _relisted(case, quote, admits, Point((), (), order, value), wiring)
            if value < best.value:
                best = Point(tuple(sizes), tuple(counts), order, value)
        part = step / cooling.steps
        temperature = _between(cooling.temperature, part) * sum(quote.seconds) / len(quote.seconds)
        width = _between(cooling.width, part)
        _, slopes, slow = wiring.slopes(quote.seconds, quote.transfers, temperature)
        if moving:
            steepest = _centred(case.token_slopes(sizes, quote, slopes, slow), chunks)
            down_sizes = _remember(down_sizes, steepest)
            sizes = _step(sizes, down_sizes, width * mean_size, moving)
            for first, last in movable:
                total = case.cutting.workload.runs[case.cutting.run_of[first]].tokens
                sizes[first:last] = nearest(sizes[first:last], limits.least, limits.most, total)
        if stages:
            steepest = _centred(case.layer_slopes(counts, quote, slopes), stages)
            down_counts = _remember(down_counts, steepest)
            counts = _step(counts, down_counts, width * mean_count / 2, len(counts))
            for group in stages:
                all_of_it = sum([start.counts[stage] for stage in group])
                moved = nearest([counts[stage] for stage in group], 1.0, all_of_it, all_of_it)
                for stage, count in zip(group, moved, strict=True):
                    counts[stage] = count
    return best


def nearest(values: Sequence[float], least: float, most: float, total: float) -> list[float]:
    """The nearest numbers from ``least`` to ``most`` with this total: all moved by the same, then cut off.

    ``total`` must lie between what the limits allow.
    """
    low, high = min(values) - most, max(values) - least  # the shift lies between
    shift = (sum(values) - total) / len(values)
    for _ in range(100):
        moved = [least if v - shift < least else most if v - shift > most else v - shift for v in values]
        over = sum(moved) - total
        if abs(over) <= 1e-9 * total:
            break
        if over > 0:
            low = shift
        else:
            high = shift
        free = sum([1 for m in moved if least < m < most])
        shift += over / free if free else 0.0  # exact, if the same numbers stay free
        if not low < shift < high:
            shift = (low + high) / 2
    return moved


def _relisted(
    case: Case, quote: Quote, admits: Sequence[Admit], now: Point, wiring: Wiring
) -> tuple[Order, Wiring, float]:
    order, value = now.order, now.value
    for admit in admits:
        listed = case.listed(quote, admit)
        anew = case.wired(listed)
        price = anew.value(quote.seconds, quote.transfers)
        if price < value:
            order, wiring, value = listed, anew, price
    return order, wiring, value


def _between(ends: tuple[float, float], part: float) -> float:
    first, last = ends
    return first * exp(part * log(last / first))


def _centred(slopes: list[float], groups: Stages) -> list[float]:
    """Slopes less their mean in each group, whose total is fixed; zero outside the groups."""
    result = [0.0] * len(slopes)
    for group in groups:
        mean = sum([slopes[member] for member in group]) / len(group)
        for member in group:
            result[member] = slopes[member] - mean
    return result


def _remember(before: list[float], now: list[float]) -> list[float]:
    return [_MEMORY * b + (1.0 - _MEMORY) * n for b, n in zip(before, now, strict=True)]


def _step(values: list[float], slopes: list[float], width: float, moving: int) -> list[float]:
    """One step down, ``width`` long in the root mean square over what moves."""
    length = (sum([slope * slope for slope in slopes]) / moving) ** 0.5
    return [v - width * s / length for v, s in zip(values, slopes, strict=True)] if length else list(values)
