"""How far DCPP depends on what its engine measures, on what it served before, and on communication."""

from __future__ import annotations

from examples.paper.deepseek import DCPP, LENGTHS, SIZES, costs, gain, length, outcome, paper, row
from vppc.compare import gain as gain_at
from vppc.render.tables import table

COMMUNICATION = (0.0, 0.4, 1.0)
"""Parts of the exposed communication of Table 1. 0.4 makes 96 chunks of ``wait``, where the paper has 97: chosen so."""


def sensitivity() -> str:
    """Chunk counts, what DCPP gains over CPP at each one's best budget, and VPP over DCPP at 512K, for every way."""
    headers = (
        *("communication", "measured", "512K by 24K", "256K by 32K"),
        *(f"over CPP, {length(tokens)}" for tokens in LENGTHS),
        *("VPP over, best", "VPP over, 24K"),
    )
    lines = [_line(share, mode) for share in COMMUNICATION for mode in DCPP]
    return table(headers, [*lines, _printed_line()], align="><")


def _line(share: float, mode: str) -> tuple[str, ...]:
    one, two = paper()["table_1"], paper()["figure_1b"]
    cost, options = costs(share), DCPP[mode]
    vpp, dcpp = row(cost, "vpp-async", one["tokens"]), row(cost, "dcpp", one["tokens"], **options)
    at = SIZES.index(one["chunk"])
    fig_1b = outcome(cost, "dcpp", two["tokens_that_fit"], two["chunk"], **options)
    over_cpp = [gain(row(cost, "dcpp", tokens, **options), row(cost, "cpp", tokens)) for tokens in LENGTHS]
    gains = (*over_cpp, gain(vpp, dcpp), gain_at(vpp.outcomes[at], dcpp.outcomes[at]))
    return f"{share:g}", mode, f"{dcpp.outcomes[at].chunks}", f"{fig_1b.chunks}", *map(_signed, gains)


def _printed_line() -> tuple[str, ...]:
    one, two, over_cpp = paper()["table_1"], paper()["figure_1b"], paper()["figure_1a_dcpp_over_cpp"]
    best = paper()["figure_4"]["vpp_over_dcpp"][str(one["tokens"])]
    at_24k = one["dcpp"]["total"] / paper()["table_2"]["vpp"]["total"] - 1
    return (
        *("", "the paper", f"{one['dcpp']['chunks']}", f"{two['dcpp']['chunks']}"),
        *(_signed(over_cpp[str(tokens)]) for tokens in LENGTHS),
        *(_signed(best), _signed(at_24k)),
    )


def _signed(part: float | list[float] | None) -> str:
    if part is None:
        return ""
    if isinstance(part, list):
        return " to ".join(f"{100 * end:+.1f}" for end in part) + "%"
    return f"{100 * part:+.1f}%"
