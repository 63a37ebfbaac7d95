"""The command line. Each command lives in its own module and is imported only when it runs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

from vppc import __version__
from vppc.errors import VppcError
from vppc.files import discard_stdout
from vppc.render.tables import printable

COMMANDS = {
    "compile": "Compile prompts into verified rank programs.",
    "verify": "Prove that a schedule file cannot hang or mix up data.",
    "show": "Print the programs as assembly, and a timeline.",
    "plot": "Draw the timeline as SVG, HTML or PNG.",
    "trace": "Write a Chrome trace for Perfetto or MindStudio Insight.",
    "graph": "Export the dependency DAG (dot, GraphML, JSON).",
    "simulate": "Price a schedule: makespan, TTFT, bubbles, bounds.",
    "explain": "Say why a run takes as long as it does, and what would help.",
    "diff": "Compare two schedules, or a plan and its run.",
    "report": "Write a page with charts about a schedule, a run or a study.",
    "compare": "Price strategies by chunk size and prompt length.",
    "serve-sim": "Simulate serving: throughput, first tokens, why ranks idle.",
    "serve": "Serve requests as they come, on real ranks.",
    "shadow": "Say what a vLLM server in shadow mode could have gained.",
    "tune": "Find the best schedule, and how far any other could be ahead.",
    "model": "Say what a model is understood to be, and what it costs.",
    "calibrate": "Fit a cost file to measured times.",
    "profile": "Say where the time of a measured run went.",
    "convert": "Translate schedules to and from other notations.",
    "doctor": "Say what is installed, and measure transfers between ranks.",
    "schema": "Print the JSON Schema of a file format.",
}

WORDS = "vppc.words"
"""The words of the command line, in a context's ``meta``."""


class LazyGroup(click.Group):
    """A group whose commands are imported on first use, so that ``--help`` costs no heavy import."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"vppc.cli.{cmd_name.replace('-', '_')}")
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

    It prefills long prompts in chunks over a pipeline of devices, so that these wait as little as can be: compile a
    schedule, prove it, price it, look at it, run it.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; whatever a user or the machine can cause is one message and an exit status."""
    gc.set_threshold(1_000_000)  # looking for cycles among a program's many objects costs a quarter of the time
    if sys.stderr is None:  # closed by the caller, who wants no messages
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        with _terminable():
            status = vppc.main(arguments, prog_name="vppc", standalone_mode=False)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
            _hint(error, sys.argv[1:] if arguments is None else arguments)
        sys.exit(error.exit_code)
    except VppcError as error:
        _fail(str(error), error.exit_status)
    except click.Abort:  # Ctrl-C
        _fail("interrupted", 128 + signal.SIGINT)
    except MemoryError:
        _fail("the memory of this machine is not enough", 2)
    except OSError as error:  # of their files the commands speak themselves; this is the help, or the machine
        discard_stdout()
        _fail(f"{error.filename or 'stdout: cannot be written'}: {error.strerror or error}", 2)
    sys.exit(status or 0)


def _hint(error: click.ClickException, words: Sequence[str]) -> None:
    from vppc.cli.usage import remedy  # which most runs do not need

    if isinstance(error, click.UsageError) and (hint := remedy(error, words)):
        click.echo(f"  hint: {printable(hint)}", err=True)


def _fail(message: str, status: int) -> NoReturn:
    with suppress(OSError):  # nobody can be told
        click.echo("vppc: " + "\n".join(map(printable, message.split("\n"))), err=True)
    sys.exit(status)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the program as an exception does, so that no temporary file and no process is left behind."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
