"""``vppc simulate``."""

from __future__ import annotations

import json

import click

from vppc.analysis.report import predict
from vppc.costs.document import check_layers, parse_cost, read_cost
from vppc.costs.model import CostModel
from vppc.errors import CheckFailed, InputError
from vppc.files import source_name, write_text
from vppc.ir.document import read_schedule
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule
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
    report = predict(schedule, _cost(schedule, file, cost_file))
    text = json.dumps(report.json(), indent=1, allow_nan=False) if as_json else report_text(schedule, report)
    write_text(None, text + "\n")


def _cost(schedule: Schedule, file: str, cost_file: str | None) -> CostModel:
    """The costs that the user gave, or those in the schedule; for as many layers as the model has."""
    if cost_file is not None:
        cost = read_cost(cost_file)
        check_layers(cost, schedule.model.layers, file=source_name(cost_file))
        return cost
    if "cost" not in schedule.extra:
        raise InputError("no costs are embedded", file=source_name(file), place="cost", remedy="give --cost FILE")
    cost = parse_cost(schedule.extra["cost"], source_name(file), "cost")
    check_layers(cost, schedule.model.layers, file=source_name(file), place="cost.layers")
    return cost
