"""``vppc report``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path, PurePath

import click

from vppc import __version__
from vppc.cli.output import PAGES, Output
from vppc.cli.progress import progress
from vppc.cli.provenance import command_line
from vppc.cli.runs import planned, read_subject
from vppc.cli.terminal import refuse_terminal
from vppc.errors import InputError
from vppc.explain import (
    MOST_OPERATIONS,
    changes,
    outcome,
    steps,
    sweep,
    sweep_cases,
    trials,
    with_free_transfers,
)
from vppc.files import read_text, source_name, write_text
from vppc.ir.schedule import Schedule
from vppc.ir.schema import SCHEDULE
from vppc.json_text import loads
from vppc.profiles.journal import is_journal

MOST_DRAWN = 20_000
"""(chunk, stage) pairs of a schedule that a browser still moves."""
_HEAD = 1000
"""In so many characters a schedule says that it is one."""


@click.command(name="report")
@click.argument("file", metavar="FILE|JOURNAL")
@click.option("--title", help="The page's title [default: the file's name].")
@click.option(
    "--try/--no-try", "wanted", default=None, help=f"Try changes [default: up to {MOST_OPERATIONS:,} operations]."
)
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option(
    "-o", "--output", metavar="FILE", type=Output("a report", *PAGES), help="Where to write the page [default: stdout]."
)
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    title: str | None,
    wanted: bool | None,
    cost_file: str | None,
    output: str | None,
) -> None:
    """Write a page of HTML with charts, which needs no network, about a schedule, a run, a comparison or a tuning.

    \b
    vppc report plan.json -o report.html
    vppc report out/run -o report.html
    vppc compare --cost cost.json --json | vppc report - -o report.html

    FILE is a schedule, the folder of a journal, or what vppc compare --json or vppc tune --json have printed (- is
    stdin). The page has the headline numbers, a timeline to zoom, where each rank's time goes, bubbles by cause and
    phase, the critical path, chunk sizes, memory, what would help, and where all that comes from.
    """
    refuse_terminal(output, "a page")
    if importlib.util.find_spec("bokeh") is None:
        raise InputError("the charts need Bokeh, which is not installed", remedy="pip install 'vppc[report]'")

    def accept(schedule: Schedule) -> None:
        """Refuse what a browser cannot move, before it is proven, simulated and drawn."""
        operations = len(schedule.chunks) * len(schedule.stages)
        if operations > MOST_DRAWN:
            raise InputError(
                f"{operations:,} operations are too many for a page",
                file=source_name(file),
                remedy=f"at most {MOST_DRAWN:,}; vppc plot, simulate, explain and trace take any number",
            )

    name = title or f"{PurePath(source_name(file)).stem or 'run'}"
    text = None if is_journal(Path(file)) else read_text(file)
    if text is not None and text.lstrip().startswith("{") and f'"{SCHEDULE}"' not in text[:_HEAD]:
        document = loads(text, source_name(file))
        made = _origin_of_the_page(context)
        from vppc.render.html_report.studies import study_page

        if study := study_page(document, source_name(file), name, made):
            _check_of_a_schedule("a study", (("--cost", cost_file), ("--try", wanted)))
            write_text(output, study.html())
            return
    subject = read_subject(file, cost_file, text=text, accept=accept)
    if not subject.simulated:
        _check_of_a_schedule("a journal", (("--try", wanted),))
    schedule, cost = subject.run.schedule, subject.cost
    size = len(schedule.chunks) * len(schedule.stages)
    from vppc.render.html_report.page import origin
    from vppc.render.html_report.run import Studied, run_page

    studied: Studied | None = None
    if cost is not None and subject.simulated:
        studied = Studied(outcome(schedule, cost), with_free_transfers(schedule, cost))
        if wanted is True or (wanted is None and size <= MOST_OPERATIONS):
            cases = sum(1 for _ in changes(schedule, cost)) + len(sweep_cases(schedule))
            with progress("try", cases) as done:
                tried, refused = trials(schedule, cost, done)
                swept = sweep(schedule, cost, done)
            studied = Studied(studied.before, studied.free, tried, refused, swept, steps(schedule, cost))
    runs = [subject.run]
    if subject.measured is not None and cost is not None:
        runs.insert(0, planned("plan", schedule, cost))
    sources = {**origin("schedule", schedule.extra.get("provenance", {})), **_origin_of_the_page(context)}
    page = run_page(name, runs, subject.report, cost, subject.measured, studied, sources)
    write_text(output, page.html())


def _origin_of_the_page(context: click.Context) -> dict[str, str]:
    from vppc.render.html_report.page import origin  # which needs Bokeh

    return origin("page", {"command": command_line(context), "version": f"vppc {__version__}"})


def _check_of_a_schedule(what: str, given: Iterable[tuple[str, object]]) -> None:
    """Raises InputError for options that are given, and that only a schedule's page looks at."""
    for option, value in given:
        if value:
            raise InputError(f"says nothing about {what}", place=option, remedy="give a schedule, or leave it out")
