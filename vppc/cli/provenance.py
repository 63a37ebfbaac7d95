"""The command line that something is made by, as it was typed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import click

from vppc.cli import WORDS
from vppc.cli.output import Output
from vppc.ir.schedule import Schedule


def made_by(context: click.Context) -> dict[str, dict[str, str]]:
    """The key of a schedule that says which command makes it."""
    return {"provenance": {"command": command_line(context)}}


def signed(schedule: Schedule, command: str) -> Schedule:
    """The schedule with the command that makes it, unless it has one: what is only rewritten is made already."""
    said = schedule.extra.get("provenance", {})
    return replace(schedule, extra={**schedule.extra, "provenance": {"command": command, **said}})


def command_line(context: click.Context) -> str:
    """The command line that runs, for a shell, with paths as they were typed.

    Without ``-o``: where a result goes is no part of how it is made, and so it is the same bytes wherever it goes.
    Bytes that are not UTF-8 are shown as ``\\xff``.
    """
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    outputs = {name for each in options if isinstance(each.type, Output) for name in each.opts}
    valued = {name for each in options if not each.is_flag and not each.count for name in each.opts}
    words = _without(context.meta[WORDS], outputs, valued)
    return shlex.join(["vppc", *(os.fsencode(word).decode("utf-8", "backslashreplace") for word in words)])


def _without(words: Sequence[str], outputs: Container[str], valued: Container[str]) -> Iterator[str]:
    """The words without the options ``outputs`` and their values: ``-o x``, ``-ox``, ``--output x``, ``--output=x``.

    What stands behind another one of the options that are ``valued`` is its value, whatever it looks like.
    """
    given = iter(words)
    for word in given:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in outputs:
            if word == name:
                next(given, None)
            continue
        yield word
        if word == "--":
            yield from given
        elif word in valued:
            yield from islice(given, 1)
