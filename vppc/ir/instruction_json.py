"""Instruction lists as JSON: a million objects to integer rows and back, without a typed object for each.

The reader walks a list once and checks all fields together; only when something is wrong does it go through
the instructions one by one, with the types of :mod:`vppc.ir.schema`, to find the culprit.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from pydantic_core import from_json

from vppc.errors import InputError
from vppc.ir import schema
from vppc.ir.instruction import FORWARD, OPS, SAMPLE, SEND, WAIT, WIDTH
from vppc.ir.rows import rows_of
from vppc.ir.schedule import Json
from vppc.json_text import dumps, shown
from vppc.validation import validate

Code: TypeAlias = "array[int]"
Notes: TypeAlias = Mapping[int, Json]

_KEYS = {
    "FORWARD": frozenset(("op", "chunk", "stage", "in", "out")),
    "SEND": frozenset(("op", "chunk", "stage", "peer", "channel", "buffer")),
    "RECV": frozenset(("op", "chunk", "stage", "peer", "channel", "buffer")),
    "WAIT": frozenset(("op", "of")),
    "SAMPLE": frozenset(("op", "chunk", "buffer")),
}
_TYPES: dict[str, TypeAdapter[Any]] = {
    "FORWARD": TypeAdapter(schema.ForwardDocument),
    "SEND": TypeAdapter(schema.SendDocument),
    "RECV": TypeAdapter(schema.RecvDocument),
    "WAIT": TypeAdapter(schema.WaitDocument),
    "SAMPLE": TypeAdapter(schema.SampleDocument),
}
_LINES = 4096
"""Instructions in one piece of written text."""
_LIST = re.compile(r'"instructions"\s*:\s*\[')
_PIECE = 2**18
"""Characters of an instruction list that are parsed at a time: so few that the objects stay in the cache."""


def lift_instructions(text: str) -> tuple[str, list[Code]] | None:
    """The text with a NaN in the place of every instruction list's contents, and the rows of these lists.

    That is for speed and memory: a piece of a list is parsed at a time. It is exact, as an element list cut at a
    comma is two element lists, and strict JSON has no NaN that could be mistaken for ours. None when anything in
    a list is wrong, or has unknown keys.
    """
    kept: list[str] = []
    codes: list[Code] = []
    at = 0
    while found := _LIST.search(text, at):
        start = found.end()
        try:
            end = text.index("]", start)
            codes.append(_lifted(text, start, end))
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
            return None
        kept += text[at:start], "NaN"
        at = end
    return "".join((*kept, text[at:])), codes


def parse_instructions(instructions: list[Any], file: str, place: str) -> tuple[Code, Notes]:
    """The rows of a program and the unknown keys of its instructions, from a parsed JSON list.

    ``place`` is the JSON path of the list. Raises InputError with the path of what is wrong.
    """
    try:
        code = rows_of(instructions)
    except (KeyError, TypeError, ValueError, OverflowError):
        _find_culprit(instructions, file, place)
        raise
    notes = {
        index: {key: each[key] for key in each if key not in _KEYS[each["op"]]}
        for index, each in enumerate(instructions)
        if len(each) != len(_KEYS[each["op"]])
    }
    return code, notes


def instructions_text(code: Code, notes: Notes) -> Iterator[str]:
    """The JSON text of a program's instructions, one a line, in pieces, without the brackets around them."""
    values = iter(code)
    rows = zip(values, values, values, values, values, values, strict=True)
    for first in range(0, len(code) // WIDTH, _LINES):
        lines = []
        for op, chunk, stage, x, y, z in islice(rows, _LINES):
            if op == WAIT:
                line = f'{{"op": "WAIT", "of": {x}}}'
            elif op == FORWARD:
                read, write = "null" if x < 0 else x, "null" if y < 0 else y
                line = f'{{"op": "FORWARD", "chunk": {chunk}, "stage": {stage}, "in": {read}, "out": {write}}}'
            elif op == SAMPLE:
                line = f'{{"op": "SAMPLE", "chunk": {chunk}, "buffer": {x}}}'
            else:
                name = "SEND" if op == SEND else "RECV"
                line = (
                    f'{{"op": "{name}", "chunk": {chunk}, "stage": {stage}, '
                    f'"peer": {y}, "channel": {z}, "buffer": {x}}}'
                )
            lines.append(line)
        if notes:
            for index in notes.keys() & range(first, first + len(lines)):
                lines[index - first] = lines[index - first][:-1] + ", " + dumps(notes[index])[1:]
        yield (",\n  " if first else "\n  ") + ",\n  ".join(lines)


def _lifted(text: str, start: int, end: int) -> Code:
    """The rows of the element list at [start, end) of a text; raises like :func:`rows_of`."""
    code = array("i")
    at = start
    while at <= end:
        comma = text.find("},", at + _PIECE, end) + 1 or end
        rows = rows_of(from_json(f"[{text[at:comma]}]"))
        if not rows and at > start:
            raise ValueError("nothing behind the last comma")
        code += rows
        at = comma + 1
    ops = code[::WIDTH]
    keys = sum(len(_KEYS[name]) * ops.count(op) for op, name in enumerate(OPS))
    if text.count(":", start, end) != keys:
        raise ValueError("a key is unknown or double, or a string has a colon")
    return code


def _find_culprit(instructions: list[Any], file: str, place: str) -> None:
    for index, each in enumerate(instructions):
        where = f"{place}[{index}]"
        if not isinstance(each, dict):
            raise InputError(f"{shown(each)} is not an object", file=file, place=where, remedy="an object in { }")
        if "op" not in each:
            raise InputError('the key "op" is missing', file=file, place=where, remedy=_allowed_ops())
        if each["op"] not in OPS:
            raise InputError(
                f"{shown(each['op'])} is not an instruction", file=file, place=f"{where}.op", remedy=_allowed_ops()
            )
        validate(_TYPES[each["op"]], each, file=file, prefix=f"{where}.")


def _allowed_ops() -> str:
    return ", ".join(f'"{op}"' for op in OPS)
