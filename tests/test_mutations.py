"""One thing changed in a valid schedule: refused, or it computes the same in every interleaving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.edits import arranged, changed, with_program
from tests.executor import Machine
from tests.plans import paper
from tests.random_schedules import random_schedule
from vppc.ir.instruction import Forward, Program, Recv, Sample, Send, Wait
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule

SEEDS = range(12)
STRATEGIES = ("cpp", "vpp", "vpp-async", "vpp-packed")
FIELDS: dict[type, tuple[str, ...]] = {
    Forward: ("chunk", "stage", "in_", "out"),
    Send: ("chunk", "stage", "peer", "channel", "buffer"),
    Recv: ("chunk", "stage", "peer", "channel", "buffer"),
    Wait: ("of",),
    Sample: ("chunk", "buffer"),
}


def results(schedule: Schedule, random: Random, runs: int = 3) -> list[Any]:
    """What some interleavings compute, half of them with sends that complete alone."""
    return [Machine(schedule, random, eager).run() for eager in (False, True) for _ in range(runs)]


def mutants(schedule: Schedule, random: Random, count: int) -> Iterator[tuple[str, Schedule]]:
    """Schedules with one thing changed, and what kind of change it was."""
    ranks = [rank for rank, program in enumerate(schedule.programs) if len(program)]
    for _ in range(count):
        program = schedule.programs[random.choice(ranks)]
        kind = random.choice(("drop", "duplicate", "swap", "exchange", "move", "buffers", *["retarget"] * 4))
        if kind == "retarget":
            yield retargeted(schedule, program, random)
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


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_are_proven_and_compute_the_same_in_every_interleaving(seed: int) -> None:
    random = Random(seed)
    schedule = random_schedule(random)
    assert check(schedule) == ()
    first, *others = results(schedule, random)
    assert isinstance(first, tuple)
    assert all(other == first for other in others)


def test_a_changed_schedule_is_refused_or_computes_the_same() -> None:
    refused: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    harmless: Counter[str] = Counter()
    for seed in range(60):
        random = Random(f"mutants {seed}")
        schedule = valid(seed, random)
        expected = results(schedule, random, runs=1)[0]
        for kind, mutant in mutants(schedule, random, 40):
            if mutant.programs == schedule.programs:
                continue
            if check(mutant):
                refused[kind] += 1
                harmless[kind] += results(mutant, random, runs=1) == [expected, expected]
            else:
                accepted[kind] += 1
                assert results(mutant, random) == [expected] * 6, (seed, kind)
    print("\nrefused", sum(refused.values()), dict(refused))
    print("accepted, same results", sum(accepted.values()), dict(accepted))
    print("refused although two runs went well", sum(harmless.values()), dict(harmless))
    assert sum(refused.values()) > 1500
    assert sum(accepted.values()) > 50


def valid(seed: int, random: Random) -> Schedule:
    """A valid schedule: every third one compiled, the others by chance."""
    if seed % 3:
        return random_schedule(random)
    prompts = tuple(random.randint(1, 4) for _ in range(random.randint(1, 2)))
    compiled = paper(random.choice(STRATEGIES), prompts, random.randint(1, 3), transfer=random.choice((0.0, 0.5)))
    return replace(compiled, extra={})  # the certificate would be found wrong
