"""Instructions as parsed JSON to integer rows, all checked together: no other reader is so quick.

Standard library only, for the runtime.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, WIDTH

_ABSENT = {FORWARD: 1, WAIT: 4, SAMPLE: 3}
"""How many fields of its row an op leaves at -1, buffers that are null not counted."""


def rows_of(instructions: Iterable[Any]) -> array[int]:
    """The rows of parsed instructions, those of :class:`vppc.ir.instruction.Program`; unknown keys are left out.

    Raises KeyError, TypeError, ValueError or OverflowError when any is not as it must be.
    """
    code: list[int] = []
    add = code.extend
    nulls = 0
    for each in instructions:
        op = each["op"]
        if op == "WAIT":
            add((WAIT, -1, -1, each["of"], -1, -1))
        elif op == "FORWARD":
            read, write = each["in"], each["out"]
            if read is None:
                read = -1
                nulls += 1
            if write is None:
                write = -1
                nulls += 1
            add((FORWARD, each["chunk"], each["stage"], read, write, -1))
        elif op == "SEND":
            add((SEND, each["chunk"], each["stage"], each["buffer"], each["peer"], each["channel"]))
        elif op == "RECV":
            add((RECV, each["chunk"], each["stage"], each["buffer"], each["peer"], each["channel"]))
        elif op == "SAMPLE":
            add((SAMPLE, each["chunk"], -1, each["buffer"], -1, -1))
        else:
            raise ValueError(op)
    ops = code[::WIDTH]
    absent = nulls + sum(fields * ops.count(op) for op, fields in _ABSENT.items())
    if not {int}.issuperset(map(type, code)):  # the array would take true for 1
        raise TypeError
    if min(code, default=0) < -1 or code.count(-1) != absent:
        raise ValueError
    return array("i", code)
