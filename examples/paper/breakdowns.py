"""Tables 1 and 2: where the time of 512K tokens in chunks of up to 24K goes, on the paper's critical ranks.

Those are rank 1 (30 layers) for the straight pipelines and rank 0 (31 layers) for VPP.
"""

from __future__ import annotations

from typing import Any

from examples.paper.deepseek import DCPP, costs, outcome, paper, report
from examples.paper.figures import Figure, Kind
from vppc.analysis.breakdown import RankBreakdown
from vppc.analysis.report import Report
from vppc.compare import Outcome
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel, LayerCost, OpCosts
from vppc.ir.schedule import Model

STRAIGHT, FOLDED = 1, 0
"""The critical ranks."""

THIRTY_ON_RANK_0 = ((0, 15), (15, 31), (31, 46), (46, 61))
"""A split of the V in which rank 0 has 30 layers and rank 1 has 31."""

KERNELS = {"attention": ("per_pair",), "rebuild": ("per_prefix_token",), "other": ("fixed", "per_token")}
"""Which terms of a layer's cost stand for which kernels of Table 2(b)."""


def table_1(communication: float) -> list[Figure]:
    """CPP, and DCPP offline and online; without communication, ``total`` is compared with the paper's less its own."""
    figures = []
    cpp, dcpp = paper()["table_1"]["cpp"], paper()["table_1"]["dcpp"]
    for name, theirs, result in (
        ("CPP", cpp, _at_512k("cpp", communication)),
        ("DCPP (offline)", dcpp, _at_512k("dcpp", communication)),
        ("DCPP (wait)", dcpp, _at_512k("dcpp", communication, **DCPP["wait"])),
    ):
        rank = report(result).ranks[STRAIGHT]
        fitted: Kind = "held out" if name == "CPP" else "fit"
        figures += [
            Figure(f"{name}: chunks", result.chunks, theirs["chunks"], "chunks"),
            Figure(f"{name}: computing", rank.compute, theirs["compute"], kind=fitted),
            Figure(f"{name}: bubble", _bubble(rank), theirs["bubble"]),
            *_communication(name, rank, theirs, communication),
            _total(name, report(result), theirs, communication),
        ]
    rank_0 = report(_at_512k("cpp", communication)).ranks[0]
    return [*figures, Figure("CPP: computing, on rank 0 instead", rank_0.compute, cpp["compute"])]


def table_2a(communication: float) -> list[Figure]:
    """VPP's time; DCPP's is in Table 1."""
    theirs = paper()["table_2"]["vpp"]
    result = report(_at_512k("vpp-async", communication))
    rank = result.ranks[FOLDED]
    figures = [
        Figure("VPP: computation", rank.compute, theirs["compute"], kind="fit"),
        Figure("VPP: bubble", _bubble(rank), theirs["bubble"]),
        Figure("VPP: exposed communication", rank.collective + rank.exposed_transfer, theirs["exposed_communication"]),
        _total("VPP", result, theirs, communication),
    ]
    return figures if communication else [figures[0], figures[1], figures[3]]


def table_2b() -> list[Figure]:
    """The computation by kernels; the rebuilding of the prefix's keys and values is the paper's Slice and MatMulV3.

    The file's rebuilding is from VPP alone.
    """
    figures = []
    for name, result, rank in (
        ("DCPP (offline)", _at_512k("dcpp", 0.0), STRAIGHT),
        ("DCPP (wait)", _at_512k("dcpp", 0.0, **DCPP["wait"]), STRAIGHT),
        ("VPP", _at_512k("vpp-async", 0.0), FOLDED),
    ):
        theirs = paper()["table_2"]["vpp" if name == "VPP" else "dcpp"]
        for part, terms in KERNELS.items():
            kind: Kind = "held out" if part == "rebuild" and name != "VPP" else "fit"
            figures.append(Figure(f"{name}: {part}", _with_only(result, rank, *terms), theirs[part], kind=kind))
    return figures


def table_2c(communication: float) -> list[Figure]:
    """The bubbles by when they are."""
    figures = []
    for name, key, strategy, options, rank in (
        ("DCPP (offline)", "dcpp", "dcpp", {}, STRAIGHT),
        ("DCPP (wait)", "dcpp", "dcpp", DCPP["wait"], STRAIGHT),
        ("VPP", "vpp", "vpp-async", {}, FOLDED),
    ):
        theirs = paper()["table_2"][key]
        result = report(_at_512k(strategy, communication, **options))
        mine = result.ranks[rank]
        figures += [
            Figure(f"{name}: free", mine.free, theirs["free"]),
            Figure(f"{name}: launch stall", mine.launch_stall, theirs["launch_stall"]),
            Figure(f"{name}: bubble ratio", mine.bubble_ratio, theirs["bubble"] / theirs["total"], "%"),
        ]
    return figures


def waiting_as_communication() -> list[Figure]:
    """A reading of VPP's 30.63 s: rank 0 has 30 layers, and its waiting in receives is booked as communication."""
    theirs = paper()["table_2"]["vpp"]
    result = report(_at_512k("vpp-async", 1.0, ranges=THIRTY_ON_RANK_0))
    rank = result.ranks[FOLDED]
    waiting = rank.exposed_transfer + _bubble(rank)
    return [
        Figure("computation", rank.compute, theirs["compute"]),
        Figure(
            "communication and bubble",
            rank.collective + waiting,
            theirs["exposed_communication"] + theirs["bubble"],
        ),
        Figure("total", result.makespan, theirs["total"]),
    ]


def _at_512k(strategy: str, communication: float, **options: Any) -> Outcome:
    table = paper()["table_1"]
    return outcome(costs(communication), strategy, table["tokens"], table["chunk"], **options)


def _bubble(rank: RankBreakdown) -> float:
    return rank.launch_stall + rank.free


def _communication(name: str, rank: RankBreakdown, theirs: dict[str, float], share: float) -> list[Figure]:
    if not share:
        return []
    ours = rank.collective + rank.exposed_transfer
    return [Figure(f"{name}: exposed communication", ours, theirs["exposed_communication"], kind="fit")]


def _total(name: str, result: Report, theirs: dict[str, float], communication: float) -> Figure:
    if communication:
        return Figure(f"{name}: total", result.makespan, theirs["total"])
    less = theirs["total"] - theirs["exposed_communication"]
    return Figure(f"{name}: total less communication", result.makespan, less)


def _with_only(result: Outcome, rank: int, *terms: str) -> float:
    """The seconds of a rank's compute that these terms of the layers' costs make up."""
    case = result.case
    model = Model(case.cost.name, case.cost.layer_count)
    plan = compile_schedule(case.queue.requests, model, case.cost, case.options)
    layers = tuple(LayerCost(kind.count, **{term: getattr(kind, term) for term in terms}) for kind in case.cost.layers)
    seconds = OpCosts.of(plan, CostModel(layers)).seconds
    stages = plan.rank_stages[rank]
    return sum(sum(seconds[stage :: len(plan.stages)]) for stage in stages)
