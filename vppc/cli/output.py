"""Where a command writes. It is checked as the command line is read: work that takes minutes should not be lost."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

import click
from click.types import StringParamType

from vppc.errors import InputError
from vppc.files import check_writable, is_stream

JSON = (".json",)
PAGES = (".html", ".htm")
PICTURES = (".svg", *PAGES, ".png")
GRAPHS = (".dot", ".gv", ".graphml", *JSON)
NOTATIONS = (*JSON, ".asm", ".csv")
LINES = (".jsonl", ".ndjson", *JSON)
_OTHERS = (".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".gz", ".zip", ".zst", ".xlsx", ".yaml", ".yml")
_FORMATS = {*PICTURES, *GRAPHS, *NOTATIONS, *LINES, *_OTHERS}
"""Suffixes that say what is in a file. Any other may stand behind everything."""
_OUTPUTS = "vppc.outputs"


class Output(StringParamType):
    """The path of a file to be written, or ``-`` for stdout. Nothing is created or changed.

    ``what`` is written there, in one of the formats that ``suffixes`` name. Raises InputError for a file that could not
    be written, whose name says another format, or that another option names, too.
    """

    name = "file"

    def __init__(self, what: str, *suffixes: str) -> None:
        self.what, self.suffixes = what, suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path, option = str(value), min(param.opts, key=len) if param is not None else ""
        suffix = suffix_of(path)
        if suffix in _FORMATS and suffix not in self.suffixes:
            raise wrong_format(path, self.what, self.suffixes, option)
        check_writable(path)
        if ctx is not None:
            _check_unnamed(path, option, ctx.meta.setdefault(_OUTPUTS, {}))
        return path


def suffix_of(output: str | None) -> str:
    """What an output's name ends in, in small letters; empty for stdout."""
    return PurePath(output).suffix.lower() if output is not None else ""


def wants_json(output: str | None, as_json: bool) -> bool:
    """Whether JSON is to be written: where ``--json`` asks for it, and to a file named so.

    Raises InputError for JSON in a picture.
    """
    if as_json and suffix_of(output) in PICTURES:
        remedy = "leave it out, or give -o a name ending in .json"
        raise InputError("a picture is no JSON", file=output or "", place="--json", remedy=remedy)
    return as_json or suffix_of(output) in JSON


def wrong_format(path: str, what: str, suffixes: tuple[str, ...], option: str = "-o") -> InputError:
    """The error of a file whose name says a format that ``what`` is not written in."""
    problem = f"{suffix_of(path) or 'a file without a suffix'} is no format of {what}"
    *most, last = suffixes
    remedy = f"a name ending in {', '.join(most)} or {last}" if most else f"a name ending in {last}"
    return InputError(problem, file=path, place=option, remedy=remedy)


def _check_unnamed(path: str, option: str, known: dict[str, str]) -> None:
    """Raises InputError where another option of the command names the same file."""
    if path != "-" and is_stream(path):
        return
    other = known.setdefault(path if path == "-" else os.path.realpath(path), option)
    if other != option:
        raise InputError(f"is what {other} writes, too", file=path, place=option, remedy="give each a file of its own")
