"""What ``vppc show`` prints: a headline, what is predicted, and the programs, long ones cut in the middle."""

from __future__ import annotations

from collections.abc import Iterator

from vppc.analysis.report import Report
from vppc.ir.assembly import instruction_lines, rank_line
from vppc.ir.instruction import Program
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
    first, last = (seconds(min(tokens)), seconds(max(tokens))) if tokens else ("none", "none")
    yield (
        f"bubble {low if low == high else f'{low} to {high}'} of a rank's time,"
        f" first token after {first if first == last else f'{first} to {last}'}"
    )


def programs(schedule: Schedule, ranks: tuple[int, ...], limit: int | None) -> Iterator[str]:
    """The programs of ``ranks`` (empty: of all) as assembly, at most ``limit`` instructions of each (None: all)."""
    for program in schedule.programs:
        if ranks and program.rank not in ranks:
            continue
        stages = ", ".join(
            f"s{stage.stage} layers {stage.layers[0]}..{stage.layers[1]}"
            for stage in schedule.stages
            if stage.rank == program.rank
        )
        yield f"{rank_line(program)}  ; {stages}"
        yield from _cut(schedule, program, limit)
        yield ""


def _cut(schedule: Schedule, program: Program, limit: int | None) -> Iterator[str]:
    if limit is None or len(program) <= limit:
        yield from instruction_lines(schedule, program)
        return
    head, tail = limit - TAIL, len(program) - TAIL
    yield from instruction_lines(schedule, program, 0, head)
    yield f"       ... {count(tail - head)} more, shown with --all"
    yield from instruction_lines(schedule, program, tail)
