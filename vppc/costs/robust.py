"""Robust least squares for measured times: relative errors, outliers set aside, nothing negative where asked.

A measured time is its true value times a factor near 1, so residuals are relative to the fitted time. A few
measurements are something else: the first one of a cold device, one that another program disturbed. The fit
starts from least absolute deviations, which a minority of outliers cannot carry away, takes the spread of the
residuals from there, and goes on with Tukey's biweight, under which a residual of over 4.685 spreads counts
nothing (Huber and Ronchetti, Robust Statistics, 2009, chapters 4 and 7; the constant gives 95% efficiency where
there are no outliers). Both are iterated weighted least squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vppc.costs.least_squares import (
    Matrix,
    Vector,
    independent,
    inverse_diagonal,
    nonnegative,
    normal_equations,
    solve,
)
from vppc.sums import plain_sum

BIWEIGHT = 4.685
"""Residuals of more spreads than this have no weight."""
_DEVIATIONS_TO_SPREAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""
_STARTING_STEPS, _STEPS = 40, 100
_SMOOTH = 1e-3
"""Least absolute deviations are rounded off below such residuals, or the first that vanishes would stay so."""
_EXACT = 1e-9
"""Relative residuals of this size are rounding."""


@dataclass(frozen=True, slots=True)
class RobustFit:
    """``values`` of the columns with their standard ``errors`` (None where the measurements give none).

    Of every measurement ``fitted`` seconds and its final weight, 0 for one set aside. ``spread`` is a robust
    standard deviation of the relative residuals.
    """

    values: list[float]
    errors: list[float | None]
    fitted: list[float]
    weights: list[float]
    spread: float


def robust_fit(columns: Matrix, seconds: Vector, *, signed: bool = False) -> RobustFit:
    """Fits ``seconds``, all positive, as a combination of ``columns``, the factors at least 0 (any, if ``signed``)."""
    fitted = list(seconds)
    weights = [1.0] * len(fitted)
    values = [0.0] * len(columns)
    for _ in range(_STARTING_STEPS):
        before = values
        values, fitted = _step(columns, seconds, fitted, weights, signed)
        if _settled(before, values, 1e-4):
            break
        weights = [1.0 / max(abs(residual), _SMOOTH) for residual in _residuals(seconds, fitted)]
    spread = _spread(_residuals(seconds, fitted), len(columns))
    for _ in range(_STEPS):
        weights = [_biweight(residual / (BIWEIGHT * spread)) for residual in _residuals(seconds, fitted)]
        before = values
        values, fitted = _step(columns, seconds, fitted, weights, signed)
        if _settled(before, values, 1e-7):
            break
    residuals = _residuals(seconds, fitted)
    errors = _errors(columns, residuals, seconds, fitted, weights)
    return RobustFit(values, errors, fitted, weights, _spread(residuals, len(columns)))


def median(values: Sequence[float]) -> float:
    """The middle of values, or the mean of the two in the middle; 0 of none."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _step(
    columns: Matrix, seconds: Vector, fitted: Vector, weights: Vector, signed: bool
) -> tuple[list[float], list[float]]:
    """Least squares of the weighted relative residuals, relative to the times fitted before."""
    scales = [math.sqrt(weight) / base for weight, base in zip(weights, _bases(seconds, fitted), strict=True)]
    problem = normal_equations(_scaled(columns, scales), _scaled([seconds], scales)[0])
    known = independent(problem.gram)  # without those that only outliers tell something of
    gram = [[problem.gram[i][j] for j in known] for i in known]
    moments = [problem.moments[i] for i in known]
    found = solve(gram, moments, range(len(known))) if signed else nonnegative(gram, moments)
    solution = [0.0] * len(columns)
    for place, each in zip(known, found, strict=True):
        solution[place] = each
    values = problem.unscaled(solution)
    totals = [0.0] * len(seconds)
    for column, value in zip(columns, values, strict=True):
        if value:
            totals = [total + value * each for total, each in zip(totals, column, strict=True)]
    return values, totals


def _settled(before: Vector, values: Vector, tolerance: float) -> bool:
    return all(math.isclose(old, new, rel_tol=tolerance) for old, new in zip(before, values, strict=True))


def _scaled(columns: Matrix, scales: Vector) -> list[list[float]]:
    return [[value * scale for value, scale in zip(column, scales, strict=True)] for column in columns]


def _bases(seconds: Vector, fitted: Vector) -> list[float]:
    """What residuals are relative to: the fitted time, within reason."""
    return [max(guess, 0.05 * measured) for guess, measured in zip(fitted, seconds, strict=True)]


def _residuals(seconds: Vector, fitted: Vector) -> list[float]:
    bases = _bases(seconds, fitted)
    return [(measured - guess) / base for measured, guess, base in zip(seconds, fitted, bases, strict=True)]


def _biweight(ratio: float) -> float:
    return (1.0 - ratio * ratio) ** 2 if abs(ratio) < 1.0 else 0.0


def _spread(residuals: Vector, unknowns: int) -> float:
    """From the median of the absolute residuals, without as many as the fit can make vanish."""
    sizes = sorted(map(abs, residuals))[unknowns:]
    return max(_DEVIATIONS_TO_SPREAD * median(sizes), _EXACT)


def _errors(columns: Matrix, residuals: Vector, seconds: Vector, fitted: Vector, weights: Vector) -> list[float | None]:
    """Standard errors as if all columns were free, also of a value that is held at 0."""
    scales = [math.sqrt(weight) / base for weight, base in zip(weights, _bases(seconds, fitted), strict=True)]
    problem = normal_equations(_scaled(columns, scales), [0.0] * len(scales))
    known = independent(problem.gram)
    errors: list[float | None] = [None] * len(columns)
    freedom = plain_sum(weights) - len(known)
    if freedom < 0.5:
        return errors
    squares = plain_sum(weight * residual * residual for weight, residual in zip(weights, residuals, strict=True))
    for column, variance in zip(known, inverse_diagonal(problem.gram, known), strict=True):
        errors[column] = math.sqrt(variance * squares / freedom) / problem.norms[column]
    return errors
