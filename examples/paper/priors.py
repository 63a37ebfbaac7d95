"""Figure 4 for Qwen3-Coder and GLM-5.2, for which there are no measurements: costs by roofline, and what they miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from examples.paper.deepseek import DCPP, LENGTHS, gain, length, row
from vppc.costs.devices import find_device
from vppc.costs.model import CostModel
from vppc.costs.roofline import roofline_cost
from vppc.models import load_model
from vppc.render.tables import table

THE_PAPER = (
    ("qwen3-coder-30b-a3b", "the paper", "", ("", "+3.7%", "", "+8.7%")),
    ("glm-5.2", "the paper", "", ("+8.5%", "less", "less", "less")),
)


def priors() -> str:
    """What VPP gains over DCPP, each at its best chunk size, if a forward or the indexer takes more or less time."""
    lines = [
        (name, what, mode, *(_gain(cost, tokens, mode) for tokens in LENGTHS))
        for name, what, cost in _costs()
        for mode in ("offline", "wait")
    ]
    lines += [(name, what, mode, *parts) for name, what, mode, parts in THE_PAPER]
    return table(
        ("model", "costs", "DCPP", *map(length, LENGTHS)), sorted(lines, key=lambda line: line[0]), align="<<<"
    )


def _costs() -> Iterator[tuple[str, str, CostModel]]:
    qwen, glm = (by_roofline(name) for name in ("qwen3-coder-30b-a3b", "glm-5.2"))
    for launch in (0.001, 0.04):
        yield "qwen3-coder-30b-a3b", f"{1000 * launch:.0f} ms a forward", replace(qwen, launch=launch)
    for part in (1.0, 0.1, 0.0):
        layers = tuple(replace(kind, indexer_per_pair=part * kind.indexer_per_pair) for kind in glm.layers)
        yield "glm-5.2", f"indexer x {part:g}", replace(glm, layers=layers)


def by_roofline(name: str) -> CostModel:
    """The costs of a model on the paper's ranks."""
    return roofline_cost(load_model(name), find_device("910c"), tp=8, ep=8)


def _gain(cost: CostModel, tokens: int, mode: str) -> str:
    return f"{100 * gain(row(cost, 'vpp-async', tokens), row(cost, 'dcpp', tokens, **DCPP[mode])):+.1f}%"
