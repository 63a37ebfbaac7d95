"""Schedules with something changed in them, by chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.edits import arranged, changed, with_program
from tests.plans import paper
from tests.random_schedules import random_schedule
from vppc.ir.instruction import Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Schedule

STRATEGIES = ("cpp", "vpp", "vpp-async", "vpp-packed")
FIELDS: dict[type, tuple[str, ...]] = {
    Forward: ("chunk", "stage", "in_", "out"),
    Send: ("chunk", "stage", "peer", "channel", "buffer"),
    Recv: ("chunk", "stage", "peer", "channel", "buffer"),
    Wait: ("of",),
    Sample: ("chunk", "buffer"),
}


def valid(seed: int, random: Random) -> Schedule:
    """A valid schedule: every third one compiled, the others by chance."""
    if seed % 3:
        return random_schedule(random)
    prompts = tuple(random.randint(1, 4) for _ in range(random.randint(1, 2)))
    compiled = paper(random.choice(STRATEGIES), prompts, random.randint(1, 3), transfer=random.choice((0.0, 0.5)))
    return replace(compiled, extra={}, certificate=None)  # the certificate would be found wrong


def mutants(schedule: Schedule, random: Random, count: int) -> Iterator[tuple[str, Schedule]]:
    """Schedules with one thing changed, and what kind of change it was."""
    ranks = [rank for rank, program in enumerate(schedule.programs) if len(program)]
    for _ in range(count):
        program = schedule.programs[random.choice(ranks)]
        kind = random.choice(("drop", "duplicate", "swap", "exchange", "move", "buffers", "rename", *["retarget"] * 4))
        if kind == "retarget":
            yield retargeted(schedule, program, random)
        elif kind == "rename":
            one, other = random.randrange(program.buffers + 1), random.randrange(program.buffers + 4)
            renamed = [renamed_buffer(each, one, other) for each in program]
            yield kind, with_program(schedule, Program.of(program.rank, program.buffers, renamed))
        elif kind == "buffers":
            yield kind, with_program(schedule, replace(program, buffers=max(0, program.buffers - 1)))
        else:
            yield kind, with_program(schedule, arranged(program, rearranged(len(program), kind, random)))


def rearranged(length: int, kind: str, random: Random) -> list[int]:
    order = list(range(length))
    one, other = random.randrange(length), random.randrange(length)
    match kind:
        case "drop":
            del order[one]
        case "duplicate":
            order.insert(other, one)
        case "swap":
            order[one], order[other] = order[other], order[one]
        case "exchange":  # with the next one
            order.insert(min(one + 1, length - 1), order.pop(one))
        case "move":
            order.insert(max(0, one + random.randint(-3, 3)), order.pop(one))
    return order


def renamed_buffer(instruction: Instruction, one: int, other: int) -> Instruction:
    """The instruction with buffer ``other`` where it uses buffer ``one``."""
    fields = [name for name in ("in_", "out", "buffer") if getattr(instruction, name, None) == one]
    return instruction._replace(**dict.fromkeys(fields, other))


def retargeted(schedule: Schedule, program: Program, random: Random) -> tuple[str, Schedule]:
    """One field of one instruction, to a value near those that are in use."""
    index = random.randrange(len(program))
    name = random.choice(FIELDS[type(program[index])])
    most = {
        "chunk": len(schedule.chunks),
        "stage": len(schedule.stages),
        "peer": schedule.pp,
        "channel": len(schedule.channels),
        "of": len(program),
    }.get(name, program.buffers)
    value = random.randint(0, most)
    if name in ("in_", "out") and random.random() < 0.2:
        return f"retarget {name.strip('_')}", changed(schedule, program.rank, index, **{name: None})
    return f"retarget {name.strip('_')}", changed(schedule, program.rank, index, **{name: value})


def reordered(schedule: Schedule, random: Random, count: int) -> Schedule:
    """Neighbours exchanged up to ``count`` times, where no buffer and no WAIT ties them. A WAIT only ever moves
    ahead, so that many of these programs hang, and few break another rule."""
    long = [program.rank for program in schedule.programs if len(program) > 1]
    for _ in range(count if long else 0):
        program = schedule.programs[random.choice(long)]
        at = random.randrange(len(program) - 1)
        if random.random() < 0.7 and not isinstance(program[at + 1], Wait):
            continue
        if not isinstance(program[at], Wait) and not touched(program, at) & touched(program, at + 1):
            order = list(range(len(program)))
            order[at : at + 2] = at + 1, at
            schedule = with_program(schedule, arranged(program, order))
    return schedule


def impatient(schedule: Schedule, random: Random, share: float) -> Schedule:
    """A ``share`` of the SENDs waited for as soon as they are posted: good where SENDs complete alone."""
    for program in schedule.programs:
        order = list(range(len(program)))
        for index, each in enumerate(program):
            if isinstance(each, Wait) and isinstance(program[each.of], Send) and random.random() < share:
                order.remove(index)
                order.insert(order.index(each.of) + 1, index)
        schedule = with_program(schedule, arranged(program, order))
    return schedule


def touched(program: Program, index: int) -> set[object]:
    """The buffers that an instruction uses, the channel that it posts on, and the stage whose KV it writes."""
    match program[index]:
        case Forward(_, stage, read, write):
            return {read, write, ("stage", stage)} - {None}
        case Send(_, _, _, channel, buffer) | Recv(_, _, _, channel, buffer):
            return {buffer, ("channel", channel)}
        case Wait(of):
            return {each for each in touched(program, of) if isinstance(each, int)}
        case Sample(_, buffer):  # before what decodes from it enters
            return {buffer, ("stage", 0)}
