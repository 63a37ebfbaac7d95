"""What ``vppc calibrate`` prints: the constants with their errors, what is unknown, and which times were set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vppc.costs.calibration import Calibration, Constant, Fit
from vppc.costs.document import cost_json
from vppc.costs.samples import Layers
from vppc.render.tables import count, percent, seconds, table

LISTED = 8
"""So many of the measurements that were set aside are listed."""
NOISY = 0.2
"""Nine of ten times should be nearer to their fit than this part."""
_MEASURED = {"forwards": "forward", "collectives": "collective", "transfers": "transfer", "heads": "sampling"}


def calibration_text(calibration: Calibration) -> str:
    """The cost model and, one after another, the fits that it is made of; ends without a newline."""
    layers = calibration.layers
    kinds = f" of {count(len(layers.names), 'kind')}" if len(layers.names) > 1 else ""
    name = calibration.cost.name or "unnamed"
    head = f"{name}: costs for {count(layers.count, 'layer')}{kinds}"
    if calibration.fits[0].what != "forwards":
        head += "; forwards were not measured"
    return "\n\n".join([head, *("\n".join(_fit(fit, layers)) for fit in calibration.fits)])


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """The same as JSON: the cost document, and each fit."""
    return {
        "cost": cost_json(calibration.cost),
        "fits": [_fit_json(fit, calibration.layers) for fit in calibration.fits],
    }


def _fit(fit: Fit, layers: Layers) -> Iterator[str]:
    yield (
        f"{count(fit.count, _MEASURED[fit.what])}: median error {percent(fit.median_error)},"
        f" nine of ten under {percent(fit.most)}"
    )
    if fit.held_out is not None:
        yield f"behind prefixes that a fit did not see: median error {percent(fit.held_out)}"
    yield table(
        ("constant", "seconds", "standard error", ""),
        [(_name(each, layers), _tiny(each.value), _error(each), _remark(each)) for each in fit.constants],
        "<>><",
    )
    if noise := _noise(fit):
        yield noise
    if fit.doubt is not None:
        yield f"in doubt: {fit.doubt.problem}"
    for unknown in fit.unknown:
        yield f"unknown: {unknown.name}: {unknown.reason}"
    if fit.set_aside:
        yield f"set aside: {count(len(fit.set_aside))} of {count(fit.count)}"
        farthest = sorted(fit.set_aside, key=lambda each: -max(each[1], 1.0 / max(each[1], 1e-9)))
        for place, ratio in farthest[:LISTED]:
            yield f"  {place}: took {1.0 / ratio:.3g} times the fit" if ratio > 1e-9 else f"  {place}: the fit is 0"
        if len(farthest) > LISTED:
            yield f"  and {count(len(farthest) - LISTED)} more"


def _noise(fit: Fit) -> str:
    """What to do where the times agree with no costs, or tell few of them; empty where they do."""
    weak = sum(each.weak for each in fit.constants)
    found = [f"one in ten is off by {percent(fit.most)} or more"] if fit.most > NOISY else []
    if len(fit.constants) > 1 and 2 * weak > len(fit.constants):
        found.append(f"{weak} of {count(len(fit.constants), 'constant')} are weak")
    if not found:
        return ""
    return (
        f"noisy: {' and '.join(found)}. Was the machine busy with something else? Measure again when it is idle, with "
        "several runs and chunk sizes"
    )


def _name(constant: Constant, layers: Layers) -> str:
    if not constant.kinds or len(constant.kinds) == len(layers.names):
        return constant.name
    return f"{constant.name}, {' and '.join(layers.names[kind] for kind in constant.kinds)}"


def _error(constant: Constant) -> str:
    return "unknown" if constant.error is None else f"{_tiny(constant.error)}"


def _remark(constant: Constant) -> str:
    if constant.value == 0.0:
        return "at its least"
    if constant.error is None:
        return "too few measurements to tell its error"
    return "weak: could be nothing, or twice as much" if constant.weak else ""


def _tiny(value: float) -> str:
    """Seconds also below a nanosecond, where pairs are."""
    return f"{value * 1e12:.4g} ps" if 0.0 < value < 1e-9 else seconds(value)


def _fit_json(fit: Fit, layers: Layers) -> dict[str, Any]:
    return {
        **asdict(fit),
        "doubt": None if fit.doubt is None else fit.doubt.problem,
        "constants": [
            {
                "name": each.name,
                "kinds": [layers.names[kind] for kind in each.kinds],
                "value": each.value,
                "error": each.error,
                "weak": each.weak,
            }
            for each in fit.constants
        ],
        "set_aside": [{"place": place, "ratio": ratio} for place, ratio in fit.set_aside],
    }
