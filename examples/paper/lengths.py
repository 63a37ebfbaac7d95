"""Figures 1, 4 and 8: prompt lengths and chunk sizes."""

from __future__ import annotations

from examples.paper.deepseek import DCPP, LENGTHS, SIZES, gain, length, outcome, paper, report, row
from examples.paper.figures import Figure
from vppc.costs.model import CostModel
from vppc.render.tables import count, table


def figure_1a(cost: CostModel) -> list[Figure]:
    """What DCPP gains over CPP, each at its best budget."""
    theirs = paper()["figure_1a_dcpp_over_cpp"]
    return [
        Figure(
            f"DCPP ({mode}) over CPP, {length(tokens)}",
            gain(row(cost, "dcpp", tokens, **options), row(cost, "cpp", tokens)),
            _range(theirs[str(tokens)]),
            "%",
        )
        for mode, options in DCPP.items()
        if "cold" not in mode
        for tokens in LENGTHS
    ]


def figure_1b(cost: CostModel) -> list[Figure]:
    """A prompt in chunks of 32K: CPP as the caption has it, 128K, and at the length that its eight steps mean, 256K."""
    theirs = paper()["figure_1b"]
    size = theirs["chunk"]
    printed = outcome(cost, "cpp", theirs["tokens_as_printed"], size)
    figures = [
        Figure("CPP, 128K as printed: steps", printed.chunks, theirs["cpp"]["chunks"], "chunks"),
        Figure("CPP, 128K as printed: end", printed.makespan, theirs["cpp"]["total"]),
    ]
    cpp = outcome(cost, "cpp", theirs["tokens_that_fit"], size)
    figures += [
        Figure("CPP, 256K: steps", cpp.chunks, theirs["cpp"]["chunks"], "chunks"),
        Figure("CPP, 256K: end", cpp.makespan, theirs["cpp"]["total"]),
    ]
    for mode in ("offline", "wait, cold", "wait"):
        dcpp = outcome(cost, "dcpp", theirs["tokens_that_fit"], size, **DCPP[mode])
        shorter = 1 - theirs["dcpp"]["total"] / theirs["cpp"]["total"]
        figures += [
            Figure(f"DCPP ({mode}), 256K: steps", dcpp.chunks, theirs["dcpp"]["chunks"], "chunks"),
            Figure(f"DCPP ({mode}), 256K: end", dcpp.makespan, theirs["dcpp"]["total"]),
            Figure(f"DCPP ({mode}), 256K: shorter than CPP by", 1 - dcpp.makespan / cpp.makespan, shorter, "%"),
        ]
    return figures


def figure_4(cost: CostModel) -> list[Figure]:
    """What VPP gains, each strategy at its best chunk size."""
    theirs = paper()["figure_4"]
    vpp = {tokens: row(cost, "vpp-async", tokens) for tokens in LENGTHS}
    over_cpp = {tokens: gain(vpp[tokens], row(cost, "cpp", tokens)) for tokens in LENGTHS}
    figures = [Figure(f"VPP over CPP, {length(tokens)}", part, None, "%") for tokens, part in over_cpp.items()]
    figures.append(Figure("VPP over CPP, at most", max(over_cpp.values()), theirs["vpp_over_cpp_at_most"], "%"))
    for mode, options in DCPP.items():
        if "cold" not in mode:
            figures += [
                Figure(
                    f"VPP over DCPP ({mode}), {length(int(tokens))}",
                    gain(vpp[int(tokens)], row(cost, "dcpp", int(tokens), **options)),
                    part,
                    "%",
                )
                for tokens, part in theirs["vpp_over_dcpp"].items()
            ]
    return figures


def figure_8(cost: CostModel) -> str:
    """VPP's throughput by chunk size, as a part of that with 24K; the best of a length marked.

    The paper shows it as a picture, without numbers.
    """
    normal = paper()["figure_8"]["normal"]
    lines = []
    for tokens in paper()["figure_8"]["tokens"]:
        contest = row(cost, "vpp-async", tokens)
        unit = report(contest.outcomes[SIZES.index(normal)]).makespan
        cells = (f"{unit / o.makespan:.3f}" + ("*" if o is contest.best else " ") for o in contest.outcomes)
        lines.append((length(tokens), *cells))
    return table(("prompt", *map(count, SIZES)), lines, align=">")


def _range(value: float | list[float]) -> float | tuple[float, float]:
    return (value[0], value[1]) if isinstance(value, list) else value
