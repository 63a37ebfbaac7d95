"""The instruction set of a rank, and a rank's program as integer columns.

A program of a million instructions is ordinary here, so the instructions are not a million objects: a
:class:`Program` keeps them in one integer array, :data:`WIDTH` integers a row, and hands out small named
tuples (:class:`Forward`, :class:`Send`, ...) as views. Passes and analyses that must be fast loop over
:meth:`Program.rows`; everything else indexes a program like a list.

Row layout (absent fields are -1):

=======  =====  =====  ======  ====  =======
op       chunk  stage  x       y     z
=======  =====  =====  ======  ====  =======
FORWARD  chunk  stage  in      out
SEND     chunk  stage  buffer  peer  channel
RECV     chunk  stage  buffer  peer  channel
WAIT                   of
SAMPLE   chunk         buffer
=======  =====  =====  ======  ====  =======
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, overload

FORWARD, SEND, RECV, WAIT, SAMPLE = range(5)
OPS = ("FORWARD", "SEND", "RECV", "WAIT", "SAMPLE")
WIDTH = 6
LARGEST = 2**31 - 1
"""The largest integer that a field of an instruction may hold."""

Row: TypeAlias = tuple[int, int, int, int, int, int]


class Forward(NamedTuple):
    """Run ``stage`` on ``chunk``; read buffer ``in_`` (None: the tokens), write ``out`` (None: nothing)."""

    chunk: int
    stage: int
    in_: int | None
    out: int | None

    def row(self) -> Row:
        return (
            FORWARD,
            self.chunk,
            self.stage,
            -1 if self.in_ is None else self.in_,
            -1 if self.out is None else self.out,
            -1,
        )


class Send(NamedTuple):
    """Post ``buffer``, the output of ``stage``, to ``peer`` on ``channel``; does not block."""

    chunk: int
    stage: int
    peer: int
    channel: int
    buffer: int

    def row(self) -> Row:
        return (SEND, self.chunk, self.stage, self.buffer, self.peer, self.channel)


class Recv(NamedTuple):
    """Post a receive of the input of ``stage`` into ``buffer``; does not block."""

    chunk: int
    stage: int
    peer: int
    channel: int
    buffer: int

    def row(self) -> Row:
        return (RECV, self.chunk, self.stage, self.buffer, self.peer, self.channel)


class Wait(NamedTuple):
    """Block until the transfer that instruction ``of`` of this program posted is complete."""

    of: int

    def row(self) -> Row:
        return (WAIT, -1, -1, self.of, -1, -1)


class Sample(NamedTuple):
    """Make the next token of every request that ends, or decodes, in ``chunk``, from ``buffer``."""

    chunk: int
    buffer: int

    def row(self) -> Row:
        return (SAMPLE, self.chunk, -1, self.buffer, -1, -1)


Instruction: TypeAlias = Forward | Send | Recv | Wait | Sample


def view(row: Sequence[int]) -> Instruction:
    """The named tuple for one row of integers."""
    op, chunk, stage, x, y, z = row
    if op == FORWARD:
        return Forward(chunk, stage, None if x < 0 else x, None if y < 0 else y)
    if op == SEND:
        return Send(chunk, stage, y, z, x)
    if op == RECV:
        return Recv(chunk, stage, y, z, x)
    if op == WAIT:
        return Wait(x)
    return Sample(chunk, x)


@dataclass(frozen=True, slots=True)
class Program:
    """The instruction list of one rank.

    ``code`` holds ``WIDTH`` integers an instruction and is never written after construction. ``extra``
    keeps unknown JSON keys: those of the program, and under ``notes`` those of single instructions.
    """

    rank: int
    buffers: int
    code: array[int]
    notes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rank: int, buffers: int, instructions: Iterable[Instruction]) -> Program:
        """A program from instruction objects (tests, tools; passes build rows)."""
        code = array("i")
        for instruction in instructions:
            code.extend(instruction.row())
        return cls(rank, buffers, code)

    def __len__(self) -> int:
        return len(self.code) // WIDTH

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Instruction]: ...
    def __getitem__(self, index: int | slice) -> Instruction | list[Instruction]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return view(self.row(index % len(self)))

    def __iter__(self) -> Iterator[Instruction]:
        return map(view, self.rows())

    def row(self, index: int) -> Row:
        """One instruction as a plain integer tuple; ``index`` is not negative."""
        op, chunk, stage, x, y, z = self.code[index * WIDTH : index * WIDTH + WIDTH]
        return op, chunk, stage, x, y, z

    def rows(self) -> Iterator[Row]:
        """The instructions as plain integer tuples, the fast way to walk a program."""
        each = iter(self.code)
        return zip(each, each, each, each, each, each, strict=True)
