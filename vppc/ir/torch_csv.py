"""PyTorch's notation for pipeline schedules (``torch.distributed.pipelining``): CSV, a row a rank, an action a cell.

============  ==============================================================================================
cell          meaning
============  ==============================================================================================
``2F0``       stage 2 runs forward on microbatch 0: FORWARD of chunk 0
``2SEND_F0``  the output of stage 2 is sent: SEND of chunk 0, stage 2
``3RECV_F0``  the input of stage 3 is received: RECV of chunk 0, stage 3
(empty)       the rank idles; PyTorch drops such cells when it lowers a schedule, and so does reading here
============  ==============================================================================================

A **compute-only** file has only forwards, a **compute and communication** file transfers too. The notation has
neither WAITs nor buffers, samples, layers, tokens or channels: writing leaves them out, and reading makes up a
model of one layer a stage and one prompt of a token a microbatch. Rows end in CR LF, as PyTorch writes them.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, WIDTH, Program
from vppc.ir.placement import edges
from vppc.ir.schedule import Channel, Chunk, Model, Order, Part, Request, Schedule, Stage

Transfers: TypeAlias = Literal["posted", "blocking"]

_NAMES = {FORWARD: "F", SEND: "SEND_F", RECV: "RECV_F"}
_OPS = {name: op for op, name in _NAMES.items()}
_ACTION = re.compile(r"([0-9]+)(SEND_F|RECV_F|F)([0-9]+)")
_TRAINING = re.compile(r"[0-9]+(I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_B|RECV_B)[0-9]*|\(.*\)OVERLAP_F_B")


def to_torch_csv(schedule: Schedule, *, compute_only: bool = False) -> Iterator[str]:
    """The rows of a schedule's CSV. An ordered schedule that is not lowered has only the compute-only form."""
    if schedule.programs:
        for program in schedule.programs:
            kept = (FORWARD,) if compute_only else tuple(_NAMES)
            yield _row(f"{row[2]}{_NAMES[row[0]]}{row[1]}" for row in program.rows() if row[0] in kept)
    elif schedule.order is not None and compute_only:
        for ops in schedule.order.ranks:
            yield _row(f"{stage}F{chunk}" for chunk, stage in map(schedule.op, ops))
    else:
        raise InputError(
            "the schedule has no programs, so no transfers to write",
            remedy="write the compute-only form, or lower it first",
        )


def _row(cells: Iterator[str]) -> str:
    return f"{','.join(cells)}\r\n"


def parse_torch_csv(text: str, file: str = "", transfers: Transfers = "posted") -> Schedule:
    """Read a CSV: an ordered schedule of a compute-only file, one with programs where there are transfers.

    ``posted`` waits as PyTorch's runtime does: for a RECV before the FORWARD that reads it, for SENDs at the
    end. ``blocking`` waits for every transfer as soon as it is posted. Each value gets a buffer of its own.
    Whether the programs are right, or can hang, is for the verifier. Raises InputError that names the cell for
    actions of training and for cells that are no action, or that no schedule can have.
    """
    try:
        rows = _read(text)
        ranks = _stage_ranks(rows)
        schedule = _schedule(ranks, _chunk_count(rows), pp=len(rows))
        if all(cell.op == FORWARD for row in rows for cell in row):
            return replace(schedule, order=_order(rows, schedule))
        for cell in (cell for row in rows for cell in row):
            _check_transfer(cell, ranks)
        return replace(
            schedule, programs=tuple(_Lowering(schedule, r).program(row, transfers) for r, row in enumerate(rows))
        )
    except InputError as error:
        raise error.in_file(file) from None


class _Cell(NamedTuple):
    """An action and where it stands, counted from 0."""

    op: int
    stage: int
    chunk: int
    row: int
    column: int

    def __str__(self) -> str:
        return f"{self.stage}{_NAMES[self.op]}{self.chunk}"

    @property
    def place(self) -> str:
        return _place(self.row, self.column)


def _place(row: int, column: int) -> str:
    return f"row {row + 1} (rank {row}), column {column + 1}"


def _read(text: str) -> list[list[_Cell]]:
    """The actions of each rank; empty cells, and empty rows at the end, are left out."""
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[list[_Cell]] = []
    try:
        for row, cells in enumerate(reader):
            rows.append([_cell(cell.strip(), row, column) for column, cell in enumerate(cells) if cell.strip()])
    except csv.Error as error:
        raise InputError(
            f"not CSV: {error}", place=f"line {reader.line_num}", remedy="a row a rank, an action a cell"
        ) from None
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise InputError("no action in the file", remedy="a row a rank, an action a cell, such as 0F0")
    return rows


def _cell(text: str, row: int, column: int) -> _Cell:
    if match := _ACTION.fullmatch(text):
        if max(len(match[1]), len(match[3])) > 9:
            raise InputError(
                f"number too large in {text[:40]!r}", place=_place(row, column), remedy="nine digits at most"
            )
        return _Cell(_OPS[match[2]], int(match[1]), int(match[3]), row, column)
    if _TRAINING.fullmatch(text):
        problem, remedy = f"{text!r} is an action of training", "prefill runs forward only: use F, SEND_F and RECV_F"
    else:
        problem, remedy = f"{text[:40]!r} is no action", "write stage, action and microbatch: 0F0, 0SEND_F0 or 1RECV_F0"
    raise InputError(problem, place=_place(row, column), remedy=remedy)


def _stage_ranks(rows: Sequence[Sequence[_Cell]]) -> tuple[int, ...]:
    """The rank of every stage: the one whose row runs it."""
    homes: dict[int, _Cell] = {}
    for cell in (cell for row in rows for cell in row if cell.op == FORWARD):
        home = homes.setdefault(cell.stage, cell)
        if home.row != cell.row:
            problem = f"{cell} runs stage {cell.stage}, which rank {home.row} runs at {home.place}"
            raise InputError(problem, place=cell.place, remedy="a stage lives on one rank")
    for stage in range(len(homes)):
        if stage not in homes:
            remedy = "number the stages from 0, and run each"
            raise InputError(f"no rank runs stage {stage}, but stage {max(homes)} is run", remedy=remedy)
    if not homes:
        raise InputError("no forward in the file", remedy="run each stage once on each microbatch, as in 0F0")
    counts = Counter(home.row for home in homes.values())
    for rank in range(len(rows)):
        if counts[rank] != counts[0]:
            problem = f"runs {counts[rank]} of the {len(homes)} stages, rank 0 runs {counts[0]}"
            raise InputError(
                problem, place=f"row {rank + 1} (rank {rank})", remedy="give every rank equally many stages"
            )
    return tuple(homes[stage].row for stage in range(len(homes)))


def _chunk_count(rows: Sequence[Sequence[_Cell]]) -> int:
    chunks = {cell.chunk for row in rows for cell in row}
    missing = next((chunk for chunk in range(len(chunks)) if chunk not in chunks), None)
    if missing is not None:
        problem = f"no rank runs microbatch {missing}, but there is a microbatch {max(chunks)}"
        raise InputError(problem, remedy="number the microbatches from 0")
    return len(chunks)


def _schedule(ranks: tuple[int, ...], chunks: int, pp: int) -> Schedule:
    return Schedule(
        strategy="torch-csv",
        model=Model("torch-csv", len(ranks)),
        pp=pp,
        vp=len(ranks) // pp,
        stages=tuple(Stage(stage, rank, (stage, stage + 1)) for stage, rank in enumerate(ranks)),
        channels=tuple(Channel(number, src, dst) for number, (src, dst) in enumerate(edges(ranks))),
        requests=(Request("r0", chunks),),
        chunks=tuple(Chunk((Part(0, chunk, 1),)) for chunk in range(chunks)),
    )


def _order(rows: Sequence[Sequence[_Cell]], schedule: Schedule) -> Order:
    stages = len(schedule.stages)
    seen: dict[int, _Cell] = {}
    for cell in (cell for row in rows for cell in row):
        before = seen.setdefault(cell.chunk * stages + cell.stage, cell)
        if before is not cell:
            problem = f"{cell} for the second time, after {before.place}"
            raise InputError(problem, place=cell.place, remedy="run each stage once on each microbatch")
    for op in range(len(schedule.chunks) * stages):
        if op not in seen:
            chunk, stage = divmod(op, stages)
            place = f"row {schedule.stage_ranks[stage] + 1} (rank {schedule.stage_ranks[stage]})"
            raise InputError(
                f"{stage}F{chunk} is missing", place=place, remedy="run each stage once on each microbatch"
            )
    return Order(tuple(tuple(cell.chunk * stages + cell.stage for cell in row) for row in rows))


def _check_transfer(cell: _Cell, ranks: Sequence[int]) -> None:
    """Raises InputError for a SEND or RECV that no channel can carry."""
    if cell.op == FORWARD:
        return
    sender = cell.stage if cell.op == SEND else cell.stage - 1
    if not 0 <= sender < len(ranks) - 1:
        remedy = f"stage s hands its output to stage s + 1, and there are stages 0 to {len(ranks) - 1}"
        raise InputError(f"{cell} has no stage at its other end", place=cell.place, remedy=remedy)
    if ranks[cell.stage] != cell.row:
        problem = f"{cell} on rank {cell.row}, but stage {cell.stage} is on rank {ranks[cell.stage]}"
        raise InputError(
            problem, place=cell.place, remedy="SEND_F names the stage that sends, RECV_F the one that receives"
        )
    if ranks[sender] == ranks[sender + 1]:
        problem = f"{cell} is no transfer: stages {sender} and {sender + 1} are both on rank {cell.row}"
        raise InputError(problem, place=cell.place, remedy="leave it out: a rank reads its own output")


class _Lowering:
    """Turns a row of actions into a program; numbers values as they appear, waits, and samples."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.code = array("i")
        self.buffers: dict[tuple[int, int], int] = {}  # (chunk, stage that reads the value) -> buffer
        self.channels = {(channel.src, channel.dst): channel.id for channel in schedule.channels}

    def program(self, row: Sequence[_Cell], transfers: Transfers) -> Program:
        """The program of a rank. Values that nobody produces or reads get buffers all the same."""
        receives: dict[tuple[int, int], list[int]] = {}  # for every value, the RECVs not waited for
        sends: list[int] = []
        for op, stage, chunk, *_ in row:
            index = len(self.code) // WIDTH
            if op == FORWARD:
                for receive in receives.pop((chunk, stage), ()):
                    self._wait(receive)
                self._forward(chunk, stage)
                continue
            self._transfer(op, chunk, stage)
            if transfers == "blocking":
                self._wait(index)
            elif op == RECV:
                receives.setdefault((chunk, stage), []).append(index)
            else:
                sends.append(index)
        for index in sorted(chain(sends, *receives.values())):
            self._wait(index)
        return Program(self.rank, len(self.buffers), self.code)

    def _buffer(self, chunk: int, stage: int) -> int:
        return self.buffers.setdefault((chunk, stage), len(self.buffers))

    def _wait(self, of: int) -> None:
        self.code.extend((WAIT, -1, -1, of, -1, -1))

    def _forward(self, chunk: int, stage: int) -> None:
        last, sampled = stage + 1 == len(self.schedule.stages), self.schedule.samples[chunk]
        source = self._buffer(chunk, stage) if stage else -1
        target = self._buffer(chunk, stage + 1) if sampled or not last else -1
        self.code.extend((FORWARD, chunk, stage, source, target, -1))
        if last and sampled:
            self.code.extend((SAMPLE, chunk, -1, target, -1, -1))

    def _transfer(self, op: int, chunk: int, stage: int) -> None:
        ranks = self.schedule.stage_ranks
        if op == SEND:
            peer = ranks[stage + 1]
            buffer, channel = self._buffer(chunk, stage + 1), self.channels[self.rank, peer]
        else:
            peer = ranks[stage - 1]
            buffer, channel = self._buffer(chunk, stage), self.channels[peer, self.rank]
        self.code.extend((op, chunk, stage, buffer, peer, channel))
