"""The instruction list as a sequence, placements that do not exist, and segments for ranks that do not."""

from __future__ import annotations

import pytest

from tests.edits import by_hand
from vppc.errors import InputError
from vppc.ir.instruction import Forward, Program, Wait
from vppc.ir.placement import stage_ranks
from vppc.ir.rules import check_stream
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


@pytest.mark.parametrize("rank", [2, -1])
def test_a_segment_for_a_rank_that_does_not_exist(rank: int) -> None:
    segment = Segment(1, "1" * 64, programs=(Continuation(rank, 0, Program.of(rank, 0, []).code),))
    (finding,) = check_stream(BASE, [segment], closed=True)
    assert (finding.code, finding.place) == ("G4", "segment 1: programs[0].rank")
    assert finding.problem == f"rank {rank} does not exist"
