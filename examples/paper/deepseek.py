"""DeepSeek-V3.1 on two TP8 ranks: the costs, what the paper printed, and priced schedules, each made once."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from vppc.analysis.report import Report
from vppc.compare import Case, Outcome, Row, equal_prompts, judge
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel
from vppc.passes.strategies import Options

HERE = Path(__file__).parent
LENGTHS = (65536, 131072, 262144, 524288)
SIZES = (8192, 16384, 24576, 32768)

DCPP: dict[str, dict[str, Any]] = {
    "offline": {"measured_time": "offline"},
    "own, cold": {"measured_time": "own", "warmups": 0},
    "own": {"measured_time": "own", "warmups": 1},
    "wait, cold": {"measured_time": "wait", "warmups": 0},
    "wait": {"measured_time": "wait", "warmups": 1},
}
"""The ways in which the dynamic chunks come about; not cold is after one prompt of the same length."""


@cache
def paper() -> dict[str, Any]:
    """The paper's figures."""
    numbers: dict[str, Any] = json.loads((HERE / "numbers.json").read_text(encoding="utf-8"))
    return numbers


@cache
def costs(communication: float = 0.0) -> CostModel:
    """The costs with this part of the exposed communication that Table 1 shows: 0 is one example file, 1 the other."""
    folder = HERE.parent / "costs"
    if communication == 0:
        return read_cost(str(folder / "deepseek-v3.1-910c-tp8.json"))
    cost = read_cost(str(folder / "deepseek-v3.1-910c-tp8-comm.json"))
    layers = (
        replace(
            kind,
            collective_fixed=communication * kind.collective_fixed,
            collective_per_token=communication * kind.collective_per_token,
        )
        for kind in cost.layers
    )
    return replace(cost, layers=tuple(layers))


@cache
def _judged(case: Case) -> Outcome:
    return judge(case)


def outcome(cost: CostModel, strategy: str, tokens: int, size: int, prompts: int = 1, **options: Any) -> Outcome:
    """A strategy at one prompt length and chunk size."""
    return _judged(Case(cost, equal_prompts(tokens, prompts), Options(strategy=strategy, chunk_size=size, **options)))


def report(outcome: Outcome) -> Report:
    """The price of an outcome that was not refused."""
    if outcome.report is None:
        raise RuntimeError(outcome.refusal)
    return outcome.report


def row(cost: CostModel, strategy: str, tokens: int, **options: Any) -> Row:
    """A strategy at one prompt length over the paper's chunk sizes."""
    return Row(tuple(outcome(cost, strategy, tokens, size, **options) for size in SIZES))


def gain(ours: Row, theirs: Row) -> float:
    """The gain in throughput, each at its best chunk size."""
    part = ours.gain_over(theirs)
    if part is None:
        raise RuntimeError("one of the two was refused")
    return part


def length(tokens: int) -> str:
    """A length as the paper writes it: ``64K``, ``1M``."""
    return f"{tokens // 1048576}M" if tokens % 1048576 == 0 else f"{tokens // 1024}K"
