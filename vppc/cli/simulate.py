"""``vppc simulate``."""

from __future__ import annotations

import json

import click

from vppc.analysis.report import predict
from vppc.costs.chosen import chosen_cost
from vppc.errors import CheckFailed, InputError
from vppc.files import source_name, write_text
from vppc.ir.document import read_schedule
from vppc.ir.rules import check
from vppc.render.report import report_text


@click.command(name="simulate")
@click.argument("file", metavar="FILE")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(file: str, cost_file: str | None, as_json: bool) -> None:
    """Price a schedule FILE (- is stdin): makespan, bound, TTFT, and where each rank's time goes.

    \b
    efficiency        the work of the unchunked prompts over all ranks, to the makespan
    lower bound       no order of these chunks on these stages is quicker
    exposed transfer  waiting for a transfer that both its ends have posted
    launch stall      waiting for the first input; with free, the bubble
    hidden transfer   transfers beside everything else
    """
    schedule = read_schedule(file)
    findings = check(schedule)
    if findings:
        raise CheckFailed(findings, file=source_name(file))
    cost = chosen_cost(schedule, file, cost_file)
    if cost is None:
        raise InputError("no costs are embedded", file=source_name(file), place="cost", remedy="give --cost FILE")
    report = predict(schedule, cost)
    if as_json:
        names = [request.id for request in schedule.requests]  # of what ttft has, in the same order
        text = json.dumps({**report.json(), "requests": names}, indent=1, allow_nan=False)
    else:
        text = report_text(schedule, report)
    write_text(None, text + "\n")
