"""A comparison of strategies as text: makespans by chunk size, the best marked, and what one gains over the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from vppc.compare import Outcome, Row, gain
from vppc.render.tables import count, percent, printable, seconds, table

_RANKS_SHOWN = 4
"""Of more ranks, only the least and the greatest bubble are shown."""


def comparison_text(rows: Sequence[Row], subject: str) -> str:
    """For every cost the makespans, and the gains of the contestant ``subject`` over others; ends without a newline."""
    blocks: list[str] = []
    for _, group in groupby(rows, key=lambda row: row.case.cost):
        mine = list(group)
        blocks.append(f"{_heading(mine[0])}\n\n{_makespans(mine)}")
        if any(row.case.contestant != subject for row in mine):
            blocks.append(f"{subject} gains over\n\n{_gains(mine, subject)}")
    blocks += ["\n".join(refusals)] if (refusals := list(dict.fromkeys(_refusals(rows)))) else []
    return "\n\n".join(blocks)


def _heading(row: Row) -> str:
    case = row.case
    prompts = "one prompt" if case.prompts == 1 else count(case.prompts, "equal prompt")
    name = printable(case.cost.name) or "unnamed costs"
    return f"{name}, {count(case.options.pp, 'rank')}: makespan of {prompts} by chunk size (* best)"


def _makespans(rows: Sequence[Row]) -> str:
    sizes = [count(outcome.case.options.chunk_size) for outcome in rows[0].outcomes]
    return table(
        ("prompt", "strategy", *sizes, "chunks", "tokens/s", "efficiency", "bubble of ranks"),
        (
            (count(row.case.tokens), row.case.contestant, *(_makespan(o, row) for o in row.outcomes), *_best(row.best))
            for row in rows
        ),
        align="><",
    )


def _makespan(outcome: Outcome, row: Row) -> str:
    if outcome.report is None:
        return "refused"
    return seconds(outcome.makespan) + ("*" if outcome is row.best else " ")


def _best(best: Outcome) -> tuple[str, str, str, str]:
    if best.report is None:
        return ("",) * 4
    bubbles = [rank.bubble_ratio for rank in best.report.ranks]
    if len(bubbles) > _RANKS_SHOWN:
        shown = f"{percent(min(bubbles))} to {percent(max(bubbles))}"
    else:
        shown = " ".join(map(percent, bubbles))
    rate = f"{best.throughput:,.0f}" if best.throughput >= 100 else f"{best.throughput:.3g}"
    return count(best.chunks), rate, percent(best.report.efficiency), shown


def _gains(rows: Sequence[Row], subject: str) -> str:
    sizes = [count(outcome.case.options.chunk_size) for outcome in rows[0].outcomes]
    lines = []
    for tokens, group in groupby(rows, key=lambda row: row.case.tokens):
        contest = list(group)
        ours = next(row for row in contest if row.case.contestant == subject)
        for other in contest:
            if other is not ours:
                equal = (gain(a, b) for a, b in zip(ours.outcomes, other.outcomes, strict=True))
                shown = (_signed(part) for part in (*equal, ours.gain_over(other)))
                lines.append((count(tokens), other.case.contestant, *shown))
    return table(("prompt", "strategy", *sizes, "each at its best"), lines, align="><")


def _signed(part: float | None) -> str:
    return "" if part is None else f"{100 * part:+.1f}%"


def _refusals(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for outcome in row.outcomes:
            if outcome.refusal:
                yield f"refused: {row.case.contestant}: {outcome.refusal}"
