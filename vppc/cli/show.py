"""``vppc show``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, NamedTuple

import click

from vppc.analysis.report import Report, report
from vppc.analysis.timing import Timing, simulate
from vppc.cli.needs import check_beside
from vppc.cli.number import MOMENT
from vppc.costs.chosen import chosen_cost
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import CheckFailed, InputError
from vppc.files import source_name, write_text
from vppc.ir.assembly import instruction_lines
from vppc.ir.document import read_schedule
from vppc.ir.instruction import FORWARD
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule
from vppc.render.listing import headline, prediction, programs
from vppc.render.tables import seconds
from vppc.render.timeline import ASCII, UNICODE, timeline

LISTED = 40
"""So many instructions of a rank are shown unless all are asked for."""


class Run(NamedTuple):
    """A simulated run, and what it comes to."""

    timing: Timing
    report: Report


@click.command(name="show")
@click.argument("file", metavar="FILE")
@click.option("--programs/--no-programs", "listing", default=True, help="Show the programs [default: yes].")
@click.option("--timeline/--no-timeline", "drawing", default=True, help="Show the timeline [default: yes].")
@click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="Only this rank's program; repeatable."
)
@click.option("--all", "everything", is_flag=True, help=f"All instructions, not just {LISTED} of each rank.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option("--width", type=click.IntRange(40, 10_000), help="Columns of the timeline [default: the terminal's].")
@click.option("--from", "first", type=MOMENT, metavar="TIME", help="Where the timeline begins: 1.5, 20ms.")
@click.option("--to", "last", type=MOMENT, metavar="TIME", help="Where the timeline ends [default: with the run].")
@click.option("--ascii", "plain", is_flag=True, help="Draw with ASCII characters only.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the output.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: programs, prediction, and when operations run.")
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    listing: bool,
    drawing: bool,
    ranks: tuple[int, ...],
    everything: bool,
    cost_file: str | None,
    width: int | None,
    first: float | None,
    last: float | None,
    plain: bool,
    color: str,
    as_json: bool,
) -> None:
    """Print the programs of the schedule FILE (- is stdin) as assembly, and a timeline of their run.

    A schedule that breaks rules is listed too, but has no timeline; the exit status is then 1.
    """
    drawn = ["width", "first", "last", "plain", "color"]
    for other, there, idle in (
        ("--json", as_json, [*drawn, "everything"]),
        ("--no-timeline", not drawing, drawn),
        ("--no-programs", not listing, ["ranks", "everything"]),
    ):
        if there:
            check_beside(context, other, idle)
    schedule = read_schedule(file)
    for rank in ranks:
        if rank >= schedule.pp:
            raise InputError(f"there is no rank {rank}", place="--rank", remedy=f"a number below {schedule.pp}")
    findings = check(schedule)
    cost = chosen_cost(schedule, file, cost_file) if not findings else None
    run = _run(schedule, cost) if cost is not None else None
    if as_json:
        document = _summary(schedule, run)
        if listing:
            document["programs"] = list(_listed(schedule, ranks))
        if drawing:
            document["timeline"] = None if run is None else list(_operations(schedule, run.timing))
        write_text(None, json.dumps(document, allow_nan=False) + "\n")
    else:
        lines = [*headline(schedule), *(prediction(run.report) if run is not None else ()), ""]
        if listing:
            lines += programs(schedule, ranks, None if everything else LISTED)
        if drawing and run is not None:
            glyphs = UNICODE if not plain and _encodable("".join(astuple(UNICODE))) else ASCII
            lines.append(
                timeline(
                    schedule,
                    run.timing,
                    width=width or _columns(),
                    color=wants_color(color),
                    glyphs=glyphs,
                    window=_window(first, last, run.report.makespan),
                )
            )
        elif drawing and not findings:
            lines.append("no timeline: no costs are embedded; give --cost FILE")
        write_text(None, (f"{line}\n" for line in lines))
    if findings:
        raise CheckFailed(findings, file=source_name(file))


def _run(schedule: Schedule, cost: CostModel) -> Run:
    costs = OpCosts.of(schedule, cost)
    timing = simulate(schedule, costs, cost.interference)
    return Run(timing, report(schedule, cost, costs, timing))


def _summary(schedule: Schedule, run: Run | None) -> dict[str, Any]:
    return {
        "strategy": schedule.strategy,
        "model": schedule.model.name,
        "pp": schedule.pp,
        "vp": schedule.vp,
        "requests": len(schedule.requests),
        "chunks": len(schedule.chunks),
        "instructions": sum(map(len, schedule.programs)),
        "prediction": None if run is None else run.report.json(),
    }


def _listed(schedule: Schedule, ranks: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Every program with its instructions as assembly, without the numbers and columns that are for the eye."""
    for program in schedule.programs:
        if not ranks or program.rank in ranks:
            lines = instruction_lines(schedule, program)
            texts = [" ".join(line.split(";")[0].split()[1:]) for line in lines]
            yield {"rank": program.rank, "buffers": program.buffers, "instructions": texts}


def _operations(schedule: Schedule, timing: Timing) -> Iterator[list[dict[str, Any]]]:
    """For every rank its operations, with their seconds."""
    for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True):
        yield [
            {"chunk": row[1], "stage": row[2], "start": start, "end": end}
            for row, start, end in zip(program.rows(), starts, ends, strict=True)
            if row[0] == FORWARD
        ]


def _window(first: float | None, last: float | None, makespan: float) -> tuple[float, float] | None:
    """The part of the run to draw; None for all of it. Raises InputError where there is nothing of it."""
    if first is None and last is None:
        return None
    begin, end = first or 0.0, min(makespan, last if last is not None else makespan)
    if begin >= end:
        problem = f"nothing of the run of {seconds(makespan)} lies from {seconds(begin)} to {seconds(end)}"
        raise InputError(problem, place="--from, --to", remedy="an earlier and a later time")
    return begin, end


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def wants_color(color: str) -> bool:
    """Colour as asked for; by itself on a terminal that can, unless NO_COLOR is set (https://no-color.org)."""
    if color != "auto":
        return color == "always"
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _encodable(text: str) -> bool:
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "ascii")
    except UnicodeEncodeError:
        return False
    return True
