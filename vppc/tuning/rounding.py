"""From fractions to what can be run: whole layers, and sizes in whole units of alignment."""

from __future__ import annotations

from collections.abc import Sequence

from vppc.sums import plain_sum
from vppc.tuning.workload import Cutting


def whole(values: Sequence[float], least: Sequence[int], most: Sequence[int], total: int) -> list[int]:
    """Whole numbers near ``values``, each within its limits, with this total (which the limits must allow)."""
    numbers = [min(max(int(v), low), high) for v, low, high in zip(values, least, most, strict=True)]
    missing = total - sum(numbers)
    step = 1 if missing > 0 else -1
    ends = most if missing > 0 else least
    while missing:
        open_ = [i for i, number in enumerate(numbers) if number != ends[i]]
        chosen = max(open_, key=lambda i: step * (values[i] - numbers[i]))
        numbers[chosen] += step
        missing -= step
    return numbers


def whole_stages(counts: Sequence[float], rank_stages: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Whole layers of all stages of these ranks, at least one each; the total of each must be whole."""
    result = list(counts)
    for stages in rank_stages:
        mine = [counts[stage] for stage in stages]
        total = round(plain_sum(mine))
        numbers = whole(mine, [1] * len(mine), [total] * len(mine), total)
        for stage, number in zip(stages, numbers, strict=True):
            result[stage] = float(number)
    return tuple(result)


def whole_sizes(cutting: Cutting, sizes: Sequence[float]) -> tuple[int, ...]:
    """Sizes in multiples of the alignment, but for the last of each prompt, which holds what is left."""
    limits = cutting.workload.limits
    align = limits.align
    runs = cutting.workload.runs
    result = [runs[run].tokens for run in cutting.run_of]  # right for those of one chunk
    for first, last in cutting.movable:
        tokens = result[first]
        units = -(-tokens // align)
        short = units * align - tokens  # what the last chunk has less than its units
        least = [limits.least // align] * (last - first)
        most = [limits.most // align] * (last - first)
        if short:
            least[-1] += 1
        wanted = [size / align for size in sizes[first:last]]
        wanted[-1] += short / align
        result[first:last] = [number * align for number in whole(wanted, least, most, units)]
        result[last - 1] -= short
    return tuple(result)
