"""``vppc shadow``."""

from __future__ import annotations

import json

import click

from vppc.cli.number import COUNT
from vppc.cli.output import JSON, Output, wants_json
from vppc.cli.progress import progress
from vppc.costs.calibration import calibrate
from vppc.costs.document import cost_json, read_cost
from vppc.errors import InputError
from vppc.files import write_text
from vppc.passes.strategies import STRATEGIES, Options
from vppc.profiles.shadow import read_shadow
from vppc.render.shadow import shadow_json, shadow_text
from vppc.serving.contest import contest, trials
from vppc.serving.simulate import Setting
from vppc.serving.workloads import Workload


@click.command(name="shadow")
@click.argument("folder", metavar="FOLDER")
@click.option("--pp", type=click.IntRange(1, 1024), help="Pipeline ranks [default: vLLM's, or 2 where it has one].")
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    default=("cpp", "vpp-packed"),
    show_default=True,
    help="Repeatable.",
)
@click.option("--chunk-size", "sizes", type=COUNT, multiple=True, help="Repeatable [default: vLLM's batch size].")
@click.option("--base", metavar="FILE", help="Cost file for what was not measured: transfers, the embedding, the head.")
@click.option(
    "--costs", "costs_file", metavar="FILE", type=Output("a cost file", *JSON), help="Also write the cost file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a comparison", *JSON),
    help="Where to write: text, or .json [default: stdout].",
)
def command(
    folder: str,
    pp: int | None,
    strategies: tuple[str, ...],
    sizes: tuple[int, ...],
    base: str | None,
    costs_file: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Say what folding would have gained on the traffic that a vLLM server saw in shadow mode.

    \b
    python -m vllm.entrypoints.openai.api_server ... \\
        --additional-config '{"vppc": {"mode": "shadow", "journal": "out/shadow"}}'
    vppc shadow out/shadow --chunk-size 2K --chunk-size 8K

    vLLM serves as it always does, and writes down which batch each rank computed when. From that come the costs of
    the model on this machine, and with these the same requests are served in the simulator under each strategy.
    The gains are of the last strategy named.
    """
    as_json = wants_json(output, as_json)
    shadow = read_shadow(folder)
    calibration = calibrate(shadow.measurements(), base=read_cost(base) if base is not None else None)
    ranks = pp or max(len(shadow.ranks), 2)
    settings = [
        Setting(calibration.cost, Options(strategy=strategy, pp=ranks)) for strategy in dict.fromkeys(strategies)
    ]
    workload = Workload(shadow.model, shadow.requests)
    tried = list(trials([workload], settings, list(dict.fromkeys(sizes or (shadow.chunk_size,)))))
    with progress("shadow", len(tried)) as done:
        entries = contest(tried, done=done)
    if all(entry.best.report is None for entry in entries):
        raise InputError(f"all trials are refused, the first because: {entries[0].best.refusal}")
    if costs_file is not None:
        write_text(costs_file, json.dumps(cost_json(calibration.cost), indent=1) + "\n")
    if as_json:
        text = json.dumps(shadow_json(shadow, calibration, entries), indent=1, allow_nan=False)
    else:
        text = shadow_text(shadow, calibration, entries)
    write_text(output, text + "\n")
