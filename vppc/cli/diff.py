"""``vppc diff``."""

from __future__ import annotations

import json

import click

from vppc.cli.output import JSON, Output, wants_json
from vppc.cli.runs import check_read_once, read_subject
from vppc.files import source_name, write_text
from vppc.render.diff import Side, compare_runs, diff_json, diff_text


@click.command(name="diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--listed", type=click.IntRange(0, 100_000), default=10, show_default=True, help="Largest differences.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file for both [default: those embedded].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a comparison", *JSON),
    help="Where to write: text, or .json [default: stdout].",
)
def command(a: str, b: str, listed: int, cost_file: str | None, as_json: bool, output: str | None) -> None:
    """Compare two schedules, or a plan and a run: A and B are schedule files (- is stdin) or folders of journals.

    \b
    vppc diff cpp.json vpp.json
    vppc diff plan.json out/run

    Says what differs: strategy, layers, chunks, buffers, price, bubbles by cause; where chunk sizes and the order of
    each rank part; and which operations moved most. Where both run the same programs, as a plan and its run do, which
    instructions took the most different time. Differences are no failure: the exit status is 0.
    """
    as_json = wants_json(output, as_json)
    check_read_once((a, b), cost_file)
    sides = [Side(subject.run, subject.report) for subject in (read_subject(each, cost_file, 0) for each in (a, b))]
    comparison = compare_runs(sides[0], sides[1], listed)
    names = source_name(a), source_name(b)
    text = json.dumps(diff_json(comparison), indent=1, allow_nan=False) if as_json else diff_text(comparison, names)
    write_text(output, text + "\n")
