"""dynamic_chunking: the chunk sizes of vLLM-Ascend (``dcpp``) and SGLang (``dcpp-sglang``), which shrink.

Both engines time prompts of some lengths when they start, fit t(n) = a n^2 + b n + c seconds to them, take the
time T of a chunk of the budget as target, and choose behind a prefix of L tokens the x with

    t(L + x) - t(L) = T,    which is    a x^2 + (2 a L + b) x = T.

Then they move x part of the way back to the budget, bound it and round it to pages. They differ in the lengths,
the bounds and the rounding. Here the times come from a cost model: the mean stage, a chunk without prefix.

What an engine measures while it serves comes in through the rules: :class:`DcppRule` and :class:`SglangRule`
take any :class:`LatencyModel` and any target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import ClassVar, Protocol

from vppc.costs.model import CostModel, layer_seconds
from vppc.errors import InputError
from vppc.ir.schedule import Part, Schedule
from vppc.passes.chunking import require_positive, split_requests

SMALLEST_TARGET = 1e-3
"""Seconds that vLLM-Ascend takes as target where the fitted time of a full chunk is not positive."""

SMALLEST_PAGE = 64
"""Both engines round to pages of at least so many tokens."""


class LatencyModel(Protocol):
    """What a rule needs to know of latency."""

    def tokens_within(self, seconds: float, prefix: int) -> float | None:
        """How many tokens behind ``prefix`` take so many seconds; None when the model cannot say."""
        ...

    def growth(self, tokens: int, prefix: int = 0) -> float:
        """Seconds that ``tokens`` more behind ``prefix`` take."""
        ...


@dataclass(frozen=True, slots=True)
class Quadratic:
    """t(n) = ``a`` n^2 + ``b`` n + ``c`` seconds for a prompt of n tokens at once."""

    a: float
    b: float
    c: float

    def growth(self, tokens: int, prefix: int = 0) -> float:
        """Seconds by which ``tokens`` more behind ``prefix`` lengthen a prompt: t(prefix + tokens) - t(prefix)."""
        return (self.a * (2 * prefix + tokens) + self.b) * tokens

    def tokens_within(self, seconds: float, prefix: int) -> float | None:
        """The positive number of tokens whose :meth:`growth` behind ``prefix`` is ``seconds`` > 0.

        None without quadratic growth: then a prefix makes no chunk longer, and there is nothing to equalise.
        """
        if self.a <= 0:
            return None
        slope = 2 * self.a * prefix + self.b
        root = math.sqrt(slope * slope + 4 * self.a * seconds)
        # of the two forms of the positive root the one that subtracts no near-equal numbers
        return 2 * seconds / (root + slope) if slope > 0 else (root - slope) / (2 * self.a)


def fit(lengths: Sequence[int], seconds: Sequence[float]) -> Quadratic:
    """The unconstrained least-squares quadratic through (length, seconds), solved in exact fractions.

    An ``a`` that is only the rounding of the seconds counts as 0. Fewer than three different lengths show no
    growth: the constant mean.
    """
    if len(set(lengths)) < 3:
        return Quadratic(0.0, 0.0, fmean(seconds))
    s0, s1, s2, s3, s4 = (sum(n**power for n in lengths) for power in range(5))
    t0, t1, t2 = (sum(n**power * Fraction(t) for n, t in zip(lengths, seconds, strict=True)) for power in range(3))
    # Cramer's rule on the normal equations
    scale = _det((s4, s3, s2), (s3, s2, s1), (s2, s1, s0))
    a = float(_det((t2, t1, t0), (s3, s2, s1), (s2, s1, s0)) / scale)
    b = float(_det((s4, s3, s2), (t2, t1, t0), (s2, s1, s0)) / scale)
    c = float(_det((s4, s3, s2), (s3, s2, s1), (t2, t1, t0)) / scale)
    rounding = 1e-12 * max(map(abs, seconds))
    return Quadratic(a if abs(a) * max(lengths) ** 2 > rounding else 0.0, b, c)


@dataclass(frozen=True, slots=True)
class DcppRule:
    """vLLM-Ascend's size of the next chunk: as long as ``target`` seconds, smoothed, rounded up to pages.

    At least ``min_chunk`` and at most ``budget`` tokens, and the budget where the model has no answer. Raises
    InputError for sizes below 1 and for ``smooth`` outside 0 to 1.
    """

    model: LatencyModel
    target: float
    budget: int
    page: int = 128
    smooth: float = 1.0
    min_chunk: int = 4096

    def __post_init__(self) -> None:
        _check_sizes(self.budget, self.page, self.smooth)
        require_positive("smallest chunk", self.min_chunk)

    def next_chunk(self, prefix: int, left: int, spent: float = 0.0) -> int:
        """Tokens of a prompt's next chunk; 0 in a batch whose other parts leave no time, having ``spent`` seconds."""
        if spent >= self.target:
            return 0
        exact = self.model.tokens_within(self.target - spent, prefix)
        if exact is None:
            return 0 if spent else min(self.budget, left)
        page = max(self.page, SMALLEST_PAGE)
        tokens = max(_smoothed(exact, self.budget, self.smooth), self.min_chunk)
        return min(-(-tokens // page) * page, self.budget, left)


@dataclass(frozen=True, slots=True)
class SglangRule:
    """SGLang's size of the next chunk: as long as ``target`` seconds, smoothed, rounded down to pages.

    At least a quarter of the budget and a page, at most ``budget``; with ``context`` (the longest sequence the
    server takes) also ``MARGIN`` tokens short of it, and the budget where that leaves no page. Raises InputError
    for sizes below 1 and for ``smooth`` outside 0 to 1.
    """

    MARGIN: ClassVar[int] = 100

    model: LatencyModel
    target: float
    budget: int
    page: int = 128
    smooth: float = 0.75
    context: int | None = None

    def __post_init__(self) -> None:
        _check_sizes(self.budget, self.page, self.smooth)
        if self.context is not None:
            require_positive("context", self.context)

    def next_chunk(self, prefix: int, left: int) -> int:
        exact = self.model.tokens_within(self.target, prefix)
        page = max(self.page, SMALLEST_PAGE)
        room = self.budget if self.context is None else (self.context - prefix - self.MARGIN) // page * page
        if exact is None or room < 1:
            return min(self.budget, left)
        tokens = max(_smoothed(exact, self.budget, self.smooth), self.budget // 4, page) // page * page
        return min(tokens, room, self.budget, left)


@dataclass(frozen=True, slots=True)
class DcppChunks:
    """vLLM-Ascend's dynamic chunks for a budget of tokens, as it plans them from its start-up profile alone.

    Its lengths are the budget and 63 equal steps down. Raises InputError as :class:`DcppRule` does.
    """

    name: ClassVar[str] = "dynamic_chunking"
    SAMPLES: ClassVar[int] = 64

    budget: int
    cost: CostModel
    page: int = 128
    smooth: float = 1.0
    min_chunk: int = 4096

    def __call__(self, schedule: Schedule) -> Schedule:
        rule = self.rule(self.profile(schedule.pp))
        return replace(schedule, chunks=split_requests(schedule.requests, rule.next_chunk))

    def profile(self, pp: int) -> Quadratic:
        """What the start-up profile on ``pp`` ranks finds, were the costs measured."""
        require_positive("chunk budget", self.budget)
        return _fitted(self.cost, pp, [self.budget * step // self.SAMPLES for step in range(self.SAMPLES, 0, -1)])

    def rule(self, model: Quadratic) -> DcppRule:
        """The rule for a fitted model: a chunk takes as long as the budget does without prefix."""
        full = model.growth(self.budget)
        target = full if full > 0 else SMALLEST_TARGET
        return DcppRule(model, target, self.budget, self.page, self.smooth, self.min_chunk)


@dataclass(frozen=True, slots=True)
class SglangChunks:
    """SGLang's dynamic chunks for a budget of tokens.

    Its lengths are 128 equal steps from 1.25 budgets down, of which it drops the first. Raises InputError as
    :class:`SglangRule` does, for a budget too small for the steps, for times that do not grow quadratically,
    and for a prompt longer than ``context``.
    """

    name: ClassVar[str] = "dynamic_chunking"
    SAMPLES: ClassVar[int] = 128

    budget: int
    cost: CostModel
    page: int = 128
    smooth: float = 0.75
    context: int | None = None

    def __call__(self, schedule: Schedule) -> Schedule:
        rule = self.rule(self.profile(schedule.pp))
        for request in schedule.requests:
            if self.context is not None and request.prompt_tokens > self.context:
                raise InputError(
                    f"request {request.id} has {request.prompt_tokens} tokens, more than the context of {self.context}",
                    remedy="give a longer context, or leave it out",
                )
        return replace(schedule, chunks=split_requests(schedule.requests, rule.next_chunk))

    def profile(self, pp: int) -> Quadratic:
        """What the start-up profile on ``pp`` ranks finds, were the costs measured."""
        longest = 5 * self.budget // 4
        step = longest // self.SAMPLES
        if step < 1:
            raise InputError(
                f"a chunk budget of {self.budget} tokens is too small for SGLang's {self.SAMPLES} profiled lengths",
                remedy=f"give at least {-(-4 * self.SAMPLES // 5)} tokens",
            )
        return _fitted(self.cost, pp, [longest - i * step for i in range(1, self.SAMPLES)])

    def rule(self, model: Quadratic) -> SglangRule:
        """The rule for a fitted model: a chunk takes as long as the budget does without prefix."""
        if model.a <= 0:
            raise InputError(
                f"the time of a chunk does not grow quadratically (a = {model.a:.3g} s per token squared), "
                "so SGLang's dynamic chunks have no solution",
                remedy="use a cost file with per_pair or indexer_per_pair above 0, or fixed chunks (strategy cpp)",
            )
        model = replace(model, b=max(model.b, 0.0))
        return SglangRule(model, model.growth(self.budget), self.budget, self.page, self.smooth, self.context)


def _fitted(cost: CostModel, pp: int, lengths: Sequence[int]) -> Quadratic:
    """The fit to the seconds of the mean of ``pp`` stages for chunks of these lengths without prefix."""
    layers = cost.layer_count
    return fit(lengths, [layer_seconds(cost, 0, layers, [Part(0, 0, n)]) / pp + cost.launch for n in lengths])


def _smoothed(exact: float, budget: int, smooth: float) -> int:
    """``exact`` moved towards the budget (not at all with ``smooth`` 1), cut to whole tokens.

    Behind no prefix the budget itself is exact; a rounding error below it must not cost a token, and so a page.
    """
    return math.floor(budget + smooth * (exact - budget) + 1e-6)


def _check_sizes(budget: int, page: int, smooth: float) -> None:
    require_positive("chunk budget", budget)
    require_positive("page", page)
    if not 0 <= smooth <= 1:
        raise InputError(
            f"smoothing factor {smooth} is not between 0 and 1", remedy="1 smooths nothing, 0 fixes the size"
        )


def _det(x: Sequence[Fraction | int], y: Sequence[int | Fraction], z: Sequence[int | Fraction]) -> Fraction:
    """The determinant of the 3 x 3 matrix with these columns."""
    return Fraction(
        x[0] * (y[1] * z[2] - y[2] * z[1]) - y[0] * (x[1] * z[2] - x[2] * z[1]) + z[0] * (x[1] * y[2] - x[2] * y[1])
    )
