"""Small least-squares problems on their normal equations: at most a dozen unknowns, any number of rows.

A problem min |A x - b|^2 is kept as ``gram`` = A'A and ``moments`` = A'b, which one pass over the rows makes; all
that follows is arithmetic on matrices of the size of x. Columns of A should have norms of about 1 (see
:func:`normal_equations`): normal equations square the condition number, which 64-bit floats bear for the columns
of a cost model as long as those are of one size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import TypeAlias

from vppc.sums import plain_sum

Vector: TypeAlias = Sequence[float]
Matrix: TypeAlias = Sequence[Vector]

DEPENDENT = 1e-10
"""A column of which so small a part (of its squared norm) is not a combination of others tells nothing new."""


@dataclass(frozen=True, slots=True)
class Problem:
    """min |A x - b|^2 with the columns of A scaled to norm 1: x = ``solution`` / ``norms``, element by element.

    A column of zeros keeps its zeros and has the norm 1.
    """

    gram: list[list[float]]
    moments: list[float]
    norms: list[float]

    def unscaled(self, solution: Vector) -> list[float]:
        """A solution of the scaled problem in the units of the columns."""
        return [value / norm for value, norm in zip(solution, self.norms, strict=True)]


def dot(left: Vector, right: Vector) -> float:
    """The inner product of two vectors of one length."""
    product: float = plain_sum(map(mul, left, right))
    return product


def normal_equations(columns: Matrix, values: Vector) -> Problem:
    """The problem of A, given by its columns, and b; linear in the number of rows."""
    norms = [math.sqrt(dot(column, column)) or 1.0 for column in columns]
    scaled = [[value / norm for value in column] for column, norm in zip(columns, norms, strict=True)]
    gram = [[0.0] * len(columns) for _ in columns]
    for i, left in enumerate(scaled):
        for j in range(i + 1):
            gram[i][j] = gram[j][i] = dot(left, scaled[j])
    return Problem(gram, [dot(column, values) for column in scaled], norms)


def outside(gram: Matrix, column: int, columns: Sequence[int]) -> float:
    """Which part of the squared norm of a column is no combination of others; these are independent.

    ``gram`` has a unit diagonal, or 0 for a column of zeros.
    """
    row = _forward(_cholesky(gram, columns), [gram[column][j] for j in columns])
    return gram[column][column] - dot(row, row)


def independent(gram: Matrix) -> list[int]:
    """The columns that are no combination of earlier independent ones."""
    chosen: list[int] = []
    for column in range(len(gram)):
        if outside(gram, column, chosen) > DEPENDENT:
            chosen.append(column)
    return chosen


def solve(gram: Matrix, moments: Vector, columns: Sequence[int]) -> list[float]:
    """The unconstrained least-squares solution with only these columns, in their order; they are independent."""
    factor = _cholesky(gram, columns)
    return _backward(factor, _forward(factor, [moments[j] for j in columns]))


def inverse_diagonal(gram: Matrix, columns: Sequence[int]) -> list[float]:
    """The diagonal of the inverse of the Gram matrix of these columns: variances, in units of the residuals'."""
    factor = _cholesky(gram, columns)
    diagonal = []
    for i in range(len(columns)):
        unit = [0.0] * len(columns)
        unit[i] = 1.0
        half = _forward(factor, unit)
        diagonal.append(dot(half, half))
    return diagonal


def nonnegative(gram: Matrix, moments: Vector) -> list[float]:
    """The x >= 0 that minimises |A x - b|^2; columns are independent and scaled to norm 1.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on the normal
    equations (Bro and de Jong, 1997). The columns of positive x grow by the one along which the error falls
    fastest; where the solution with them turns negative, x goes there only until the first of them is 0, which
    then leaves.
    """
    unknowns = len(moments)
    solution = [0.0] * unknowns
    positive: list[int] = []
    tolerance = 1e-13 * max((abs(moment) for moment in moments), default=0.0)
    refused: set[int] = set()  # those that rounding alone wanted in, until x changes
    while True:
        slopes = [moments[j] - dot(gram[j], solution) for j in range(unknowns)]
        waiting = [j for j in range(unknowns) if j not in positive and j not in refused and slopes[j] > tolerance]
        if not waiting:
            return solution
        steepest = max(waiting, key=slopes.__getitem__)
        positive.append(steepest)
        target = solve(gram, moments, positive)
        if target[-1] <= 0.0:
            positive.pop()
            refused.add(steepest)
            continue
        refused.clear()
        while min(target) <= 0.0:
            step, first = min(
                (solution[j] / (solution[j] - value) if solution[j] > 0.0 else 0.0, j)
                for j, value in zip(positive, target, strict=True)
                if value <= 0.0
            )
            for j, value in zip(positive, target, strict=True):
                solution[j] += step * (value - solution[j])
            solution[first] = 0.0
            positive.remove(first)
            target = solve(gram, moments, positive)
        for j, value in zip(positive, target, strict=True):
            solution[j] = value


def _cholesky(gram: Matrix, columns: Sequence[int]) -> list[list[float]]:
    factor: list[list[float]] = []
    for place, column in enumerate(columns):
        row = _forward(factor, [gram[column][j] for j in columns[:place]])
        factor.append([*row, math.sqrt(gram[column][column] - dot(row, row))])
    return factor


def _forward(factor: Matrix, right: Vector) -> list[float]:
    """Solves L y = right for a lower triangular L, given by its rows up to the diagonal."""
    solution: list[float] = []
    for row, value in zip(factor, right, strict=True):
        solution.append((value - dot(row[:-1], solution)) / row[-1])
    return solution


def _backward(factor: Matrix, right: Vector) -> list[float]:
    """Solves L' x = right."""
    solution = list(right)
    for i in reversed(range(len(solution))):
        solution[i] /= factor[i][i]
        for j in range(i):
            solution[j] -= factor[i][j] * solution[i]
    return solution
