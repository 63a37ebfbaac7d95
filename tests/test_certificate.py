"""Certificates: what a proof writes down, and that a wrong one is found."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import by_hand, dropped
from tests.random_schedules import random_schedule
from vppc.errors import CheckFailed, InputError
from vppc.ir.certificate import Certificate, entries, flat
from vppc.ir.instruction import Forward, Recv, Sample, Send, Wait
from vppc.ir.rules import check, prove
from vppc.ir.schedule import Schedule

ROOT = Path(__file__).parents[1]
SEEDS = st.integers(0, 10**6)


def as_json(certificate: Certificate) -> Any:
    return json.loads("".join(certificate.text()))


def test_by_hand() -> None:
    assert as_json(prove(by_hand())) == {
        "order": [[0, 4], [1, 7], [0, 10], [1, 12], [0, 13]],
        "lifetimes": [
            [[0, 0, 4], [1, 2, 7], [2, 3, 9], [1, 8, 11], [0, 11, 12]],
            [[0, 0, 2], [1, 2, 3], [0, 3, 6], [1, 5, 8], [0, 8, 9], [1, 9, 11]],
        ],
    }


@given(SEEDS)
@settings(max_examples=60)
def test_its_order_runs_everything_and_nobody_blocks(seed: int) -> None:
    schedule = random_schedule(Random(seed))
    reached = [0] * schedule.pp
    posted: dict[tuple[int, type], int] = defaultdict(int)
    number: dict[tuple[int, int], int] = {}
    for rank, upto in entries(prove(schedule).order, 2):
        assert reached[rank] < upto
        for index in range(reached[rank], upto):
            match schedule.programs[rank][index]:
                case (Send() | Recv()) as post:
                    number[rank, index] = posted[post.channel, type(post)]
                    posted[post.channel, type(post)] += 1
                case Wait(of):
                    post = schedule.programs[rank][of]
                    assert isinstance(post, Send | Recv)
                    other = Recv if isinstance(post, Send) else Send
                    assert posted[post.channel, other] > number[rank, of]
        reached[rank] = upto
    assert reached == [len(program) for program in schedule.programs]


@given(SEEDS)
@settings(max_examples=60)
def test_its_lifetimes_cover_every_use_of_a_buffer_and_do_not_overlap(seed: int) -> None:
    schedule = random_schedule(Random(seed))
    for program, lifetimes in zip(schedule.programs, prove(schedule).lifetimes, strict=True):
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for buffer, first, last in entries(lifetimes, 3):
            spans[buffer].append((first, last))
        for used in spans.values():
            assert all(end <= start for (_, end), (start, _) in pairwise(used))
        for index, instruction in enumerate(program):
            match instruction:
                case Forward(_, _, read, write):
                    assert read is None or any(last == index for _, last in spans[read])
                    assert write is None or any(first == index for first, _ in spans[write])
                case Recv() | Send() | Sample():
                    assert any(first <= index <= last for first, last in spans[instruction.buffer])


@given(SEEDS)
@settings(max_examples=40)
def test_a_proven_schedule_passes_with_its_certificate_from_a_file(seed: int) -> None:
    schedule = random_schedule(Random(seed))
    document = as_json(prove(schedule))
    certified = replace(schedule, certificate=Certificate.read(document))
    assert check(certified) == ()
    assert as_json(prove(certified)) == document


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_certificate_with_an_entry_changed_or_missing_is_found(seed: int, random: Random) -> None:
    schedule = random_schedule(Random(seed))
    document = as_json(prove(schedule))
    ranks = [rank for rank, each in enumerate(document["lifetimes"]) if each]
    kind = random.choice(
        ("step", "missing step", "lifetime", "missing lifetime", "double lifetime") if ranks else ("missing step",)
    )
    if kind == "missing step":
        rank = random.choice(document["order"])[0]
        document["order"].remove([rank, len(schedule.programs[rank])])
    elif kind == "step":
        random.choice(document["order"])[1] += random.choice((1, 1000))
    else:
        lifetimes = document["lifetimes"][random.choice(ranks)]
        entry = random.randrange(len(lifetimes))
        if kind == "lifetime":
            lifetimes[entry][random.randrange(3)] += 1
        elif kind == "double lifetime":
            lifetimes.append(lifetimes[entry])
        else:
            lifetimes.pop(entry)
    codes = {finding.code for finding in check(replace(schedule, certificate=Certificate.read(document)))}
    assert codes & ({"X1", "X2"} if "step" in kind else {"X3"})


@pytest.mark.parametrize(
    ("order", "code", "place", "problem"),
    [
        ([[2, 1]], "X2", "certificate.order[0]", "rank 2 does not exist"),
        ([[0, 4], [0, 3]], "X2", "certificate.order[1]", "rank 0 goes from instruction 4 to 3"),
        ([[0, 14]], "X2", "certificate.order[0]", "rank 0 goes from instruction 0 to 14"),
        ([[0, 4], [1, 7]], "X2", "certificate.order", "ends with rank 0 at instruction 4 of 13"),
        (
            [[0, 5]],
            "X1",
            "certificate.order[0]",
            "rank 0 passes its instruction 4 before rank 1 has posted RECV c0 s1 (instruction 0)",
        ),
    ],
)
def test_what_is_said_of_an_order(order: list[list[int]], code: str, place: str, problem: str) -> None:
    claim = replace(prove(by_hand()), order=flat(order, 2))
    first = check(replace(by_hand(), certificate=claim))[0]
    assert (first.code, first.place, first.problem) == (code, place, problem)


def test_a_certificate_for_another_number_of_ranks() -> None:
    right = prove(by_hand())
    (finding,) = check(replace(by_hand(), certificate=replace(right, lifetimes=right.lifetimes[:1])))
    assert (finding.code, finding.problem) == ("X3", "has 1 lists for 2 ranks")


def test_a_wrong_certificate_does_not_hide_a_wrong_schedule() -> None:
    bad = dropped(by_hand(), 0, 12)
    assert {finding.code for finding in check(replace(bad, certificate=Certificate(array("i"), ())))} == {"P13"}


def test_proving_a_wrong_schedule_raises_its_findings() -> None:
    bad: Schedule = dropped(by_hand(), 0, 12)
    with pytest.raises(CheckFailed) as caught:
        prove(bad)
    assert caught.value.findings == check(bad)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ([], "certificate"),
        ({}, "certificate.order"),
        ({"order": [[0]], "lifetimes": []}, "certificate.order"),
        ({"order": [[0, True]], "lifetimes": []}, "certificate.order"),
        ({"order": [[0, 1.0]], "lifetimes": []}, "certificate.order"),
        ({"order": ["ab"], "lifetimes": []}, "certificate.order"),
        ({"order": [], "lifetimes": {}}, "certificate.lifetimes"),
        ({"order": [], "lifetimes": [[[0, 1]]]}, "certificate.lifetimes"),
        ({"order": [], "lifetimes": [None]}, "certificate.lifetimes"),
    ],
)
def test_what_is_no_certificate_is_bad_input(document: Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        Certificate.read(document)
    assert caught.value.place == place
    assert caught.value.remedy


def test_checking_needs_the_standard_library_only() -> None:
    """A runtime checks what it runs, on machines without the compiler's dependencies."""
    code = "import sys, vppc.ir.rules; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pydantic", "networkx", "click", "torch", "numpy"} & set(run.stdout.split())
