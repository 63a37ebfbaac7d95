"""Figures 3 and 5: the paper's serving suites, each strategy at its best chunk size, and what the gains come from.

VPP is served as the paper has it: packed, by its dual queue, with one batch in flight more than there are ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from examples.paper.deepseek import DCPP, SIZES, costs, paper
from examples.paper.figures import Figure
from examples.paper.priors import by_roofline
from vppc.costs.model import CostModel
from vppc.passes.strategies import Options
from vppc.render.tables import table
from vppc.serving.contest import Entry, Served, Trial, judge
from vppc.serving.simulate import Setting
from vppc.serving.workloads import Workload, suite

SHORT = ("short-4k", "short-8k", "short-16k")
MODES = ("offline", "own", "wait, cold", "wait")
"""The ways in which DCPP's chunks come about; not cold is after one run of the same suite."""
USERS = (1, 2, 4, 8, 16)
LAUNCHES = (0.001, 0.010, 0.020, 0.030)
INDEXERS = (1.0, 0.2, 0.0)


def entry(cost: CostModel, workload: Workload | str, strategy: str, policy: str = "fcfs", **options: Any) -> Entry:
    """A strategy on a workload, or on a suite of that name, over the paper's chunk sizes."""
    chosen = suite(workload) if isinstance(workload, str) else workload
    return Entry(
        tuple(_judged(Trial(chosen, Setting(cost, Options(strategy=strategy, chunk_size=size, **options), policy)))
              for size in SIZES)
    )  # fmt: skip


def vpp(cost: CostModel, workload: Workload | str) -> Entry:
    """The paper's VPP."""
    return entry(cost, workload, "vpp-packed", "dual-queue")


def dcpp(cost: CostModel, workload: Workload | str, mode: str) -> Entry:
    """vLLM-Ascend's dynamic chunks, in one of :data:`MODES`."""
    return entry(cost, workload, "dcpp", **DCPP[mode])


def over(ours: Entry, theirs: Entry) -> float:
    """The gain in throughput, each at its best chunk size."""
    part = ours.gain_over(theirs)
    if part is None:
        raise RuntimeError(ours.best.refusal or theirs.best.refusal)
    return part


@cache
def _judged(trial: Trial) -> Served:
    return judge(trial)


def figure_3(cost: CostModel) -> list[Figure]:
    """DeepSeek on the short suites."""
    printed = paper()["figure_3"]["deepseek"]["vpp_over_dcpp"]
    figures = [
        Figure(f"VPP over CPP, {name}", over(vpp(cost, name), entry(cost, name, "cpp")), None, "%") for name in SHORT
    ]
    for mode in MODES:
        figures += [
            Figure(
                f"VPP over DCPP ({mode}), {name}", over(vpp(cost, name), dcpp(cost, name, mode)), printed.get(name), "%"
            )
            for name in SHORT
        ]
    return figures


def figure_5(cost: CostModel) -> list[Figure]:
    """DeepSeek on the mixed suite."""
    printed = paper()["figure_5"]["deepseek"]
    ours = vpp(cost, "mixed")
    figures = [Figure("VPP over CPP", over(ours, entry(cost, "mixed", "cpp")), printed["vpp_over_cpp"], "%")]
    for mode in MODES:
        gain = over(ours, dcpp(cost, "mixed", mode))
        figures.append(Figure(f"VPP over DCPP ({mode})", gain, printed["vpp_over_dcpp"], "%"))
    return figures


def in_flight(cost: CostModel) -> str:
    """The mixed suite by batches in flight: throughput beside CPP with two, as vLLM has them on two ranks."""
    base = entry(cost, "mixed", "cpp")
    lines = []
    for name, strategy in (("CPP", "cpp"), ("VPP", "vpp-packed")):
        gains = (over(entry(cost, "mixed", strategy, max_in_flight=most), base) for most in (2, 3, 4, 6))
        lines.append((name, *map(_signed, gains)))
    return table(("in flight", "2", "3", "4", "6"), lines)


def first_batch(cost: CostModel) -> str:
    """The first short suite when its requests come one by one, and when all are there at once: DCPP's chunks."""
    lines = []
    for name, workload in (
        ("1 ms apart", suite("short-4k")),
        ("at once", replace(suite("short-4k"), concurrency=None)),
    ):
        for mode in ("offline", "wait, cold"):
            best = dcpp(cost, workload, mode)
            chunks = (str(each.report.chunks if each.report else 0) for each in best.tried)
            lines.append((name, mode, *chunks, _signed(over(vpp(cost, workload), best))))
    return table(("requests come", "DCPP", *(f"chunks, {size // 1024}K" for size in SIZES), "VPP over it"), lines, "<<")


def by_depth(cost: CostModel) -> str:
    """The mixed suite by requests in the system: what a third batch in flight gains CPP, and VPP over CPP and DCPP."""
    lines = []
    for users in USERS:
        workload = replace(suite("mixed"), concurrency=users)
        base, ours = entry(cost, workload, "cpp"), vpp(cost, workload)
        third = over(entry(cost, workload, "cpp", max_in_flight=3), base)
        gains = (over(ours, dcpp(cost, workload, mode)) for mode in ("offline", "wait"))
        lines.append((str(users), *map(_signed, (third, over(ours, base), *gains))))
    headers = ("CPP by a third in flight", "VPP over CPP", "over DCPP (offline)", "over DCPP (wait)")
    return table(("at a time", *headers), lines, ">")


def qwen() -> str:
    """Qwen3-Coder by roofline, by what a forward takes to launch, which VPP pays twice as often."""
    model = by_roofline("qwen3-coder-30b-a3b")
    lines = [_of_model(f"{1000 * launch:.0f} ms a forward", replace(model, launch=launch)) for launch in LAUNCHES]
    printed = paper()["figure_5"]["qwen"]
    worst = f"to {_signed(paper()['figure_3']['qwen']['vpp_over_cpp_at_least'])}"
    mixed = (_signed(printed["vpp_over_cpp"]), "", _signed(printed["vpp_over_dcpp"]))
    return _models([*lines, ("the paper", worst, worst, worst, *mixed)])


def glm() -> str:
    """GLM-5.2 by roofline, by what its indexer takes."""
    model = by_roofline("glm-5.2")
    lines = []
    for part in INDEXERS:
        layers = tuple(replace(kind, indexer_per_pair=part * kind.indexer_per_pair) for kind in model.layers)
        lines.append(_of_model(f"indexer x {part:g}", replace(model, layers=layers)))
    low, high = paper()["figure_5"]["glm"]["vpp_over_cpp"]
    printed = f"{_signed(low)} to {_signed(high)}"
    return _models([*lines, ("the paper", *["comparable"] * 3, printed, "", printed)])


def _of_model(name: str, cost: CostModel) -> tuple[str, ...]:
    gains = [over(vpp(cost, short), entry(cost, short, "cpp")) for short in SHORT]
    ours = vpp(cost, "mixed")
    gains += [
        over(ours, entry(cost, "mixed", "cpp")),
        *(over(ours, dcpp(cost, "mixed", mode)) for mode in ("offline", "wait")),
    ]
    return name, *map(_signed, gains)


def _models(lines: list[tuple[str, ...]]) -> str:
    headers = (
        *(f"over CPP, {name}" for name in (*SHORT, "mixed")),
        "over DCPP (offline), mixed",
        "over DCPP (wait), mixed",
    )
    return table(("costs", *headers), lines)


def _signed(part: float) -> str:
    return f"{100 * part:+.1f}%"


def serving_sections() -> Iterator[tuple[str, str]]:
    """Title and text of every table that is no list of figures."""
    cost = costs(1.0)
    yield f"Figure 5, {cost.name}: throughput by batches in flight, beside CPP with two", in_flight(cost)
    yield f"Figure 5, {cost.name}: what VPP gains by requests in the system", by_depth(cost)
    yield f"Figure 3, {cost.name}: what a small first batch teaches DCPP, short-4k", first_batch(cost)
    yield "Figures 3 and 5 for Qwen3-Coder, costs by roofline: what VPP gains", qwen()
    yield "Figures 3 and 5 for GLM-5.2, costs by roofline: what VPP gains", glm()
