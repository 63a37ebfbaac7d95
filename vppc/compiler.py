"""From prompts to a proven schedule: the passes of a strategy, one after another, and then the proof."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from vppc import __version__
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.ir.rules import prove
from vppc.ir.schedule import Json, Model, Request, Schedule
from vppc.passes.strategies import Options, Pass, passes

log = logging.getLogger(__name__)

AfterPass = Callable[[Pass, Schedule], None]


def compile_schedule(
    requests: tuple[Request, ...],
    model: Model,
    cost: CostModel,
    options: Options,
    *,
    extra: Json | None = None,
    after: AfterPass | None = None,
) -> Schedule:
    """The proven schedule of ``requests``, with its cost document and certificate embedded.

    ``extra`` are further top-level keys of the document (``tp``, ``payload``, and ``provenance`` with what is known
    beside the compiler); ``after`` is called with every pass and what it returned. Raises InputError for options that
    cannot be met.
    """
    schedule = Schedule(options.strategy, model, options.pp, 1, requests=requests, extra=extra or {})
    return run_passes(schedule, passes(options, cost), cost, after)


def run_passes(schedule: Schedule, steps: Iterable[Pass], cost: CostModel, after: AfterPass | None = None) -> Schedule:
    """What the passes make of a schedule, one after another; proven, with ``cost`` and the certificate embedded."""
    for step in steps:
        schedule = step(schedule)
        log.info("%s: %d chunks, %d instructions", step.name, len(schedule.chunks), sum(map(len, schedule.programs)))
        if after is not None:
            after(step, schedule)
    return certified(replace(schedule, extra={**schedule.extra, **compiled_keys(schedule.extra, cost)}))


def compiled_keys(extra: Json, cost: CostModel) -> dict[str, Any]:
    """The keys that the compiler adds to a schedule with the keys ``extra``: the costs, and who made it."""
    return {
        "cost": cost_json(cost),
        "provenance": {**extra.get("provenance", {}), "compiler": f"vppc {__version__}"},
    }


def paper_cost(layers: int, seconds: float, transfer: float) -> CostModel:
    """The paper's latency model: a chunk is one token, chunk k takes (k + 1) ``seconds`` in each layer."""
    return CostModel((LayerCost(layers, per_pair=seconds),), transfer=Linear(transfer), name=f"paper-{layers}-layers")


def certified(schedule: Schedule) -> Schedule:
    """``schedule`` with the certificate of its proof. Raises CheckFailed where it breaks a rule."""
    return replace(schedule, certificate=prove(schedule))
