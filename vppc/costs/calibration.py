"""Calibration: a cost model from measured times, and how far to trust it.

Forwards, transfers, heads and collectives are fitted each for itself, robustly and with nothing negative
(:mod:`vppc.costs.robust`). What the measurements cannot tell is said to be unknown (:mod:`vppc.costs.terms`). A fit
that misses the times, or that only negative costs would mend, is refused: it would price other chunks wrongly
without anyone noticing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.costs.robust import RobustFit, median, robust_fit
from vppc.costs.samples import Forward, Head, Layers, Measurements, Transfer
from vppc.costs.terms import (
    Candidate,
    Term,
    Unknown,
    choose,
    collective_candidates,
    forward_candidates,
    head_candidates,
    transfer_candidates,
)
from vppc.errors import CheckFailed, Finding, InputError
from vppc.sums import plain_sum

WORST_MEDIAN = 0.25
"""A fit that misses half of the measurements by more than this part of them is in doubt."""
_FOLDS = 4
_MANY = 5_000
"""From so many forwards on, the fit is not repeated to see how it does on prefixes left out."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A fitted constant in seconds, for kinds of layers (none: not a layer's); ``error`` is its standard error.

    The error is None where there are not enough measurements to tell.
    """

    name: str
    kinds: tuple[int, ...]
    value: float
    error: float | None

    @property
    def weak(self) -> bool:
        """Whether the value could as well be nothing, or twice as large: within two errors of it."""
        return self.error is not None and 2.0 * self.error > self.value > 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """One fit: of ``what``, ``count`` measurements, with what came out.

    Errors are |fitted / measured - 1|: ``median_error`` and ``most`` (the 90th of 100) over all measurements,
    ``held_out`` the median over forwards behind prefixes that a fit did not see (None: too few prefixes).
    ``set_aside`` are the outliers, as (place, fitted / measured), which the fit gave no weight. ``doubt`` is why
    not to trust it, if there is a reason.
    """

    what: str
    count: int
    constants: tuple[Constant, ...]
    unknown: tuple[Unknown, ...]
    median_error: float
    most: float
    set_aside: tuple[tuple[str, float], ...]
    doubt: Finding | None = None
    held_out: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The cost model and the fits that it is made of."""

    cost: CostModel
    layers: Layers
    fits: tuple[Fit, ...]


def calibrate(measured: Measurements, *, name: str = "", base: CostModel | None = None) -> Calibration:
    """Fits a cost model; ``base`` has what was not measured at all: layers, embedding, head, transfers, interference.

    Raises InputError where nothing was measured, CheckFailed for a fit that is not to be trusted, unless it is of
    by-products.
    """
    layers = measured.layers
    _check_kinds(measured)
    fits: list[Fit] = []
    if measured.forwards:
        fits.append(_fit_forwards(measured.forwards, layers))
        if talking := [each for each in measured.forwards if each.collective]:
            seconds = [each.collective or 0.0 for each in talking]
            fits.append(_fit("collectives", talking, seconds, collective_candidates(talking)))
    for what, samples, candidates in (
        ("transfers", measured.transfers, transfer_candidates(measured.transfers)),
        ("heads", measured.heads, head_candidates(measured.heads)),
    ):
        if samples:
            fits.append(_fit(what, samples, [each.seconds for each in samples], candidates))
    doubts = tuple(fit.doubt for fit in fits if fit.doubt is not None and fit.what not in measured.by_products)
    if doubts:
        raise CheckFailed(doubts)
    return Calibration(_cost(measured, fits, name or measured.name, base), layers, tuple(fits))


def _check_kinds(measured: Measurements) -> None:
    if not (measured.forwards or measured.transfers):
        raise InputError("nothing was measured", remedy="a table or a journal with at least one forward or transfer")
    for kind, name in enumerate(measured.layers.names):
        if measured.forwards and not any(each.layers[kind] for each in measured.forwards):
            raise InputError(f"no measured forward has layers of the kind {name}", remedy="measure some")


def _fit_forwards(forwards: Sequence[Forward], layers: Layers) -> Fit:
    fit = _fit("forwards", forwards, [each.seconds for each in forwards], forward_candidates(forwards, layers))
    return replace(fit, held_out=_held_out(forwards, layers))


def _fit(
    what: str,
    samples: Sequence[Forward | Transfer | Head],
    seconds: Sequence[float],
    candidates: Sequence[Candidate],
) -> Fit:
    terms, unknown = choose(candidates, seconds)
    fit = robust_fit([term.column for term in terms], seconds)
    ratios = [fitted / time for fitted, time in zip(fit.fitted, seconds, strict=True)]
    errors = sorted(abs(ratio - 1.0) for ratio in ratios)
    return Fit(
        what,
        len(samples),
        tuple(
            Constant(term.name, term.kinds, value, error)
            for term, value, error in zip(terms, fit.values, fit.errors, strict=True)
        ),
        unknown,
        median(errors),
        errors[(9 * len(errors) - 1) // 10],
        tuple(
            (sample.place, ratio)
            for sample, ratio, weight in zip(samples, ratios, fit.weights, strict=True)
            if weight == 0.0
        ),
        _doubt(what, terms, seconds, fit, median(errors)),
    )


def _doubt(what: str, terms: Sequence[Term], seconds: Sequence[float], fit: RobustFit, missed: float) -> Finding | None:
    """Why times are not those of the cost model: only a negative constant would fit, or nothing does."""
    if not all(fit.values):
        free = robust_fit([term.column for term in terms], seconds, signed=True)
        below = [
            (value / error, term.name, value)
            for term, value, error in zip(terms, free.values, free.errors, strict=True)
            if value < 0.0 and error is not None and value < -3.0 * error
        ]
        if below and missed > 1.5 * _median_error(free.fitted, seconds) + 0.005:
            _, name, value = min(below)
            return Finding(
                "F2",
                what,
                f"only a negative {name} ({value:.3g} s) would fit: the times fall where the work grows",
                "look for what else changed between the measurements, such as clocks, other load or other kernels",
            )
    if missed > WORST_MEDIAN:
        return Finding(
            "F1",
            what,
            f"half of the {len(seconds)} times are off by more than {missed:.0%} from the best fit",
            "measure one configuration at a time, often enough, on a device that does nothing else",
        )
    return None


def _held_out(forwards: Sequence[Forward], layers: Layers) -> float | None:
    """The median error behind prefixes that were left out: every fourth of them in turn, four times."""
    prefixes = sorted({each.prefix for each in forwards})
    if len(prefixes) < _FOLDS or len(forwards) > _MANY:
        return None
    folds = {prefix: place % _FOLDS for place, prefix in enumerate(prefixes)}
    errors: list[float] = []
    for fold in range(_FOLDS):
        seen = [each for each in forwards if folds[each.prefix] != fold]
        left_out = [each for each in forwards if folds[each.prefix] == fold]
        seconds = [each.seconds for each in seen]
        terms, _ = choose(forward_candidates(seen, layers), seconds)
        fit = robust_fit([term.column for term in terms], seconds)
        values = {(term.name, term.kinds): value for term, value in zip(terms, fit.values, strict=True)}
        columns = {
            (term.name, term.kinds): term.column
            for candidate in forward_candidates(left_out, layers)
            for term in (*candidate.separate, candidate.pooled)
        }
        for place, each in enumerate(left_out):
            fitted = plain_sum(value * columns[key][place] for key, value in values.items())
            errors.append(abs(fitted / each.seconds - 1.0))
    return median(errors)


def _median_error(fitted: Sequence[float], seconds: Sequence[float]) -> float:
    return median([abs(guess / time - 1.0) for guess, time in zip(fitted, seconds, strict=True)])


def _cost(measured: Measurements, fits: Sequence[Fit], name: str, base: CostModel | None) -> CostModel:
    layers = measured.layers
    by_kind = [LayerCost(1, topk=topk) for topk in layers.topks]
    beside: dict[str, float] = {}
    for fit in fits:
        for constant in fit.constants:
            for kind in constant.kinds:
                changed: dict[str, Any] = {constant.name: constant.value}
                by_kind[kind] = replace(by_kind[kind], **changed)
            if not constant.kinds:
                beside[constant.name] = constant.value

    def linear(what: str, fixed: str = "fixed") -> Linear:
        return Linear(beside.get(f"{what}.{fixed}", 0.0), beside.get(f"{what}.per_token", 0.0))

    given = base or CostModel(())
    cost = replace(given, name=name or given.name)
    if measured.forwards or base is None:
        runs = tuple(replace(by_kind[kind], count=count) for kind, count in layers.runs)
        cost = replace(cost, layers=runs, launch=beside.get("launch", 0.0))
    if any(each.embeds for each in measured.forwards):
        cost = replace(cost, embed=linear("embed"))
    if measured.heads:
        cost = replace(cost, head=linear("head"))
    if measured.transfers:
        cost = replace(cost, transfer=linear("transfer", "latency"))
    return cost
