"""The instruction list as a sequence, edges of chunks with many parts, placements and segments that cannot be."""

from __future__ import annotations

from random import Random

import pytest

from tests.edits import by_hand
from tests.random_schedules import random_schedule
from vppc.errors import InputError
from vppc.ir.dag import Dag
from vppc.ir.instruction import Forward, Program, Wait
from vppc.ir.placement import stage_ranks
from vppc.ir.rules import check_stream
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Continuation, Segment

BASE = by_hand()


def test_a_program_is_a_sequence() -> None:
    program = BASE.programs[0]
    assert program[0] == program[-13] == Forward(0, 0, None, 0)
    assert program[-1] == list(program)[12]
    assert program[4:7:2] == [Wait(1), Wait(2)]
    for index in (13, -14):
        with pytest.raises(IndexError):
            program[index]


@pytest.mark.parametrize(
    ("placement", "vp", "message"),
    [
        ("ring", 2, "unknown placement 'ring'"),
        ("straight", 2, "placement straight has vp 1, not 2"),
        ("v", 3, "placement v has vp 2, not 3"),
        ("zigzag", 1, "placement zigzag needs vp of at least 2, not 1"),
        ("loop", 1, "placement loop needs vp of at least 2, not 1"),
    ],
)
def test_placements_that_do_not_exist(placement: str, vp: int, message: str) -> None:
    with pytest.raises(InputError) as raised:
        stage_ranks(placement, 2, vp)
    assert raised.value.problem == message


@pytest.mark.parametrize(
    ("placement", "vp", "ranks"),
    [("zigzag", 5, (0, 1, 1, 0, 0, 1, 1, 0, 0, 1)), ("loop", 3, (0, 1, 0, 1, 0, 1)), ("v", 2, (0, 1, 1, 0))],
)
def test_where_the_stages_are(placement: str, vp: int, ranks: tuple[int, ...]) -> None:
    assert stage_ranks(placement, 2, vp) == ranks


@pytest.mark.parametrize("rank", [2, -1])
def test_a_segment_for_a_rank_that_does_not_exist(rank: int) -> None:
    segment = Segment(1, "1" * 64, programs=(Continuation(rank, 0, Program.of(rank, 0, []).code),))
    (finding,) = check_stream(BASE, [segment], closed=True)
    assert (finding.code, finding.place) == ("G4", "segment 1: programs[0].rank")
    assert finding.problem == f"rank {rank} does not exist"


def test_a_chunk_depends_on_the_chunk_before_of_each_of_its_requests() -> None:
    shared = 0
    for seed in range(150):
        schedule = random_schedule(Random(seed))
        dag = Dag.of(schedule)
        for index, chunk in enumerate(schedule.chunks):
            before = {part.request: max(_with(schedule, part.request, index), default=-1) for part in chunk.parts}
            assert set(dag.prefix[index]) == set(before.values()) - {-1}
            decoding = {before[part.request] for part in chunk.parts if part.decode}
            assert set(dag.token[index]) == decoding
            shared += len(dag.prefix[index]) > 1
    assert shared > 10


def _with(schedule: Schedule, request: int, index: int) -> list[int]:
    """The chunks before ``index`` that hold a part of the request."""
    return [
        number
        for number, chunk in enumerate(schedule.chunks[:index])
        if any(part.request == request for part in chunk.parts)
    ]
