"""The verifier says of small programs what an explorer of all their interleavings says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from tests.edits import arranged, by_hand, changed, with_program
from tests.explorer import EAGER, RENDEZVOUS, ROOMS, Verdict, explore
from tests.mutants import impatient, mutants, reordered, valid
from tests.random_schedules import random_schedule
from vppc.ir.rules import check
from vppc.ir.schedule import Channel, Schedule

MOST_POSITIONS = 1500
"""Of the programs of all ranks together: what can be explored in some hundredths of a second."""
BASE = by_hand()


def compare(schedule: Schedule) -> tuple[str, Verdict]:
    """The first code that the verifier finds, or "", and what the explorer finds. Fails when they disagree."""
    findings = check(schedule)
    verdict = explore(schedule)
    code = findings[0].code if findings else ""
    where = f"{code or 'accepted'}, but {verdict}\n{[list(program) for program in schedule.programs]}"
    assert (code == "") == verdict.good, where
    if code == "D1":
        assert verdict.hangs == ROOMS, where
    elif code == "D2":
        assert RENDEZVOUS in verdict.hangs and EAGER not in verdict.hangs, where
    elif code:
        assert verdict.fault or verdict.hangs, where
    return code, verdict


def small(random: Random) -> Schedule:
    """A valid schedule that can be explored, mostly of several ranks."""
    least = random.choice((1, 2, 2, 2, 2))
    while True:
        tokens = random.randint(1, 2)
        schedule = random_schedule(random, max_pp=3, max_tokens=tokens) if random.random() < 0.7 else valid(0, random)
        positions = math.prod(len(program) + 1 for program in schedule.programs)
        if schedule.pp >= least and positions <= MOST_POSITIONS:
            return schedule


def programs(random: Random) -> Iterator[Schedule]:
    """A valid schedule, and others: by one change, by several, and by posts and WAITs in other orders."""
    schedule = small(random)
    yield schedule
    unused = Channel(9, 0, schedule.pp - 1)
    yield replace(schedule, channels=(*schedule.channels, unused)) if schedule.pp > 1 else schedule
    yield from (mutant for _, mutant in mutants(schedule, random, 5))
    several = schedule
    for _ in range(3):
        if all(map(len, several.programs)):
            [(_, several)] = mutants(several, random, 1)
    yield several
    for count in (3, 10, 30, 100, 300):
        hasty = reordered(schedule, random, count)
        yield hasty
        yield from (mutant for _, mutant in mutants(hasty, random, 1))
        yield impatient(hasty, random, random.choice((0.5, 1.0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_verifier_accepts_what_is_good_in_every_interleaving_and_nothing_else(seed: int) -> None:
    found: Counter[str] = Counter()
    states = 0
    random = Random(f"small {seed}")
    for schedule in unlike(each for _ in range(40) for each in programs(random)):
        code, verdict = compare(schedule)
        found[code] += 1
        states += verdict.states
    print(f"\n{sum(found.values())} programs, {states} states; accepted {found.pop('')}; refused {dict(found)}")
    assert min(found["D1"], found["D2"]) > 5


def unlike(schedules: Iterator[Schedule]) -> Iterator[Schedule]:
    seen = set()
    for schedule in schedules:
        key = repr((schedule.requests, schedule.chunks, schedule.channels, *map(list, schedule.programs)))
        if key not in seen:
            seen.add(key)
            yield schedule


def test_hangs_and_faults_by_hand() -> None:
    assert explore(BASE) == Verdict("", (), explore(BASE).states)
    rank0 = arranged(BASE.programs[0], [0, 1, 3, 4, 5, 9, 2, 6, 7, 8, 10, 11, 12])
    rank1 = arranged(BASE.programs[1], [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11])
    crossing = replace(
        BASE, programs=(rank0, rank1)
    )  # each waits for its SEND before it posts the RECV for the other's
    assert compare(crossing)[1].hangs == (RENDEZVOUS,)
    waits_first = with_program(BASE, arranged(BASE.programs[0], [0, 2, 6, 1, 3, 4, 5, 7, 8, 9, 10, 11, 12]))
    assert compare(waits_first)[1].hangs == ROOMS
    overwritten = changed(BASE, 0, 3, out=0)  # while a SEND may still read it
    assert compare(overwritten)[1].fault == "a buffer is in use"
