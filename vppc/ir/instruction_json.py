"""Instruction lists as JSON: a million objects to integer rows and back, without a typed object for each.

The reader walks a list once and checks all fields together; only when something is wrong does it go through
the instructions one by one, with the types of :mod:`vppc.ir.schema`, to find the culprit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

from pydantic import TypeAdapter

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
