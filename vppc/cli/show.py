"""``vppc show``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
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
from vppc.render.report import ttft_table
from vppc.render.summary import MOST_ROWS, chunk_spans, chunks_table, parts_of, ranks_table, requests_table
from vppc.render.tables import printable, seconds
from vppc.render.timeline import ASCII, UNICODE, timeline

LISTED = 40
"""So many instructions of a rank are shown unless all are asked for."""


class Run(NamedTuple):
    """A simulated run, and what it comes to."""

    timing: Timing
    report: Report


@click.command(name="show")
@click.argument("file", metavar="FILE")
@click.option(
    "--programs/--no-programs",
    "listing",
    default=None,
    help=f"Show the programs [default: up to {LISTED} instructions a rank, and otherwise a summary of them].",
)
@click.option("--timeline/--no-timeline", "drawing", default=True, help="Show the timeline [default: yes].")
@click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="Show this rank's program alone; repeatable."
)
@click.option(
    "--request", "wanted", metavar="ID", multiple=True, help="Show only what is about this request; repeatable."
)
@click.option("--all", "everything", is_flag=True, help="Leave nothing out: no instruction, no line of a table.")
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
    listing: bool | None,
    drawing: bool,
    ranks: tuple[int, ...],
    wanted: tuple[str, ...],
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

    \b
    vppc show plan.json                              long programs: a line a rank and a request
    vppc show plan.json --request r3                 its chunks, and the timeline while it runs
    vppc show plan.json --programs --request r3      its instructions
    vppc show plan.json --rank 1 --all               all instructions of rank 1
    vppc show plan.json --no-programs --from 2s      the timeline, closer

    A schedule that breaks rules is listed too, but has no timeline; the exit status is then 1.
    """
    drawn = ["width", "first", "last", "plain", "color"]
    for other, there, idle in (
        ("--json", as_json, [*drawn, "everything", "wanted"]),
        ("--no-timeline", not drawing, drawn),
        ("--no-programs", listing is False, ["ranks", "everything"]),
        ("--no-programs and --no-timeline", listing is False and not drawing, ["wanted"]),
    ):
        if there:
            check_beside(context, other, idle)
    schedule = read_schedule(file)
    for rank in ranks:
        if rank >= schedule.pp:
            raise InputError(f"there is no rank {rank}", place="--rank", remedy=f"a number below {schedule.pp}")
    requests = _requests(schedule, wanted)
    findings = check(schedule)
    cost = chosen_cost(schedule, file, cost_file) if not findings else None
    run = _run(schedule, cost) if cost is not None else None
    if as_json:
        document = _summary(schedule, run)
        if listing is not False:
            document["programs"] = list(_listed(schedule, ranks))
        if drawing:
            document["timeline"] = None if run is None else list(_operations(schedule, run.timing))
        write_text(None, json.dumps(document, allow_nan=False) + "\n")
    else:
        lines = [*headline(schedule), *(prediction(run.report) if run is not None else ()), ""]
        if listing or (listing is None and (ranks or findings or _are_short(schedule))):
            chunks = {chunk for request in requests for chunk, _ in parts_of(schedule)[request]} if wanted else None
            lines += programs(schedule, ranks, chunks, None if everything else LISTED)
        elif listing is None:
            lines += _summarized(schedule, requests, run, everything)
        if drawing and run is not None:
            glyphs = UNICODE if not plain and _encodable("".join(astuple(UNICODE))) else ASCII
            lines.append(
                timeline(
                    schedule,
                    run.timing,
                    width=width or _columns(),
                    color=wants_color(color),
                    glyphs=glyphs,
                    window=_window(first, last, run.report.makespan)
                    or (_while_running(schedule, run, requests) if wanted else None),
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


def _requests(schedule: Schedule, wanted: Sequence[str]) -> list[int]:
    """The requests by their ids. Raises InputError for one that is not there."""
    ids = [request.id for request in schedule.requests]
    for each in wanted:
        if each not in ids:
            raise InputError(f"there is no request {each!r}", place="--request", remedy=f"an id: {_some(ids)}")
    return [index for index, each in enumerate(ids) if each in wanted]


def _some(ids: Sequence[str]) -> str:
    return ", ".join([*map(printable, ids[:3]), *(["..."] if len(ids) > 3 else [])])


def _are_short(schedule: Schedule) -> bool:
    """Whether all programs are listed as they are."""
    return all(len(program) <= LISTED for program in schedule.programs)


def _summarized(schedule: Schedule, requests: Sequence[int], run: Run | None, everything: bool) -> Iterator[str]:
    """A verified schedule in tables: its ranks and requests, or of some ``requests`` the chunks."""
    parts = parts_of(schedule)
    spans = chunk_spans(schedule, run.timing) if run is not None else None
    priced = (spans, run.report) if spans is not None and run is not None else None
    chosen = requests or range(len(schedule.requests))
    if not requests:
        yield ranks_table(schedule, whole=everything) + "\n"
    yield requests_table(schedule, parts, priced, chosen, whole=everything) + "\n"
    if not requests and run is not None and len(schedule.requests) > MOST_ROWS:
        yield ttft_table(run.report) + "\n"
    for request in requests:
        yield chunks_table(parts[request], spans, whole=everything) + "\n"
    yield "closer: --programs, --rank R, --request ID, --from TIME, --to TIME\n"


def _while_running(schedule: Schedule, run: Run, requests: Sequence[int]) -> tuple[float, float] | None:
    """From when the first of the requests begins until the last has ended; None where nothing of them runs."""
    parts, spans = parts_of(schedule), chunk_spans(schedule, run.timing)
    theirs = [spans[chunk] for request in requests for chunk, _ in parts[request]]
    return (min(begin for begin, _ in theirs), max(end for _, end in theirs)) if theirs else None


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
