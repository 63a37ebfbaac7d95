"""Schedules for the verifier's tests: one by hand, and ways to change one thing in any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vppc.ir.instruction import Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage


def by_hand() -> Schedule:
    """Two ranks, a V of four stages, a prompt of four tokens of which one is cached, two chunks."""
    rank0: list[Instruction] = [
        Forward(0, 0, None, 0),
        Send(0, 0, 1, 0, 0),
        Recv(0, 3, 1, 1, 1),
        Forward(1, 0, None, 2),
        Wait(1),
        Send(1, 0, 1, 0, 2),
        Wait(2),
        Forward(0, 3, 1, None),
        Recv(1, 3, 1, 1, 1),
        Wait(5),
        Wait(8),
        Forward(1, 3, 1, 0),
        Sample(1, 0),
    ]
    rank1: list[Instruction] = [
        Recv(0, 1, 0, 0, 0),
        Wait(0),
        Forward(0, 1, 0, 1),
        Forward(0, 2, 1, 0),
        Send(0, 2, 0, 1, 0),
        Recv(1, 1, 0, 0, 1),
        Wait(4),
        Wait(5),
        Forward(1, 1, 1, 0),
        Forward(1, 2, 0, 1),
        Send(1, 2, 0, 1, 1),
        Wait(10),
    ]
    return Schedule(
        strategy="by hand",
        model=Model("test", 4),
        pp=2,
        vp=2,
        stages=tuple(Stage(stage, rank, (stage, stage + 1)) for stage, rank in enumerate((0, 1, 1, 0))),
        channels=(Channel(0, 0, 1), Channel(1, 1, 0)),
        requests=(Request("r0", 4, 1),),
        chunks=(Chunk((Part(0, 1, 2),)), Chunk((Part(0, 3, 1),))),
        programs=(Program.of(0, 3, rank0), Program.of(1, 2, rank1)),
    )


def arranged(program: Program, items: Iterable[int | Instruction]) -> Program:
    """The program's instructions of these numbers, and new ones, in this order; WAITs keep to what they wait for.

    A WAIT of what is gone names an instruction behind the end.
    """
    items = list(items)
    now: dict[int, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, int):
            now.setdefault(item, index)
    kept = [program[item] if isinstance(item, int) else item for item in items]
    moved = [
        Wait(now.get(instruction.of, len(items))) if isinstance(instruction, Wait) else instruction
        for instruction in kept
    ]
    return Program.of(program.rank, program.buffers, moved)


def with_program(schedule: Schedule, program: Program) -> Schedule:
    programs = list(schedule.programs)
    programs[program.rank] = program
    return replace(schedule, programs=tuple(programs))


def changed(schedule: Schedule, rank: int, index: int, **fields: Any) -> Schedule:
    """One instruction with other fields."""
    program = schedule.programs[rank]
    instructions = list(program)
    instructions[index] = instructions[index]._replace(**fields)
    return with_program(schedule, Program.of(rank, program.buffers, instructions))


def dropped(schedule: Schedule, rank: int, *indices: int) -> Schedule:
    program = schedule.programs[rank]
    return with_program(schedule, arranged(program, [i for i in range(len(program)) if i not in indices]))


def inserted(schedule: Schedule, rank: int, index: int, *new: Instruction) -> Schedule:
    """New instructions before one; a new WAIT counts in old numbers."""
    program = schedule.programs[rank]
    return with_program(schedule, arranged(program, [*range(index), *new, *range(index, len(program))]))


def moved(schedule: Schedule, rank: int, index: int, to: int) -> Schedule:
    """One instruction moved to stand before the one that had number ``to``."""
    program = schedule.programs[rank]
    order: list[int | Instruction] = list(range(len(program)))
    order.remove(index)
    order.insert(order.index(to) if to in order else len(order), index)
    return with_program(schedule, arranged(program, order))
