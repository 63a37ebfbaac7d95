"""``vppc calibrate``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from vppc.cli.needs import check_beside, check_needs
from vppc.cli.number import Number
from vppc.cli.output import JSON, Output
from vppc.costs.calibration import calibrate
from vppc.costs.document import cost_json, read_cost
from vppc.costs.measurements import Reading
from vppc.costs.samples import Layers
from vppc.errors import InputError
from vppc.files import check_one_stdin, write_text
from vppc.profiles.kernel_layers import kernel_table_of
from vppc.profiles.sources import gather
from vppc.render.calibration import calibration_json, calibration_text

_RUN = re.compile(r"(?:([A-Za-z][\w. -]*):)?([1-9][0-9]{0,8})", re.ASCII)


@click.command(name="calibrate")
@click.argument("paths", metavar="MEASUREMENTS...", nargs=-1, required=True)
@click.option(
    "--layers",
    metavar="N|KIND:N,...",
    help="Layers of the model, by kind in layer order [default: the schedule's, or the most that a row has].",
)
@click.option("--topk", type=click.IntRange(0, 2**31 - 1), default=0, help="Keys that sparse attention sees.")
@click.option(
    "--select", "selections", metavar="COLUMN=VALUE", multiple=True, help="Only rows of tables with this; repeatable."
)
@click.option("--bytes-per-token", type=Number(min=0, min_open=True), help="Turns measured bytes into tokens.")
@click.option("--schedule", "schedule_file", metavar="FILE", help="The schedule that an Ascend profile is of.")
@click.option("--rank", type=click.IntRange(0), help="The rank that an Ascend profile is of [default: as named].")
@click.option("--step", metavar="N", help="The step of an Ascend profile that has several.")
@click.option("--base", metavar="FILE", help="Cost file for what was not measured at all, and for the kinds of layers.")
@click.option("--name", metavar="NAME", help="Name of the costs [default: that of --base].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a cost file", *JSON),
    help="Also write the cost file; - writes it to stdout and nothing else.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    paths: tuple[str, ...],
    layers: str | None,
    topk: int,
    selections: tuple[str, ...],
    bytes_per_token: float | None,
    schedule_file: str | None,
    rank: int | None,
    step: str | None,
    base: str | None,
    name: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Fit a cost file to measured times, robustly, and say how far to trust it.

    \b
    vppc calibrate times.csv links.csv --layers 61 -o cost.json
    vppc calibrate out/run -o cost.json
    vppc calibrate profile/rank_0 --schedule plan.json -o cost.json

    MEASUREMENTS are CSV tables (columns chunk_tokens, prefix_tokens, seconds, and if you like layers and kind; or
    tokens, seconds for transfers), journals of the runtime (folders), and Ascend profiles of one rank.

    \b
    unknown    the measurements cannot tell this constant; it is 0
    weak       its value is within two standard errors of 0
    set aside  outliers, such as the first run of a cold device: they have no weight

    A fit that is off by more than 25% for half of the times, or that needs a negative cost, is refused (status 1).
    """
    if base is not None and layers is None:
        check_beside(context, "--base, which has the kinds of layers", ["topk"])
    if output == "-":
        check_beside(context, "-o -, which writes the cost file and nothing else", ["as_json"])
    profiled = any(kernel_table_of(Path(path)) is not None for path in paths)
    check_needs(context, dict.fromkeys(("schedule_file", "rank", "step"), ("an Ascend profile", profiled)))
    check_one_stdin((*paths, base, schedule_file))
    given = read_cost(base) if base is not None else None
    known = _layers(layers, topk) if layers is not None else Layers.of(given.layers) if given is not None else None
    reading = Reading(known, topk, _selections(selections), bytes_per_token)
    measured = gather(paths, reading, schedule_file=schedule_file, rank=rank, step=step)
    calibration = calibrate(measured, name=name or "", base=given)
    if output is not None:
        write_text(output, json.dumps(cost_json(calibration.cost), indent=1) + "\n")
    if output != "-":
        shown = calibration_json(calibration)
        write_text(None, (json.dumps(shown, indent=1) if as_json else calibration_text(calibration)) + "\n")


def _layers(text: str, topk: int) -> Layers:
    names: list[str] = []
    runs: list[tuple[int, int]] = []
    for piece in text.split(","):
        match = _RUN.fullmatch(piece.strip())
        if match is None or (match[1] is None and "," in text):
            raise InputError(f"{piece!r} is not understood", place="--layers", remedy="such as 61, or dense:3,moe:58")
        name = match[1] or "layer"
        if name not in names:
            names.append(name)
        runs.append((names.index(name), int(match[2])))
    return Layers(tuple(names), (topk,) * len(names), tuple(runs))


def _selections(given: tuple[str, ...]) -> dict[str, str]:
    selections: dict[str, str] = {}
    for text in given:
        column, equals, value = text.partition("=")
        if not equals or column in selections:
            raise InputError(f"{text!r} is not understood", place="--select", remedy="COLUMN=VALUE, a column once")
        selections[column] = value
    return selections
