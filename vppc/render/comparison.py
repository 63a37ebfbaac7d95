"""A comparison of strategies as text: makespans by chunk size, the best marked, and what one gains over the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from vppc.compare import Outcome, Row, gain
from vppc.passes.strategies import run_ahead
from vppc.render.report import EFFICIENCY
from vppc.render.tables import count, percent, printable, seconds, signed_percent, table

_RANKS_SHOWN = 4
"""Of more ranks, only the least and the greatest bubble are shown."""


def comparison_text(rows: Sequence[Row], subject: str) -> str:
    """For every cost the makespans, and the gains of the contestant ``subject`` over others; ends without a newline."""
    blocks: list[str] = []
    for _, group in groupby(rows, key=lambda row: row.case.cost):
        mine = list(group)
        blocks.append(f"{_heading(mine)}\n\n{_makespans(mine)}\n\n{EFFICIENCY}\n{_ahead(mine)}")
        blocks += ["\n".join(edges)] if (edges := list(_edges(mine))) else []
        blocks += ["\n".join(twins)] if (twins := list(_twins(mine))) else []
        if any(row.case.contestant != subject for row in mine):
            blocks.append(f"{subject} gains over\n\n{_gains(mine, subject)}")
        blocks += [verdict] if (verdict := _verdict(mine)) else []
    blocks += ["\n".join(refusals)] if (refusals := list(dict.fromkeys(_refusals(rows)))) else []
    return "\n\n".join(blocks)


def _heading(rows: Sequence[Row]) -> str:
    case = rows[0].case
    name = printable(case.cost.name) or "unnamed costs"
    queues = {row.case.queue.name: len(row.case.queue.requests) for row in rows}
    prompts = "all prompts"
    if all(requests == 1 for requests in queues.values()):
        prompts = "one prompt" if len(queues) == 1 else "each prompt alone"
    return f"{name}, {count(case.options.pp, 'rank')}: makespan of {prompts} by chunk size (* best)"


def _ahead(rows: Sequence[Row]) -> str:
    """How far each strategy may run ahead, which vppc serve-sim bounds otherwise."""
    found: dict[int, dict[str, None]] = {}
    for row in rows:
        if row.best.report is not None:
            found.setdefault(run_ahead(row.case.options), {})[row.case.options.strategy] = None
    bounds = "; ".join(f"{', '.join(names)} {count(ahead)}" for ahead, names in sorted(found.items()))
    return f"chunks that may run ahead: {bounds} (vppc serve-sim: cpp and dcpp {rows[0].case.options.pp}, as engines)"


def _edges(rows: Sequence[Row]) -> Iterator[str]:
    """Where the best chunk size is the smallest or the largest one, so that others may be better still."""
    for edge, end in (("smaller", "smallest"), ("larger", "largest")):
        found: dict[str, list[str]] = {}
        for row in rows:
            if row.edge == edge:
                found.setdefault(row.case.contestant, []).append(row.case.queue.name)
        if found:
            where = "; ".join(f"{contestant} at {', '.join(queues)}" for contestant, queues in found.items())
            yield f"{edge} chunks may be better still (--chunk-size): the {end} are best for {where}"


def _twins(rows: Sequence[Row]) -> Iterator[str]:
    """Where dynamic chunks at their best are cpp to every digit, so that no gain over them is one over dynamic ones."""
    for queue, group in groupby(rows, key=lambda row: row.case.queue):
        contest = list(group)
        fixed = {o.case.options.chunk_size: o for row in contest if row.case.contestant == "cpp" for o in row.outcomes}
        for row in contest:
            best, options = row.best, row.best.case.options
            twin = fixed.get(options.chunk_size)
            if options.strategy.startswith("dcpp") and twin is not None and best.report == twin.report is not None:
                yield (
                    f"{row.case.contestant} is cpp for {printable(queue.name)}, to every digit in its best chunks of "
                    f"{count(options.chunk_size)}: none is cut below --min-chunk, {count(options.smallest_chunk)}"
                )


def _makespans(rows: Sequence[Row]) -> str:
    sizes = [count(outcome.case.options.chunk_size) for outcome in rows[0].outcomes]
    return table(
        ("queue", "strategy", *sizes, "chunks", "tokens/s", "efficiency", "bubble of ranks"),
        (
            (row.case.queue.name, row.case.contestant, *(_makespan(o, row) for o in row.outcomes), *_best(row.best))
            for row in rows
        ),
        align="><",
    )


def _makespan(outcome: Outcome, row: Row) -> str:
    if outcome.report is None:
        return "no room" if outcome.excess else "refused"
    return seconds(outcome.makespan) + ("*" if outcome is row.best else " ")


def _best(best: Outcome) -> tuple[str, str, str, str]:
    if best.report is None:
        return ("",) * 4
    bubbles = [rank.bubble_ratio for rank in best.report.ranks]
    shown = " ".join(map(percent, bubbles))
    if len(bubbles) > _RANKS_SHOWN:
        low, high = percent(min(bubbles)), percent(max(bubbles))
        shown = low if low == high else f"{low} to {high}"
    rate = f"{best.throughput:,.0f}" if best.throughput >= 100 else f"{best.throughput:.3g}"
    return count(best.chunks), rate, percent(best.report.efficiency), shown


def _gains(rows: Sequence[Row], subject: str) -> str:
    sizes = [count(outcome.case.options.chunk_size) for outcome in rows[0].outcomes]
    lines = []
    for queue, group in groupby(rows, key=lambda row: row.case.queue):
        contest = list(group)
        ours = next(row for row in contest if row.case.contestant == subject)
        for other in contest:
            if other is not ours:
                equal = (gain(a, b) for a, b in zip(ours.outcomes, other.outcomes, strict=True))
                shown = (_signed(part) for part in (*equal, ours.gain_over(other)))
                lines.append((queue.name, other.case.contestant, *shown))
    return table(("queue", "strategy", *sizes, "each at its best"), lines, align="><")


def _verdict(rows: Sequence[Row]) -> str:
    """Which contestant is the quickest for which queue, by how much over the next; empty where there is no next."""
    won: dict[str, list[str]] = {}
    for queue, group in groupby(rows, key=lambda row: row.case.queue):
        ranked = sorted((row for row in group if row.best.report is not None), key=lambda row: row.best.makespan)
        if len(ranked) > 1:
            best, second, *_ = ranked
            ahead = f"{_signed(best.gain_over(second))} over {second.case.contestant}"
            won.setdefault(best.case.contestant, []).append(f"{printable(queue.name)} ({ahead})")
    return "quickest: " + "; ".join(f"{name} for {', '.join(where)}" for name, where in won.items()) if won else ""


def _signed(part: float | None) -> str:
    return "" if part is None else signed_percent(part)


def _refusals(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        unfit = [outcome for outcome in row.outcomes if outcome.excess]
        if unfit:
            sizes = ", ".join(
                f"{count(outcome.case.options.chunk_size)} by {outcome.excess / 2**30:.2f} GiB" for outcome in unfit
            )
            yield f"no room on a device: {row.case.contestant}, {row.case.queue.name}, in chunks of {sizes}"
        for outcome in row.outcomes:
            if outcome.refusal and not outcome.excess:
                yield f"refused: {row.case.contestant}: {outcome.refusal}"
    if any(outcome.excess for row in rows for outcome in row.outcomes):
        yield "  hint: vppc compile with the same model, device and chunk size names what would fit"
