"""Assembly: a whole schedule as text that people read and edit, and back without loss.

One directive or instruction a line; ``;`` starts a comment, which reading ignores. The header names what the
programs refer to, each rank's program follows, and what has no form of its own is JSON: a JSON object at the end
of a line holds the unknown keys of what the line describes, and ``.key JSON`` a top-level key of the schedule::

    schedule "vpp-async" version=1 pp=2 vp=2
    model "deepseek-v3.1" layers=61
    stage 0 rank=0 layers=0..16
    channel 0 rank 0 -> rank 1
    request 0 "r0" prompt_tokens=40960 cached_tokens=0 arrival=0.0
    chunk 0 r0[0..24576]
    rank 0 buffers=2
      0  FORWARD  c0 s0  tokens -> b0
      1  SEND     c0 s0      b0 -> rank 1  ch0
      2  WAIT     1      ; SEND c0 s0

Chunks name requests by index; a part that decodes reads ``r0[40960..40961]+decode``. A schedule that is not
lowered yet has ``order`` lines, one or more a rank: ``order 0 c0.s0 c1.s0``, or ``c0.s0@3`` with its step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vppc.ir.assembly_reader import VERSION, parse_assembly
from vppc.ir.instruction import FORWARD, OPS, SAMPLE, SEND, WAIT, WIDTH, Program, Row
from vppc.ir.schedule import Chunk, Part, Request, Schedule

__all__ = ["header", "instruction_lines", "instruction_words", "parse_assembly", "rank_line", "to_assembly"]

_OPS_A_LINE = 12


def to_assembly(schedule: Schedule) -> Iterator[str]:
    """The schedule as assembly, line by line, each with its newline."""
    yield from header(schedule)
    for program in schedule.programs:
        yield f"\n{rank_line(program)}\n"
        for line in instruction_lines(schedule, program):
            yield f"{line}\n"
    if schedule.extra or schedule.certificate:
        yield "\n"
    for key, value in schedule.extra.items():
        yield f".{key if key.isidentifier() and key.isascii() else json.dumps(key)} {json.dumps(value)}\n"
    if schedule.certificate:
        yield f".certificate {''.join(schedule.certificate.text())}\n"


def header(schedule: Schedule) -> Iterator[str]:
    """What the programs refer to: model, stages, channels, requests, chunks; and the order, before lowering."""
    model = schedule.model
    sizes = (
        (schedule.pp, "rank"),
        (len(schedule.stages), "stage"),
        (len(schedule.requests), "request"),
        (len(schedule.chunks), "chunk"),
        (sum(map(len, schedule.programs)), "instruction"),
    )
    yield f"; {', '.join(_count(*size) for size in sizes)}\n"
    yield f"schedule {json.dumps(schedule.strategy)} version={VERSION} pp={schedule.pp} vp={schedule.vp}\n"
    yield f"model {json.dumps(model.name)} layers={model.layers}{_tail(model.extra)}\n"
    for stage in schedule.stages:
        first, last = stage.layers
        line = f"stage {stage.stage} rank={stage.rank} layers={first}..{last}{_tail(stage.extra)}"
        yield f"{line:<39} ; {_count(last - first, 'layer')}\n"
    for channel in schedule.channels:
        yield f"channel {channel.id} rank {channel.src} -> rank {channel.dst}{_tail(channel.extra)}\n"
    for index, request in enumerate(schedule.requests):
        yield (
            f"request {index} {json.dumps(request.id)} prompt_tokens={request.prompt_tokens}"
            f" cached_tokens={request.cached_tokens} arrival={request.arrival!r}{_tail(request.extra)}\n"
        )
    for index, chunk in enumerate(schedule.chunks):
        line = f"chunk {index} {' '.join(map(_part, chunk.parts)) or 'empty'}{_tail(_chunk_extra(chunk))}"
        yield f"{line:<39} ; {_chunk_comment(chunk, schedule.requests)}\n"
    yield from _order_lines(schedule)


def rank_line(program: Program) -> str:
    """The line that opens a rank's program."""
    return f"rank {program.rank} buffers={program.buffers}{_tail(program.extra)}"


def instruction_lines(schedule: Schedule, program: Program, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Instructions ``start`` to ``stop`` of a program, numbered, columns aligned; a WAIT says what it waits for."""
    code, length = program.code, len(program)
    stop = length if stop is None else min(stop, length)
    number = max(3, len(str(length - 1)))
    chunks, stages = len(str(len(schedule.chunks))) + 1, len(str(len(schedule.stages))) + 1
    each = iter(code[start * WIDTH : stop * WIDTH])
    for index, row in enumerate(zip(each, each, each, each, each, each, strict=True), start):
        line = f"  {index:>{number}}  {_aligned(row, chunks, stages)}"
        if index in program.notes:
            line = f"{line.rstrip()}{_tail(program.notes[index])} "
        if row[0] == WAIT and 0 <= row[3] < length:
            op, chunk, stage = code[row[3] * WIDTH : row[3] * WIDTH + 3]
            line = f"{line} ; {_transfer(op, chunk, stage)}"
        yield line.rstrip()


def instruction_words(row: Row, waited: Row | None = None) -> str:
    """One instruction without columns, such as ``FORWARD c3 s2 b0 -> b1``; ``waited`` is what a WAIT waits for."""
    words = " ".join(_aligned(row, 0, 0).split())
    return words if waited is None else f"{words} ; {_transfer(*waited[:3])}"


def _transfer(op: int, chunk: int, stage: int) -> str:
    return OPS[op] + (f" c{chunk} s{stage}" if stage >= 0 else "")


def _aligned(row: Row, chunks: int, stages: int) -> str:
    """One instruction; chunk and stage columns are as wide as told, and the arrows stand below each other."""
    op, chunk, stage, x, y, z = row
    if op == WAIT:
        return f"WAIT     {x:<{chunks + stages + 1}}"
    if op == SAMPLE:
        return f"SAMPLE   {f'c{chunk}':<{chunks + stages + 1}}  {f'b{x}':>6} -> token"
    where = f"{f'c{chunk}':<{chunks}} {f's{stage}':<{stages}}"
    if op == FORWARD:
        return f"FORWARD  {where}  {'tokens' if x < 0 else f'b{x}':>6} -> {'none' if y < 0 else f'b{y}'}"
    arrow = "->" if op == SEND else "<-"
    return f"{OPS[op]:<7}  {where}  {f'b{x}':>6} {arrow} rank {y}  ch{z}"


def _part(part: Part) -> str:
    return f"r{part.request}[{part.start}..{part.end}]{'+decode' if part.decode else ''}"


def _chunk_extra(chunk: Chunk) -> Mapping[str, Any]:
    """The chunk's unknown keys, and under ``parts``, which is no unknown key, those of its parts if they have any."""
    if not any(part.extra for part in chunk.parts):
        return chunk.extra
    return {**chunk.extra, "parts": [part.extra for part in chunk.parts]}


def _chunk_comment(chunk: Chunk, requests: tuple[Request, ...]) -> str:
    ends = [
        json.dumps(requests[part.request].id)
        for part in chunk.parts
        if part.request < len(requests) and part.end == requests[part.request].prompt_tokens
    ]
    return _count(chunk.tokens, "token") + (f", ends {', '.join(ends)}" if ends else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _tail(extra: Mapping[str, Any]) -> str:
    return f" {json.dumps(extra)}" if extra else ""


def _order_lines(schedule: Schedule) -> Iterator[str]:
    if schedule.order is None:
        return
    steps = schedule.order.steps
    for rank, ops in enumerate(schedule.order.ranks):
        for first in range(0, max(len(ops), 1), _OPS_A_LINE):
            names = []
            for op in ops[first : first + _OPS_A_LINE]:
                chunk, stage = schedule.op(op)
                names.append(f"c{chunk}.s{stage}" + (f"@{steps[op]}" if steps is not None else ""))
            yield f"order {rank} {' '.join(names) or 'empty'}\n"
