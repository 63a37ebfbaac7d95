"""``vppc profile``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from vppc.cli.needs import check_needs
from vppc.costs.chosen import chosen_cost
from vppc.errors import InputError
from vppc.files import write_text
from vppc.profiles.folder import read_profile
from vppc.profiles.journal import SCHEDULE, is_journal, read_journal
from vppc.profiles.measured import Measured, measure
from vppc.render.profile import measured_json, measured_text, profile_json, profile_text


@click.command(name="profile")
@click.argument("path", metavar="DIR|FILE")
@click.option("--step", metavar="N", help="The step of a device profile that has several.")
@click.option("--cost", "cost_file", metavar="FILE", help="Journals: costs to plan with [default: the schedule's].")
@click.option("--listed", type=click.IntRange(0), default=10, show_default=True, help="Journals: differences listed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def command(
    context: click.Context, /, path: str, step: str | None, cost_file: str | None, listed: int, as_json: bool
) -> None:
    """Say where the time of a measured run went: of a runtime's journal, or of a device profile.

    \b
    vppc profile out/run
    vppc profile ASCEND_PROFILER_OUTPUT
    vppc profile cluster_step_trace_time.csv --step 2

    A journal is a folder that the runtime wrote: it is priced as vppc simulate prices a plan, by what was measured,
    and held against the plan. A device profile is an Ascend profile (step_trace_time.csv, kernel_details.csv,
    communication.json, trace_view.json), a cluster_step_trace_time.csv, a folder with folders of ranks, or a Chrome
    trace of torch.profiler; it is broken down as the paper's Tables 1 and 2 are.
    """
    journal = is_journal(Path(path))
    check_needs(
        context,
        {**dict.fromkeys(("cost_file", "listed"), ("a journal", journal)), "step": ("a device profile", not journal)},
    )
    if journal:
        measured = _measured(path, cost_file, listed)
        text = json.dumps(measured_json(measured), indent=1) if as_json else measured_text(measured)
    else:
        profile = read_profile(path, step)
        text = json.dumps(profile_json(profile), indent=1) if as_json else profile_text(profile)
    write_text(None, text + "\n")


def _measured(path: str, cost_file: str | None, listed: int) -> Measured:
    journal = read_journal(path)
    schedule_file = str(Path(path) / SCHEDULE)
    cost = chosen_cost(journal.schedule, schedule_file, cost_file)
    if cost is None:
        raise InputError("no costs are embedded", file=schedule_file, place="cost", remedy="give --cost FILE")
    return measure(journal, cost, listed)
