"""One thing changed in a valid schedule: refused, or it computes the same in every interleaving."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.executor import Machine
from tests.mutants import mutants, valid
from tests.random_schedules import random_schedule
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule

SEEDS = range(12)


def results(schedule: Schedule, random: Random, runs: int = 3) -> list[Any]:
    """What some interleavings compute, half of them with sends that complete alone."""
    return [Machine(schedule, random, eager).run() for eager in (False, True) for _ in range(runs)]


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
