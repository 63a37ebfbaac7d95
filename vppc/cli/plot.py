"""``vppc plot``."""

from __future__ import annotations

import click

from vppc.cli.output import PICTURES, Output, wrong_format
from vppc.cli.picture import THEMES, is_picture, write_picture
from vppc.cli.runs import read_runs
from vppc.cli.terminal import refuse_terminal
from vppc.render.plot import Style, plot

DRAWING = "a drawing"


@click.command(name="plot")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--view",
    type=click.Choice(["logic", "timeline"]),
    default="logic",
    show_default=True,
    help="Transfers as arrows, or in lanes of their own.",
)
@click.option("--width", type=click.IntRange(300, 20_000), default=1200, show_default=True, help="In pixels.")
@click.option("--rows", type=click.IntRange(1, 200), help="Rows that time is laid out in [default: what is readable].")
@click.option(
    "--theme",
    type=click.Choice(THEMES),
    default="auto",
    show_default=True,
    help="Colours; auto is as the reader's browser has it, and light in print.",
)
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output(DRAWING, *PICTURES),
    help="Where to write: .svg, .html, .png [default: SVG to stdout].",
)
def command(
    files: tuple[str, ...],
    view: str,
    width: int,
    rows: int | None,
    theme: str,
    cost_file: str | None,
    output: str | None,
) -> None:
    """Draw the run of a schedule FILE (- is stdin), to scale.

    \b
    vppc plot plan.json -o plan.svg
    vppc plot cpp.json vpp.json -o both.html
    vppc plot out/run --view timeline -o run.html

    Ranks are lanes, chunks blocks; requests have hues, sweeps over the ranks shades. Bubbles are hatched. In a
    browser, resting on a part says what it is and why a rank waits. Several files are drawn one below the other, on
    one scale. FILE may also be the folder of a journal: the plan, if costs are known, and below it what was measured.
    """
    refuse_terminal(output, DRAWING)
    if output is not None and output != "-" and not is_picture(output):
        raise wrong_format(output, DRAWING, PICTURES)
    runs = read_runs(files, cost_file)
    style = Style(view, width, rows or 0, theme)
    write_picture(plot(runs, style), output, ", ".join(run.name for run in runs), theme)
