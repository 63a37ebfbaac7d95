"""The ablation: three requests of 256K in chunks of 32K; what overlapping transfers and packing gain on rank 0."""

from __future__ import annotations

from examples.paper.deepseek import outcome, paper, report
from examples.paper.figures import Figure
from vppc.analysis.report import Report
from vppc.costs.model import CostModel

IN_FLIGHT = (4, 5, 6)
"""Chunks that packing lets in before the first of them has left; the paper does not say how many."""


def ablation(cost: CostModel) -> list[Figure]:
    """Bubble ratios of rank 0, and by how much shorter all three requests take than with ``vpp``."""
    theirs = paper()["ablation"]

    def run(strategy: str, max_in_flight: int | None = None) -> Report:
        setting = theirs["tokens"], theirs["chunk"], theirs["requests"]
        return report(outcome(cost, strategy, *setting, max_in_flight=max_in_flight))

    plain = run("vpp")
    results = {"vpp": ("vpp", plain), "vpp-async": ("vpp-async", run("vpp-async"))}
    results |= {f"vpp-packed, {ahead} in flight": ("vpp-packed", run("vpp-packed", ahead)) for ahead in IN_FLIGHT}
    figures = [
        Figure(f"{name}: bubble ratio", result.ranks[0].bubble_ratio, theirs["bubble_ratio"][strategy], "%")
        for name, (strategy, result) in results.items()
    ]
    return figures + [
        Figure(f"{name}: shorter by", 1 - result.makespan / plain.makespan, theirs["latency_reduction"][strategy], "%")
        for name, (strategy, result) in results.items()
        if strategy != "vpp"
    ]
