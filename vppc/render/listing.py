"""What ``vppc show`` prints: a headline, what is predicted, and the programs, long ones cut in the middle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set

from vppc.analysis.report import Report
from vppc.ir.assembly import instruction_lines, rank_line
from vppc.ir.instruction import WAIT, Program
from vppc.ir.schedule import Schedule
from vppc.render.tables import count, percent, printable, seconds

TAIL = 10
"""Of a program that is cut, so many instructions are shown from the end."""


def headline(schedule: Schedule) -> Iterator[str]:
    """Two lines: the strategy on its ranks and model, and what it runs."""
    model = schedule.model
    yield (
        f"{printable(schedule.strategy)}: {count(schedule.pp, 'rank')} x {count(schedule.vp, 'stage')}"
        f" of {printable(model.name)}, {count(model.layers, 'layer')}"
    )
    sizes = [chunk.tokens for chunk in schedule.chunks]
    tokens = count(max(sizes, default=0), "token")
    each = f" of {tokens}" if len(set(sizes)) < 2 else f" of {count(min(sizes))} to {tokens}"
    yield (
        f"{count(len(schedule.requests), 'request')}, {count(sum(sizes), 'token')} in {count(len(sizes), 'chunk')}"
        f"{each if sizes else ''}, {count(sum(map(len, schedule.programs)), 'instruction')}"
    )


def prediction(report: Report) -> Iterator[str]:
    """Makespan, efficiency and bound on one line, bubbles and first tokens on the next."""
    above = "at the lower bound" if report.gap < 1e-9 else f"{percent(report.gap)} above the lower bound"
    yield f"makespan {seconds(report.makespan)}, {above}, efficiency {percent(report.efficiency)}"
    bubbles = [rank.bubble_ratio for rank in report.ranks]
    low, high = percent(min(bubbles, default=0.0)), percent(max(bubbles, default=0.0))
    tokens = [ttft for ttft in report.ttft if ttft is not None]
    first, last = (seconds(min(tokens)), seconds(max(tokens))) if tokens else ("", "")
    after = f"first token after {first if first == last else f'{first} to {last}'}" if tokens else "no first token"
    yield f"bubble {low if low == high else f'{low} to {high}'} of a rank's time, {after}"


def programs(schedule: Schedule, ranks: Collection[int], chunks: Set[int] | None, limit: int | None) -> Iterator[str]:
    """The programs of ``ranks`` (empty: of all) as assembly, at most ``limit`` instructions of each (None: all).

    With ``chunks``, only the instructions that are about them.
    """
    for program in schedule.programs:
        if ranks and program.rank not in ranks:
            continue
        stages = ", ".join(
            f"s{stage.stage} layers {stage.layers[0]}..{stage.layers[1]}"
            for stage in schedule.stages
            if stage.rank == program.rank
        )
        yield f"{rank_line(program)}  ; {stages}"
        yield from _cut(schedule, program, range(len(program)) if chunks is None else _about(program, chunks), limit)
        yield ""


def _about(program: Program, chunks: Set[int]) -> list[int]:
    """The instructions that are about some chunks; a WAIT is about the chunk of its transfer."""
    rows = list(program.rows())
    return [index for index, row in enumerate(rows) if (rows[row[3]] if row[0] == WAIT else row)[1] in chunks]


def _cut(schedule: Schedule, program: Program, shown: Sequence[int], limit: int | None) -> Iterator[str]:
    left = 0 if limit is None else max(0, len(shown) - limit)
    head = len(shown) if not left else len(shown) - left - TAIL
    yield from _lines(schedule, program, shown[:head])
    if left:
        yield f"       ... {count(left)} more, shown with --all"
    yield from _lines(schedule, program, shown[head + left :])


def _lines(schedule: Schedule, program: Program, shown: Sequence[int]) -> Iterator[str]:
    """Instructions by their numbers, those in a row at once."""
    first = 0
    for last, number in enumerate(shown, start=1):
        if last == len(shown) or shown[last] != number + 1:
            yield from instruction_lines(schedule, program, shown[first], number + 1)
            first = last
