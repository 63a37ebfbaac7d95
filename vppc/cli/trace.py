"""``vppc trace``."""

from __future__ import annotations

import click

from vppc.cli.output import JSON, Output
from vppc.cli.runs import read_runs
from vppc.cli.terminal import refuse_terminal
from vppc.files import write_text
from vppc.render.chrome_trace import chrome_trace


@click.command(name="trace")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option(
    "-o", "--output", metavar="FILE", type=Output("a trace", *JSON), help="Where to write the trace [default: stdout]."
)
def command(files: tuple[str, ...], cost_file: str | None, output: str | None) -> None:
    """Write the run of a schedule FILE (- is stdin) as a Chrome trace, for Perfetto or MindStudio Insight.

    \b
    vppc trace plan.json -o trace.json
    vppc trace out/run -o trace.json

    FILE may also be the folder of a journal: the trace then has the plan, if costs are known, and what was measured.
    Several files share one trace. Flows lead along the transfers; counters show buffers in use and KV tokens held.
    """
    refuse_terminal(output, "a trace")
    write_text(output, chrome_trace(read_runs(files, cost_file)))
