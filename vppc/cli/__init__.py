"""The command line. Each command lives in its own module and is imported only when it runs."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import click

from vppc import __version__
from vppc.errors import VppcError

COMMANDS = {
    "compile": "Compile prompts into verified rank programs.",
    "verify": "Prove that a schedule file cannot hang or mix up data.",
    "show": "Print the programs as assembly, and a timeline.",
    "plot": "Draw the timeline as SVG or HTML.",
    "trace": "Write a Chrome trace for Perfetto or MindStudio Insight.",
    "graph": "Export the dependency DAG (dot, GraphML, JSON).",
    "simulate": "Price a schedule: makespan, TTFT, bubbles, bounds.",
    "compare": "Price strategies by chunk size and prompt length.",
    "tune": "Find the best schedule, and how far any other could be ahead.",
    "model": "Say what a model is understood to be, and what it costs.",
    "calibrate": "Fit a cost file to measured times.",
    "profile": "Say where the time of a measured run went.",
    "convert": "Translate schedules to and from other notations.",
    "doctor": "Say what is installed, and measure transfers between ranks.",
    "schema": "Print the JSON Schema of a file format.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use, so that ``--help`` costs no heavy import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"vppc.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit status: 0 done, 1 a check failed, 2 bad usage or bad input.",
)
@click.version_option(__version__, prog_name="vppc")
def vppc() -> None:
    """A schedule compiler for virtual pipeline parallelism.

    Prefills long prompts in chunks over a pipeline of devices without bubbles: compile a schedule, prove it,
    price it, look at it, run it.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; errors that a user can cause become one message and an exit status."""
    gc.disable()  # a command ends soon and makes no cycles to speak of; looking for them costs a quarter of its time
    try:
        return vppc.main(arguments, prog_name="vppc", standalone_mode=True)
    except VppcError as error:
        click.echo(f"vppc: {error}", err=True)
        sys.exit(error.exit_status)
