"""``vppc doctor``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

from vppc.cli.number import Number
from vppc.cli.output import JSON, Output
from vppc.environment import Package, packages
from vppc.render.tables import table

DEVICES = ("auto", "cpu", "cuda", "npu")


@click.command(name="doctor")
@click.option("--pp", type=click.IntRange(2, 1024), default=2, show_default=True, help="Processes to start.")
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="What to test.")
@click.option(
    "--timeout",
    type=Number(0.5, 86400.0),
    default=60.0,
    show_default=True,
    help="Seconds within which a fault ends the test.",
)
@click.option("--max-bytes", type=click.IntRange(4096), help="Of the largest transfer. [default: 64 MiB; CPU 8 MiB]")
@click.option("--bytes-per-token", type=click.IntRange(1), help="What a token takes on a channel, with -o.")
@click.option("--cost", metavar="FILE", help="The cost file to put what is measured into, with -o.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a cost file", *JSON),
    help="Write the cost file; - writes it to stdout and nothing else.",
)
@click.pass_context
def command(context: click.Context, /, as_json: bool, **options: object) -> None:
    """Say what is installed, and measure transfers between ranks.

    \b
    vppc doctor
    vppc doctor --pp 8 --device npu --cost cost.json --bytes-per-token 3584 -o here.json

    Processes are started on this machine, one a rank. Each says what it has and which environment settings it finds
    wrong; then every channel's latency and bandwidth are measured, alone, both ways and all at once, and how much
    compute slows down beside transfers. Over several machines: torchrun -m runtime --selftest.
    """
    found = packages()
    if any(package.name == "torch" and package.version is None for package in found):
        click.echo(_text(found, as_json))
        context.exit(1)
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None] + [
        "--json"
    ] * as_json
    sys.stdout.flush()
    # become it: whatever ends this process ends the launcher, and with it the ranks
    os.execv(sys.executable, [sys.executable, "-m", "runtime", "--selftest", *given])


def _text(found: tuple[Package, ...], as_json: bool) -> str:
    if as_json:
        return json.dumps({"packages": [asdict(package) for package in found]}, indent=1)
    rows = [
        (package.name, package.version or "not installed", package.needed, "" if package.version else package.remedy)
        for package in found
    ]
    return table(["package", "version", "needed for", "get it with"], rows, "<<<<")
