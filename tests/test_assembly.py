"""Assembly: what it looks like, that nothing is lost, and what is said about text that is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.errors import InputError
from vppc.ir.assembly import instruction_lines, parse_assembly, to_assembly
from vppc.ir.instruction import LARGEST, Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Channel, Chunk, Model, Order, Part, Request, Schedule, Stage

GOLDEN = Path(__file__).parent / "golden"


def sample() -> Schedule:
    """Two ranks, a V of four stages, a prompt of two chunks of which the second also decodes for another request."""
    rank0: list[Instruction] = [
        Forward(0, 0, None, 0),
        Send(0, 0, 1, 0, 0),
        Recv(0, 3, 1, 1, 1),
        Wait(1),
        Wait(2),
        Forward(0, 3, 1, None),
        Forward(1, 0, None, 0),
        Send(1, 0, 1, 0, 0),
        Recv(1, 3, 1, 1, 1),
        Wait(7),
        Wait(8),
        Forward(1, 3, 1, 0),
        Sample(1, 0),
    ]
    rank1: list[Instruction] = []
    for chunk in (0, 1):
        at = len(rank1)
        rank1 += [Recv(chunk, 1, 0, 0, 0), Wait(at), Forward(chunk, 1, 0, 1), Forward(chunk, 2, 1, 0)]
        rank1 += [Send(chunk, 2, 0, 1, 0), Wait(at + 4)]
    return Schedule(
        strategy="by hand",
        model=Model("deepseek-v3.1", 61),
        pp=2,
        vp=2,
        stages=(
            Stage(0, 0, (0, 16), {"modules": ["embed"]}),
            Stage(1, 1, (16, 31)),
            Stage(2, 1, (31, 46)),
            Stage(3, 0, (46, 61)),
        ),
        channels=(Channel(0, 0, 1), Channel(1, 1, 0)),
        requests=(Request("r0", 40960), Request('the "other"; {one}', 7, 7, 0.25, {"user": 3})),
        chunks=(
            Chunk((Part(0, 0, 24576),)),
            Chunk((Part(0, 24576, 16384), Part(1, 7, 1, True, {"draft": False})), {"hot": True}),
        ),
        programs=(
            replace(Program.of(0, 2, rank0), notes={3: {"why": "reuse; soon"}}),
            replace(Program.of(1, 2, rank1), extra={"memory": {"limit": 64.5}}),
        ),
        extra={"tp": 8, "weird key": None, "cost": {"name": "measured", "layers": [{"count": 61}]}},
    )


def test_golden() -> None:
    assert "".join(to_assembly(sample())) == (GOLDEN / "assembly.txt").read_text()


def test_golden_reads_back() -> None:
    assert parse_assembly((GOLDEN / "assembly.txt").read_text()) == sample()


def test_order_and_steps_read_back() -> None:
    ordered = replace(sample(), programs=(), order=Order(((0, 4, 3, 7), (1, 2, 5, 6)), (0, 1, 1, 2, 1, 2, 2, 3)))
    text = "".join(to_assembly(ordered))
    assert "order 0 c0.s0@0 c1.s0@1 c0.s3@2 c1.s3@3\norder 1 c0.s1@1 c0.s2@1 c1.s1@2 c1.s2@2\n" in text
    assert parse_assembly(text) == ordered
    without = replace(ordered, order=Order(((), (1, 2)), None))
    text = "".join(to_assembly(without))
    assert "order 0 empty\norder 1 c0.s1 c0.s2\n" in text
    assert parse_assembly(text) == without


def test_people_may_space_comment_and_rearrange() -> None:
    text = """
    ; a comment alone
    .note "first"   ; keys may come first
    rank\t0   buffers=1  {"x": "a;b"} ; with a JSON object
    0 FORWARD c0 s0 tokens -> b0 {"y": 1}
    1 SAMPLE c0 b0 -> token ; done
    schedule "s" version=1 pp=1 vp=1\r
    model "m" layers=1
    stage 0 rank=0 layers=0..1
    request 0 "r;0" prompt_tokens=1 cached_tokens=0 arrival=1e-3
    chunk 0 r0[0..1]
    """
    assert parse_assembly(text) == Schedule(
        "s",
        Model("m", 1),
        1,
        1,
        (Stage(0, 0, (0, 1)),),
        (),
        (Request("r;0", 1, 0, 0.001),),
        (Chunk((Part(0, 0, 1),)),),
        None,
        (replace(Program.of(0, 1, [Forward(0, 0, None, 0), Sample(0, 0)]), notes={0: {"y": 1}}, extra={"x": "a;b"}),),
        {"note": "first"},
    )


def test_a_part_of_a_program() -> None:
    program = sample().programs[1]
    lines = list(instruction_lines(sample(), program))
    assert list(instruction_lines(sample(), program, 3, 7)) == lines[3:7]
    assert list(instruction_lines(sample(), program, 10)) == lines[10:]


@pytest.mark.parametrize(("length", "first"), [(1000, "    0"), (1001, "     0")])
def test_numbers_are_as_wide_as_the_last(length: int, first: str) -> None:
    lines = list(instruction_lines(sample(), Program.of(0, 1, [Wait(7)] * length)))
    assert (lines[0].partition("WAIT")[0], len(lines[-1])) == (f"{first}  ", len(lines[0]))


def test_a_wait_for_nothing_has_no_comment() -> None:
    program = Program.of(0, 1, [Wait(7)])
    assert list(instruction_lines(sample(), program)) == ["    0  WAIT     7"]


HEAD = 'schedule "s" version=1 pp=1 vp=1\nmodel "m" layers=1\nstage 0 rank=0 layers=0..1\n'
BAD = {
    "nothing": "",
    "no model": 'schedule "s" version=1 pp=1 vp=1\n',
    "other version": 'schedule "s" version=2 pp=1 vp=1\n',
    "twice": HEAD + 'model "m" layers=2\n',
    "prose": "The schedule is as follows.\n",
    "json": '{"format": "vppc.schedule"}\n',
    "stage form": 'schedule "s" version=1 pp=1 vp=1\nstage 0 on rank 0\n',
    "negative": HEAD + "stage 1 rank=-1 layers=1..2\n",
    "string": HEAD + 'request 0 "r0 prompt_tokens=1 cached_tokens=0 arrival=0\n',
    "escape": HEAD + 'request 0 "\\q" prompt_tokens=1 cached_tokens=0 arrival=0\n',
    "seconds": HEAD + 'request 0 "r" prompt_tokens=1 cached_tokens=0 arrival=1e999\n',
    "skipped chunk": HEAD + "chunk 1 r0[0..1]\n",
    "part": HEAD + "chunk 0 r0[0..1] r1[0-4]\n",
    "backwards": HEAD + "chunk 0 r0[5..1]\n",
    "parts": HEAD + 'chunk 0 r0[0..1] {"parts": [{}, {}]}\n',
    "no rank": HEAD + "0 WAIT 0\n",
    "skipped": HEAD + "rank 0 buffers=1\n0 FORWARD c0 s0 tokens -> b0\n2 SAMPLE c0 b0 -> token\n",
    "unknown": HEAD + "rank 0 buffers=1\n0 BACKWARD c0 s0\n",
    "bare number": HEAD + "rank 0 buffers=1\n0\n",
    "arrow": HEAD + "rank 0 buffers=1\n0 FORWARD c0 s0 tokens <- b0\n",
    "recv arrow": HEAD + "rank 0 buffers=1\n0 RECV c0 s0 b0 -> rank 1 ch0\n",
    "large": HEAD + f"rank 0 buffers=1\n0 FORWARD c0 s0 tokens -> b{LARGEST + 1}\n",
    "very large": HEAD + f"rank 0 buffers=1\n0 WAIT {'9' * 5000}\n",
    "json tail": HEAD + 'rank 0 buffers=1 {"x": \n',
    "after json": HEAD + 'rank 0 buffers=1 {"x": 1} 5\n',
    "constant": HEAD + ".cost NaN\n",
    "deep": HEAD + f".deep {'[' * 100_000}\n",
    "digits": HEAD + f".digits {'9' * 5000}\n",
    "key form": HEAD + ".cost\n",
    "key twice": HEAD + ".cost 1\n.cost 2\n",
    "key of a line": HEAD + ".pp 1\n",
    "json on order": HEAD + 'order 0 c0.s0 {"x": 1}\n',
    "order stage": HEAD + "chunk 0 r0[0..1]\norder 0 c0.s1\n",
    "order form": HEAD + "order 0 s0\n",
    "order steps": HEAD + "chunk 0 r0[0..1]\nchunk 1 r0[1..2]\norder 0 c0.s0@0 c1.s0\n",
    "order skipped": HEAD + "order 1 c0.s0\n",
}


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_assembly(text, "plan.asm")
    return str(caught.value)


def test_messages() -> None:
    """Every message names the file, the line unless something is missing, the problem and what is expected."""
    said = "".join(f"# {name}\n{message(text)}\n" for name, text in BAD.items())
    assert said == (GOLDEN / "assembly_errors.txt").read_text()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def extras(*known: str) -> st.SearchStrategy[dict[str, Any]]:
    """Unknown keys: any JSON but the keys that the thing itself has."""
    keys = st.text().filter(lambda key: key not in known)
    return st.just({}) | st.dictionaries(keys, json_values, max_size=2)


small = st.integers(0, 1000)
numbers = st.integers(0, LARGEST)
instructions = st.one_of(
    st.builds(Forward, numbers, numbers, st.none() | numbers, st.none() | numbers),
    st.builds(Send, numbers, numbers, numbers, numbers, numbers),
    st.builds(Recv, numbers, numbers, numbers, numbers, numbers),
    st.builds(Wait, numbers),
    st.builds(Sample, numbers, numbers),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    listing = draw(st.lists(instructions, max_size=6))
    noted = draw(st.sets(st.sampled_from(range(len(listing))), max_size=2)) if listing else set()
    notes = {index: draw(st.dictionaries(st.text(), json_values, min_size=1, max_size=2)) for index in noted}
    return replace(Program.of(draw(small), draw(small), listing), notes=notes, extra=draw(extras()))


@st.composite
def orders(draw: st.DrawFn, chunks: int, stages: int) -> Order | None:
    ops = draw(st.permutations(range(chunks * stages)))
    cut = draw(st.integers(0, len(ops)))
    steps = st.none() | st.lists(small, min_size=len(ops), max_size=len(ops)).map(tuple)
    return draw(
        st.none() | st.builds(Order, st.just((tuple(ops[:cut]), tuple(ops[cut:]))), steps if ops else st.none())
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule that can be written down, however senseless."""
    parts = st.builds(Part, small, numbers, numbers, st.booleans(), extras())
    seconds = st.floats(0, allow_nan=False, allow_infinity=False)
    stages = draw(st.lists(st.builds(Stage, small, small, st.tuples(small, small), extras()), max_size=3))
    chunks = draw(st.lists(st.builds(Chunk, st.lists(parts, max_size=3).map(tuple), extras("parts")), max_size=3))
    return Schedule(
        strategy=draw(st.text()),
        model=Model(draw(st.text()), draw(small), draw(extras())),
        pp=draw(small),
        vp=draw(small),
        stages=tuple(stages),
        channels=tuple(draw(st.lists(st.builds(Channel, small, small, small, extras()), max_size=2))),
        requests=tuple(draw(st.lists(st.builds(Request, st.text(), numbers, numbers, seconds, extras()), max_size=3))),
        chunks=tuple(chunks),
        order=draw(orders(len(chunks), len(stages))),
        programs=tuple(draw(st.lists(programs(), max_size=3))),
        extra=draw(extras()),
    )


@settings(max_examples=60)
@given(schedules())
def test_any_schedule_reads_back(schedule: Schedule) -> None:
    assert parse_assembly("".join(to_assembly(schedule))) == schedule


@settings(max_examples=100)
@given(at=st.integers(0, 2000), cut=st.integers(0, 3), put=st.text(alphabet='{}";.,0129->bcs \n\\', max_size=3))
def test_damaged_text_is_refused_with_a_message_or_read(at: int, cut: int, put: str) -> None:
    text = "".join(to_assembly(sample()))
    try:
        schedule = parse_assembly(text[:at] + put + text[at + cut :])
    except InputError:  # anything else fails the test
        return
    assert parse_assembly("".join(to_assembly(schedule))) == schedule


def test_text_is_ascii_on_one_line_each() -> None:
    odd = replace(sample(), strategy="a\u2028b\x85\ud800", extra={"\n": "\r\n\u00e9"})
    text = "".join(to_assembly(odd))
    assert text.isascii()
    assert parse_assembly(text) == odd
    assert json.dumps(odd.strategy) in text
