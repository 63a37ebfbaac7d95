"""Every rule has a program that breaks it and nothing else, and says so in words worth reading."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import arranged, by_hand, changed, dropped, inserted, moved, with_program
from tests.mutants import renamed_buffer
from tests.plans import paper
from tests.random_schedules import random_schedule
from vppc.errors import Finding
from vppc.ir.certificate import Certificate
from vppc.ir.instruction import LARGEST, WAIT, WIDTH, Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.rules import RULES, Verifier, check, check_stream
from vppc.ir.rules.explain import describe
from vppc.ir.rules.program import accept
from vppc.ir.rules.registry import SHOWN, Report
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage
from vppc.ir.segment import Continuation, Segment

GOLDEN = Path(__file__).parent / "golden" / "rules.txt"
DOCS = Path(__file__).parents[1] / "docs" / "rules.md"
BASE = by_hand()


def stages(*changes: tuple[int, dict[str, Any]]) -> Schedule:
    edited = list(BASE.stages)
    for index, fields in changes:
        edited[index] = replace(edited[index], **fields)
    return replace(BASE, stages=tuple(edited))


def chunks(*parts: tuple[Part, ...]) -> Schedule:
    return replace(BASE, chunks=tuple(map(Chunk, parts)))


def decoding(schedule: Schedule = BASE, **fields: Any) -> Schedule:
    """With a third chunk, which decodes: rank 0 runs it after the SAMPLE of chunk 1."""
    schedule = replace(schedule, chunks=(*schedule.chunks, Chunk((Part(0, 4, 1, True),))))
    end0, end1 = len(schedule.programs[0]), len(schedule.programs[1])
    forward: list[Instruction] = [Forward(2, 0, None, 2), Send(2, 0, 1, 0, 2), Recv(2, 3, 1, 1, 1)]
    back: list[Instruction] = [Wait(end0 + 1), Wait(end0 + 2), Forward(2, 3, 1, 0), Sample(2, 0)]
    middle: list[Instruction] = [Recv(2, 1, 0, 0, 0), Wait(end1), Forward(2, 1, 0, 1), Forward(2, 2, 1, 0)]
    schedule = appended(schedule, 0, *forward, *back)
    return appended(schedule, 1, *middle, Send(2, 2, 0, 1, 0), Wait(end1 + 4))


def appended(schedule: Schedule, rank: int, *instructions: Instruction) -> Schedule:
    program = schedule.programs[rank]
    return with_program(schedule, Program.of(rank, program.buffers, [*program, *instructions]))


def straight(*programs: list[Instruction], requests: tuple[int, ...] = (2,)) -> Schedule:
    """One stage a rank, a channel each way down; chunks of one token, one prompt after another."""
    ranks = range(len(programs))
    return Schedule(
        "by hand",
        Model("test", len(programs)),
        len(programs),
        1,
        tuple(Stage(rank, rank, (rank, rank + 1)) for rank in ranks),
        tuple(Channel(rank, rank, rank + 1) for rank in ranks[:-1]),
        tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(requests)),
        tuple(Chunk((Part(r, token, 1),)) for r, tokens in enumerate(requests) for token in range(tokens)),
        programs=tuple(Program.of(rank, 4, program) for rank, program in enumerate(programs)),
    )


def crossing_sends() -> Schedule:
    """Each of two ranks waits for its SEND before it posts the RECV that the other's SEND needs."""
    rank0 = arranged(BASE.programs[0], [0, 1, 3, 4, 5, 9, 2, 6, 7, 8, 10, 11, 12])
    rank1 = arranged(BASE.programs[1], [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11])
    return replace(BASE, programs=(rank0, rank1))


def eager_cycle() -> Schedule:
    """Rank 0 waits for what comes back of chunk 0 before it sends chunk 0."""
    return moved(moved(BASE, 0, 2, 1), 0, 6, 2)


def memory(**limits: float) -> Schedule:
    rank0, rank1 = BASE.programs
    return replace(BASE, programs=(rank0, replace(rank1, extra={"memory": limits})))


ORDER = [[0, 4], [1, 7], [0, 10], [1, 12], [0, 13]]
LIFETIMES = [
    [[0, 0, 4], [1, 2, 7], [2, 3, 9], [1, 8, 11], [0, 11, 12]],
    [[0, 0, 2], [1, 2, 3], [0, 3, 6], [1, 5, 8], [0, 8, 9], [1, 9, 11]],
]


def certified(order: list[list[int]] = ORDER, lifetimes: list[list[list[int]]] = LIFETIMES) -> Schedule:
    return replace(BASE, certificate=Certificate.read({"order": order, "lifetimes": lifetimes}))


BAD: dict[str, Callable[[], Schedule]] = {
    "S1": lambda: stages((1, {"stage": 2}), (2, {"stage": 1})),
    "S2": lambda: stages((2, {"rank": 0})),
    "S3": lambda: stages((1, {"layers": (2, 3)}), (2, {"layers": (1, 2)})),
    "S4": lambda: stages((1, {"layers": (1, 1)}), (2, {"layers": (1, 3)})),
    "S5": lambda: replace(BASE, programs=BASE.programs[::-1]),
    "S6": lambda: replace(BASE, extra={"cost": {"layers": [{"count": BASE.model.layers + 1}]}}),
    "R1": lambda: chunks((Part(0, 1, 2),), (Part(0, 3, 1), Part(1, 0, 1))),
    "R2": lambda: chunks((Part(0, 1, 2),), (Part(0, 3, 1),), ()),
    "R3": lambda: chunks((Part(0, 0, 3),), (Part(0, 3, 1),)),
    "R4": lambda: chunks((Part(0, 1, 2),), (Part(0, 3, 2),)),
    "R5": lambda: replace(BASE, requests=(*BASE.requests, Request("r1", 5))),
    "R6": lambda: replace(BASE, requests=(*BASE.requests, Request("r1", 5, 5))),
    "R7": lambda: replace(BASE, chunks=(*BASE.chunks, Chunk((Part(0, 4, 2, True),)))),
    "R8": lambda: replace(BASE, extra={"cancelled": [1]}),
    "T1": lambda: replace(stages((0, {"rank": 1}), (1, {"rank": 0})), chunks=decoding().chunks),
    "C1": lambda: replace(BASE, channels=(*BASE.channels, Channel(1, 0, 1))),
    "C2": lambda: replace(BASE, channels=(*BASE.channels, Channel(2, 1, 1))),
    "C3": lambda: replace(BASE, channels=BASE.channels[:1]),
    "P1": lambda: changed(BASE, 0, 3, chunk=2),
    "P2": lambda: inserted(BASE, 0, 3, Forward(0, 1, None, 2)),
    "P3": lambda: inserted(BASE, 0, 3, Forward(0, 0, None, 2)),
    "P4": lambda: dropped(BASE, 0, 7),
    "P5": lambda: changed(BASE, 1, 2, in_=None),
    "P6": lambda: changed(BASE, 1, 2, out=None),
    "P7": lambda: changed(BASE, 1, 4, stage=1),
    "P8": lambda: changed(BASE, 0, 1, channel=1),
    "P9": lambda: inserted(BASE, 0, 4, Wait(3)),
    "P10": lambda: inserted(BASE, 0, 13, Wait(5)),
    "P11": lambda: dropped(BASE, 1, 11),
    "P12": lambda: inserted(BASE, 0, 8, Sample(0, 1)),
    "P13": lambda: dropped(BASE, 0, 12),
    "B1": lambda: with_program(BASE, replace(BASE.programs[0], buffers=2)),
    "C4": lambda: replace(BASE, channels=(*BASE.channels, Channel(2, 0, 1))),
    "C5": lambda: dropped(BASE, 1, 0, 1),
    "C6": lambda: changed(changed(BASE, 1, 0, chunk=1), 1, 5, chunk=0),
    "B2": lambda: changed(BASE, 0, 5, buffer=0),
    "B3": lambda: moved(BASE, 1, 1, 3),
    "B4": lambda: moved(BASE, 1, 5, 3),
    "B5": lambda: changed(BASE, 0, 3, out=0),
    "B6": lambda: changed(with_program(BASE, replace(BASE.programs[0], buffers=4)), 0, 7, out=3),
    "K1": lambda: moved(BASE, 0, 3, 0),
    "T2": lambda: moved(decoding(), 0, 13, 12),
    "D1": eager_cycle,
    "D2": crossing_sends,
    "M1": lambda: memory(limit=100.0, weights=60.0, kv_per_token=20.0),
    "M2": lambda: replace(BASE, extra={"buffer_tokens": 1}),
    "X1": lambda: certified([[0, 13], [1, 12]]),
    "X2": lambda: certified(ORDER[:-1]),
    "X3": lambda: certified(lifetimes=[[*LIFETIMES[0][:4], [0, 10, 12]], LIFETIMES[1]]),
}
"""For every rule of a schedule, the base with one thing wrong."""

SEGMENT = Segment(1, "1" * 64, programs=(Continuation(0, 13, Program.of(0, 3, []).code),))

BAD_SEGMENT = {
    "G1": replace(SEGMENT, sequence=2),
    "G3": replace(SEGMENT, programs=(Continuation(0, 12, Program.of(0, 3, []).code),)),
    "G4": replace(SEGMENT, programs=(*SEGMENT.programs, *SEGMENT.programs)),
    "G5": replace(SEGMENT, programs=(replace(SEGMENT.programs[0], extra={"buffers": 9}),), extra={"channels": []}),
}


def findings(code: str) -> tuple[Finding, ...]:
    if code in BAD_SEGMENT:
        return check_stream(BASE, [BAD_SEGMENT[code]], closed=True)
    return check(BAD[code]())


def test_the_base_is_right() -> None:
    assert check(BASE) == check(decoding()) == check_stream(BASE, [SEGMENT], closed=True) == ()
    assert check(certified()) == ()


def test_every_rule_has_a_bad_example() -> None:
    assert [code for code in RULES if code not in BAD and code not in BAD_SEGMENT] == ["G2"]  # in test_segments.py


@pytest.mark.parametrize("code", [*BAD, *BAD_SEGMENT])
def test_a_bad_program_breaks_its_own_rule_only(code: str) -> None:
    assert {finding.code for finding in findings(code)} == {code}


def test_what_is_said() -> None:
    """Run with REWRITE_GOLDEN=1 to write the file anew, then read what it says."""
    said = "\n".join(f"{finding}\n" for code in RULES if code != "G2" for finding in findings(code))
    if "REWRITE_GOLDEN" in os.environ:
        GOLDEN.write_text(said, encoding="utf-8")
    assert said == GOLDEN.read_text(encoding="utf-8")


VARIANTS: list[tuple[str, Schedule, str]] = [
    ("S1", replace(BASE, stages=()), "0 stages, but pp 2 x vp 2 make 4"),
    ("S2", stages((3, {"rank": 7})), "rank 7 does not exist"),
    ("S3", replace(BASE, model=Model("test", 5)), "ends at layer 4, but the model has 5 layers"),
    ("S3", stages((0, {"layers": (1, 1 + 1)})), "starts at layer 1, not 0"),
    ("S5", replace(BASE, programs=BASE.programs[:1]), "1 programs for 2 ranks"),
    ("C2", replace(BASE, channels=(*BASE.channels, Channel(2, 0, 9))), "rank 9 does not exist"),
    ("R2", chunks((Part(0, 1, 0),), (Part(0, 1, 3),)), "holds 0 tokens"),
    ("R3", chunks((Part(0, 2, 2),)), "starts at token 2 of r0 and leaves out tokens 1 to 2"),
    ("R3", chunks((Part(0, 1, 2),), (Part(0, 2, 2),)), "starts at token 2 of r0 and repeats tokens 2 to 3"),
    ("R7", chunks((Part(0, 1, 2),), (Part(0, 3, 1, True),)), "decodes tokens 3 to 4 of r0, whose prompt has 4"),
    ("P1", changed(BASE, 1, 4, stage=9), "SEND c0 s9 names stage 9, which does not exist"),
    ("P1", changed(BASE, 0, 12, chunk=LARGEST), f"SAMPLE c{LARGEST} names chunk {LARGEST}, which does not exist"),
    ("P5", changed(BASE, 0, 0, in_=1), "FORWARD c0 s0 has `in` b1, but stage 0 reads tokens"),
    ("P6", changed(BASE, 0, 11, out=None), "FORWARD c1 s3 has no `out`"),
    ("P7", changed(BASE, 0, 1, peer=0), "SEND c0 s0 names peer 0, but stage 1 is on rank 1"),
    ("P7", changed(BASE, 1, 0, peer=1), "RECV c0 s1 names peer 1, but stage 0 is on rank 0"),
    ("P7", changed(BASE, 0, 1, stage=2), "SEND c0 s2 is on rank 0, but stage 2 is on rank 1"),
    ("P7", changed(BASE, 0, 1, stage=3), "SEND c0 s3 has nothing to pass: the last stage has no stage behind it"),
    ("P7", changed(BASE, 0, 2, stage=0), "RECV c0 s0 has nothing to pass: the first stage reads tokens"),
    ("P7", changed(BASE, 1, 0, stage=2), "RECV c0 s2 passes between stages 2 and 1, which are both on rank 1"),
    ("P8", changed(BASE, 1, 0, channel=5), "RECV c0 s1 uses channel 5, which does not lead from rank 0 to rank 1"),
    ("P9", changed(BASE, 0, 4, of=99), "WAIT 99 waits for instruction 99, which does not exist"),
    ("P9", changed(BASE, 0, 4, of=4), "WAIT 4 waits for instruction 4, which is a WAIT"),
    ("P9", changed(BASE, 0, 4, of=5), "WAIT 5 waits for instruction 5, which comes after it"),
    ("P9", changed(BASE, 0, 4, of=12), "WAIT 12 waits for instruction 12, which is a SAMPLE"),
    ("P12", appended(BASE, 0, Sample(1, 0)), "SAMPLE c1 runs a second time"),
    ("P12", appended(BASE, 1, Sample(1, 0)), "SAMPLE c1 runs on rank 1"),
    ("B1", changed(BASE, 0, 12, buffer=LARGEST), f"SAMPLE c1 uses b{LARGEST}, which does not exist"),
    ("B1", changed(BASE, 0, 1, buffer=3), "SEND c0 s0 uses b3, which does not exist"),
    ("B1", changed(BASE, 1, 0, buffer=2), "RECV c0 s1 uses b2, which does not exist"),
    ("B2", changed(BASE, 1, 9, in_=1), "FORWARD c1 s2 reads the output of c1 s1 from b1, which is empty"),
    (
        "B3",
        moved(BASE, 0, 7, 6),
        "FORWARD c0 s3 reads b1, but nothing has waited for RECV c0 s3 (instruction 2) that fills it",
    ),
    (
        "B2",
        changed(BASE, 0, 5, buffer=1),
        "SEND c1 s0 reads the output of c1 s0 from b1, which is in use by RECV c0 s3 (instruction 2)",
    ),
    ("B4", changed(changed(BASE, 1, 3, out=1), 1, 4, buffer=1), "FORWARD c0 s2 writes its own `in` b1"),
    ("B5", changed(BASE, 0, 3, out=1), "FORWARD c1 s0 writes b1 while RECV c0 s3 (instruction 2) uses it"),
]


@pytest.mark.parametrize(("code", "schedule", "problem"), VARIANTS, ids=[text for *_, text in VARIANTS])
def test_what_is_said_in_other_cases(code: str, schedule: Schedule, problem: str) -> None:
    first = check(schedule)[0]
    assert (first.code, first.problem) == (code, problem)


def test_a_part_that_leaves_out_tokens_is_sent_to_where_those_before_it_end() -> None:
    first = check(chunks((Part(0, 1, 1),), (Part(0, 3, 1),)))[0]
    assert (first.code, first.remedy) == ("R3", "start it at 2: its parts so far end there")


@pytest.mark.parametrize(("rank", "index", "channel"), [(0, 1, 0), (1, 4, 1), (0, 2, 1), (1, 0, 0)])
def test_a_channel_that_leads_elsewhere_is_told_the_one_that_does_not(rank: int, index: int, channel: int) -> None:
    first = check(changed(BASE, rank, index, channel=5))[0]
    assert (first.code, first.remedy) == ("P8", f"use channel {channel}")


OTHERS: list[tuple[str, str, Callable[[], Schedule]]] = [
    ("PyTorch's simulator: two SENDs cross, each waited for before the RECV", "D2", crossing_sends),
    ("swapped RECVs", "C6", lambda: changed(changed(BASE, 1, 0, chunk=1), 1, 5, chunk=0)),
    ("a SEND that nobody receives", "C5", lambda: dropped(BASE, 1, 0, 1)),
    ("a RECV that nobody sends to", "C5", lambda: dropped(BASE, 0, 1, 4)),
    ("a forward that runs twice", "P3", lambda: inserted(BASE, 0, 3, Forward(0, 0, None, 2))),
    ("chunk 1 before chunk 0", "K1", lambda: moved(BASE, 0, 3, 0)),
    (
        "a send buffer that the next forward writes while the send is in flight",
        "B5",
        lambda: changed(BASE, 0, 3, out=0),
    ),
    ("both directions of a pair on one channel", "C3", lambda: replace(BASE, channels=BASE.channels[:1])),
    ("layer ranges that are a permuted cover", "S3", BAD["S3"]),
    ("dropped layers: 61 over 4", "S3", lambda: replace(BASE, model=Model("deepseek", 5))),
    ("an empty stage", "S4", BAD["S4"]),
]


@pytest.mark.parametrize(("code", "schedule"), [each[1:] for each in OTHERS], ids=[each[0] for each in OTHERS])
def test_what_other_systems_let_through_is_refused_by_its_own_rule(code: str, schedule: Callable[[], Schedule]) -> None:
    assert {finding.code for finding in check(schedule())} == {code}


def test_one_rank_one_request_one_token() -> None:
    program: list[Instruction] = [Forward(0, 0, None, 0), Sample(0, 0)]
    assert check(straight(program, requests=(1,))) == ()
    assert (
        check(
            replace(
                straight(program, requests=(1,)), requests=(Request("r0", 9, 8),), chunks=(Chunk((Part(0, 8, 1),)),)
            )
        )
        == ()
    )


def test_a_schedule_of_nothing_is_proven() -> None:
    empty = tuple(replace(program, code=Program.of(0, 0, []).code) for program in BASE.programs)
    assert check(replace(BASE, requests=(), chunks=(), programs=empty)) == ()


def test_an_unfinished_compilation_is_refused() -> None:
    assert {finding.code for finding in check(replace(BASE, programs=()))} == {"S5"}


def test_many_findings_of_a_rule_are_counted() -> None:
    found = check(straight([], requests=(SHOWN + 5,)))
    assert Counter(finding.code for finding in found) == {"P4": SHOWN + 1, "P13": 1}
    assert found[SHOWN].problem == "5 more findings of this rule"


@pytest.mark.parametrize(("code", "again"), [("P3", Forward(0, 0, None, 0)), ("P10", Wait(1))], ids=["P3", "P10"])
def test_many_findings_of_an_instruction_are_counted(code: str, again: Instruction) -> None:
    found = check(appended(BASE, 0, *[again] * (SHOWN + 5)))
    assert [finding.code for finding in found] == [code] * (SHOWN + 1)
    assert found[SHOWN].problem == "5 more findings of this rule"


def test_many_reads_of_an_empty_buffer_are_counted() -> None:
    """Every chunk's FORWARD on rank 1 reads b5, which nothing fills."""
    schedule = replace(paper("cpp", SHOWN + 5), certificate=None)
    program = [each._replace(in_=5) if isinstance(each, Forward) else each for each in schedule.programs[1]]
    found = [each for each in check(with_program(schedule, Program.of(1, 6, program))) if each.code == "B2"]
    assert len(found) == SHOWN + 1
    assert found[0].problem == "FORWARD c0 s1 reads the output of c0 s0 from b5, which is empty"
    assert found[SHOWN].problem == "5 more findings of this rule"


def test_the_documentation_lists_every_rule_with_its_statement() -> None:
    rows = [row.split(" | ") for row in DOCS.read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-Z]\d", row)]
    assert [row[:2] for row in rows] == [
        [f"| {code}", rule.statement] for code, rule in sorted(RULES.items(), key=lambda item: item[1].level)
    ]


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_what_the_fast_scan_accepts_is_right_by_the_slow_reading(seed: int) -> None:
    """Instruction by instruction, what explains faults finds none in a valid schedule, and leaves the same behind."""
    schedule = random_schedule(Random(seed))
    fast, slow = (
        Verifier(schedule),
        Verifier(replace(schedule, programs=tuple(replace(p, code=p.code[:0]) for p in schedule.programs))),
    )
    report = Report()
    for tape, program in zip(slow.tapes, schedule.programs, strict=True):
        for index, row in enumerate(program.rows()):
            tape.extend(program.code[index * WIDTH : (index + 1) * WIDTH])
            if row[0] == WAIT:
                assert accept(tape, iter([row]), index) == index + 1
            else:
                describe(tape, index, report)
    assert report.findings() == ()
    for mine, other in zip(fast.tapes, slow.tapes, strict=True):
        assert (mine.todo, mine.unsampled, mine.holds, mine.flight) == (
            other.todo,
            other.unsampled,
            other.holds,
            other.flight,
        )


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=60)
def test_a_buffer_that_does_not_exist_is_refused_whatever_its_number(seed: int, data: st.DataObject) -> None:
    """Also where the whole program uses it as it should."""
    schedule = random_schedule(Random(seed))
    program = data.draw(st.sampled_from([each for each in schedule.programs if each.buffers]))
    one = data.draw(st.integers(0, program.buffers - 1))
    other = data.draw(st.one_of(st.integers(0, 4).map(program.buffers.__add__), st.just(LARGEST)))
    renamed = [renamed_buffer(each, one, other) for each in program]
    findings = check(with_program(schedule, Program.of(program.rank, program.buffers, renamed)))
    used = renamed != list(program)
    assert {finding.code for finding in findings if finding.code == "B1"} == ({"B1"} if used else set())


NUMBER = st.one_of(st.integers(0, 5), st.sampled_from([LARGEST, 100]))
BUFFER = st.one_of(st.none(), NUMBER)
INSTRUCTION = st.one_of(
    st.builds(Forward, NUMBER, NUMBER, BUFFER, BUFFER),
    st.builds(Send, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER),
    st.builds(Recv, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER),
    st.builds(Wait, NUMBER),
    st.builds(Sample, NUMBER, NUMBER),
)
CONTENTS = {
    "pp": st.integers(1, 3),
    "vp": st.integers(1, 3),
    "stages": st.lists(st.builds(Stage, NUMBER, NUMBER, st.tuples(NUMBER, NUMBER)), max_size=5).map(tuple),
    "channels": st.lists(st.builds(Channel, NUMBER, NUMBER, NUMBER), max_size=4).map(tuple),
    "requests": st.lists(st.builds(Request, st.just("r"), NUMBER, NUMBER), max_size=3).map(tuple),
    "chunks": st.lists(
        st.builds(Chunk, st.lists(st.builds(Part, NUMBER, NUMBER, NUMBER, st.booleans()), max_size=3).map(tuple)),
        max_size=4,
    ).map(tuple),
    "programs": st.lists(
        st.builds(Program.of, st.integers(0, 2), st.integers(0, 4), st.lists(INSTRUCTION, max_size=25)), max_size=3
    ).map(tuple),
}


@given(st.data())
@settings(max_examples=200)
def test_anything_that_can_be_read_is_judged(data: st.DataObject) -> None:
    """Some parts of a schedule replaced by others that are well-formed and mean nothing."""
    keys = data.draw(st.sets(st.sampled_from(sorted(CONTENTS)), max_size=3))
    if data.draw(st.booleans()):
        schedule = replace(BASE, **{key: data.draw(CONTENTS[key]) for key in sorted(keys)})
    else:  # only instructions
        programs = [Program.of(rank, 3, data.draw(st.lists(INSTRUCTION, max_size=25))) for rank in (0, 1)]
        schedule = replace(BASE, programs=tuple(programs))
    for finding in (*check(schedule), *check_stream(schedule, [], closed=False)):
        assert finding.code in RULES
        assert str(finding)
