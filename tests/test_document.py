"""Schedule and segment files: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vppc.cli.schema import command
from vppc.compiler import compile_schedule, paper_cost
from vppc.errors import InputError, VppcError
from vppc.ir import instruction_json, lifting
from vppc.ir.certificate import Certificate
from vppc.ir.document import (
    digest,
    parse_schedule,
    parse_segment,
    read_schedule,
    read_segment,
    schedule_text,
    segment_text,
)
from vppc.ir.instruction import LARGEST, Forward, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage
from vppc.ir.schema import schedule_schema, segment_schema
from vppc.ir.segment import Continuation, Segment
from vppc.passes.strategies import Options

SMALL = Schedule(
    strategy="vpp-async",
    model=Model("m", 4),
    pp=2,
    vp=2,
    stages=tuple(Stage(s, rank, (s, s + 1)) for s, rank in enumerate((0, 1, 1, 0))),
    channels=(Channel(0, 0, 1), Channel(1, 1, 0)),
    requests=(Request("r0", 8),),
    chunks=(Chunk((Part(0, 0, 8),)),),
    programs=(
        Program.of(
            0,
            2,
            [
                Forward(0, 0, None, 0),
                Send(0, 0, 1, 0, 0),
                Recv(0, 3, 1, 1, 1),
                Wait(1),
                Wait(2),
                Forward(0, 3, 1, 0),
                Sample(0, 0),
            ],
        ),
        Program.of(
            1,
            2,
            [
                Recv(0, 1, 0, 0, 0),
                Wait(0),
                Forward(0, 1, 0, 1),
                Forward(0, 2, 1, 0),
                Send(0, 2, 0, 1, 0),
                Wait(4),
            ],
        ),
    ),
    extra={"cost": {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "fixed": 1}]}},
)
TEXT = """\
{
"format": "vppc.schedule", "version": 1, "strategy": "vpp-async",
"model": {"name": "m", "layers": 4}, "pp": 2, "vp": 2,
"stages": [
  {"stage": 0, "rank": 0, "layers": [0, 1]},
  {"stage": 1, "rank": 1, "layers": [1, 2]},
  {"stage": 2, "rank": 1, "layers": [2, 3]},
  {"stage": 3, "rank": 0, "layers": [3, 4]}],
"channels": [
  {"id": 0, "src": 0, "dst": 1},
  {"id": 1, "src": 1, "dst": 0}],
"requests": [
  {"id": "r0", "prompt_tokens": 8, "cached_tokens": 0, "arrival": 0.0}],
"chunks": [
  {"parts": [{"request": 0, "start": 0, "tokens": 8}]}],
"cost": {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "fixed": 1}]},
"programs": [
{"rank": 0, "buffers": 2, "instructions": [
  {"op": "FORWARD", "chunk": 0, "stage": 0, "in": null, "out": 0},
  {"op": "SEND", "chunk": 0, "stage": 0, "peer": 1, "channel": 0, "buffer": 0},
  {"op": "RECV", "chunk": 0, "stage": 3, "peer": 1, "channel": 1, "buffer": 1},
  {"op": "WAIT", "of": 1},
  {"op": "WAIT", "of": 2},
  {"op": "FORWARD", "chunk": 0, "stage": 3, "in": 1, "out": 0},
  {"op": "SAMPLE", "chunk": 0, "buffer": 0}]},
{"rank": 1, "buffers": 2, "instructions": [
  {"op": "RECV", "chunk": 0, "stage": 1, "peer": 0, "channel": 0, "buffer": 0},
  {"op": "WAIT", "of": 0},
  {"op": "FORWARD", "chunk": 0, "stage": 1, "in": 0, "out": 1},
  {"op": "FORWARD", "chunk": 0, "stage": 2, "in": 1, "out": 0},
  {"op": "SEND", "chunk": 0, "stage": 2, "peer": 0, "channel": 1, "buffer": 0},
  {"op": "WAIT", "of": 4}]}]
}
"""
# Python 3.13 names the comma, those before it what they miss behind it.
TRAILING_COMMAS = (
    (
        "line 32, column 25: not JSON: illegal trailing comma before end of object",
        "line 32, column 26: not JSON: illegal trailing comma before end of array",
    )
    if sys.version_info >= (3, 13)
    else (
        "line 32, column 26: not JSON: expecting property name enclosed in double quotes",
        "line 32, column 27: not JSON: expecting value",
    )
)
SEGMENT = Segment(
    sequence=3,
    previous="0f" * 32,
    requests=(Request("r1", 4, 1, 0.5),),
    chunks=(Chunk((Part(1, 1, 3),)),),
    programs=(Continuation(0, 118, Program.of(0, 0, [Forward(1, 0, None, 0), Wait(7)]).code),),
)
SEGMENT_TEXT = f"""\
{{
"format": "vppc.segment", "version": 1, "sequence": 3, "previous": "{"0f" * 32}",
"requests": [
  {{"id": "r1", "prompt_tokens": 4, "cached_tokens": 1, "arrival": 0.5}}],
"chunks": [
  {{"parts": [{{"request": 1, "start": 1, "tokens": 3}}]}}],
"programs": [
{{"rank": 0, "from": 118, "instructions": [
  {{"op": "FORWARD", "chunk": 1, "stage": 0, "in": null, "out": 0}},
  {{"op": "WAIT", "of": 7}}]}}]
}}
"""

SCHEDULES = jsonschema.Draft202012Validator(schedule_schema())
SEGMENTS = jsonschema.Draft202012Validator(segment_schema())

numbers = st.integers(0, LARGEST)
buffers = st.none() | numbers
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
strings = st.text(max_size=6)
extras = st.just({}) | st.dictionaries(strings.map("x:".__add__), values, max_size=2)
instructions = st.one_of(
    st.builds(Forward, numbers, numbers, buffers, buffers),
    st.builds(Send, numbers, numbers, numbers, numbers, numbers),
    st.builds(Recv, numbers, numbers, numbers, numbers, numbers),
    st.builds(Wait, numbers),
    st.builds(Sample, numbers, numbers),
)
requests = st.builds(Request, strings, st.integers(1, LARGEST), numbers, st.floats(0, 1e12), extra=extras)
chunks = st.builds(
    Chunk,
    st.lists(
        st.builds(Part, numbers, numbers, st.integers(1, LARGEST), st.booleans(), extras), min_size=1, max_size=3
    ).map(tuple),
    extras,
)


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=3).map(tuple)


@st.composite
def codes(draw: st.DrawFn) -> tuple[array[int], dict[int, Any]]:
    program = Program.of(0, 0, draw(st.lists(instructions, max_size=12)))
    noted = draw(st.lists(st.integers(0, len(program) - 1), max_size=2, unique=True)) if len(program) else []
    return program.code, {index: extra for index in noted if (extra := draw(extras))}


programs = st.builds(
    lambda rank, size, code, extra: Program(rank, size, *code, extra), numbers, st.integers(0, 2**20), codes(), extras
)
continuations = st.builds(
    lambda rank, start, code, extra: Continuation(rank, start, *code, extra), numbers, numbers, codes(), extras
)
tables = {
    width: st.lists(st.integers(-(2**31), LARGEST), max_size=4 * width).map(
        lambda each, width=width: array("i", each[: len(each) // width * width])
    )
    for width in (2, 3)
}
schedules = st.builds(
    Schedule,
    strategy=strings,
    model=st.builds(Model, strings, st.integers(1, 2**20), extras),
    pp=st.integers(1, 2**16),
    vp=st.integers(1, 2**16),
    stages=tuples(st.builds(Stage, numbers, numbers, st.tuples(numbers, numbers), extras)),
    channels=tuples(st.builds(Channel, numbers, numbers, numbers, extras)),
    requests=tuples(requests),
    chunks=tuples(chunks),
    programs=tuples(programs),
    extra=extras,
    certificate=st.none() | st.builds(Certificate, tables[2], tuples(tables[3]), extras),
)
segments = st.builds(
    Segment,
    numbers,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    tuples(requests),
    tuples(chunks),
    tuples(continuations),
    extras,
)


def written(schedule: Schedule) -> str:
    return "".join(schedule_text(schedule))


def error_of(text: str, parse: Callable[[str, str], Any] = parse_schedule) -> str:
    with pytest.raises(InputError) as raised:
        parse(text, "s.json")
    return str(raised.value)


def test_a_schedule_is_written_a_line_a_stage_a_chunk_an_instruction() -> None:
    assert written(SMALL) == TEXT
    assert parse_schedule(TEXT) == SMALL


def test_a_segment_is_written_like_a_schedule() -> None:
    assert "".join(segment_text(SEGMENT)) == SEGMENT_TEXT
    assert parse_segment(SEGMENT_TEXT) == SEGMENT


def test_files(tmp_path: Path) -> None:
    schedule, segment = tmp_path / "s.json", tmp_path / "s1.json"
    schedule.write_text(TEXT)
    segment.write_text(SEGMENT_TEXT)
    assert read_schedule(str(schedule)) == SMALL
    assert read_segment(str(segment)) == SEGMENT
    assert digest(schedule.read_bytes()) == hashlib.sha256(TEXT.encode()).hexdigest()
    with pytest.raises(InputError, match=r"s1\.json: is a segment, not a schedule"):
        read_schedule(str(segment))


@given(schedules)
@settings(max_examples=60)
def test_a_schedule_comes_back_with_all_it_carries(schedule: Schedule) -> None:
    text = written(schedule)
    again = parse_schedule(text)
    assert again == schedule
    assert written(again) == text
    SCHEDULES.validate(json.loads(text))


@given(segments)
@settings(max_examples=40)
def test_a_segment_comes_back_with_all_it_carries(segment: Segment) -> None:
    text = "".join(segment_text(segment))
    assert parse_segment(text) == segment
    SEGMENTS.validate(json.loads(text))


@given(schedules, st.integers(1, 200), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=60)
def test_the_layout_of_the_text_and_how_it_is_cut_into_pieces_change_nothing(
    schedule: Schedule, piece: int, indent: int | None, shuffled: bool
) -> None:
    def shuffle(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(key, shuffle(each)) for key, each in value.items()]
            random.Random(piece).shuffle(items)
            return dict(items)
        return [shuffle(each) for each in value] if isinstance(value, list) else value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "_PIECE", piece)
        patch.setattr(instruction_json, "_LINES", piece)
        document = json.loads(written(schedule))
        text = json.dumps(shuffle(document) if shuffled else document, indent=indent)
        assert parse_schedule(text) == schedule


def test_ordinary_lists_are_lifted_and_lists_with_unknown_keys_are_not() -> None:
    certificate = Certificate(array("i", (0, 7, 1, -6)), (array("i", (0, 0, 3)), array("i")))
    text = written(replace(SMALL, certificate=certificate))

    def compact(old: str = "", new: str = "") -> list[bool]:
        assert old in text
        document = lifting.load(text.replace(old, new, 1).encode(), "", json.loads)
        lists = [document["chunks"], document["certificate"]] + [each["instructions"] for each in document["programs"]]
        return [isinstance(each, tuple | Certificate | array) for each in lists]

    assert compact() == [True] * 4
    assert compact('"of": 4', '"of": 4, "why": 0') == [True, True, True, False]
    assert compact('"tokens": 8', '"tokens": 8, "why": 0') == [False, True, True, True]
    assert compact('"tokens": 8}]', '"tokens": 8}], "why": 0') == [False, True, True, True]
    assert compact('"tokens": 8', '"tokens": 8, "decode": false') == [True] * 4
    assert compact('"order": [[0, 7], [', '"order": [[0, 7], [0, ') == [True, False, True, True]
    assert compact("[[[0, 0, 3]], []]}", '[[[0, 0, 3]], []], "why": 0}') == [True, False, True, True]
    for wrong in ("-1", "true", "2147483648", "1.0", "null"):
        assert compact('"start": 0', f'"start": {wrong}') == [False, True, True, True]
        assert compact('"of": 1', f'"of": {wrong}') == [True, True, False, False]  # nor any behind it
    behind = json.loads(text.replace('"of": 2', '"of": 2, "y": 0'))
    behind["certificate"] = behind.pop("certificate")
    text = json.dumps(behind)
    assert compact() == [True, True, False, False]
    text = json.dumps(behind | {"programs": behind["programs"][1:]}, separators=(",", ":"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "_PIECE", 1)
        assert compact() == [True] * 3
    text = written(SMALL)
    with pytest.raises(InputError, match="appears twice"):
        compact('"start": 0', '"start": 1, "st\\u0061rt": 0')


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_comma_behind_the_last_element_is_no_json(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifting, "_PIECE", piece)
    text = json.dumps(json.loads(written(SMALL)))
    assert parse_schedule(text) == SMALL
    with pytest.raises(InputError, match="not JSON"):
        parse_schedule(text.replace('"buffer": 0}]}', '"buffer": 0}, ]}', 1))


def test_a_list_with_a_schedule_in_it_is_none() -> None:
    with pytest.raises(InputError, match=r"a list is not a vppc\.schedule document"):
        parse_schedule(f"[{written(SMALL)}]")


@pytest.mark.parametrize("begin", ['"chunks": [', '"instructions": [', '"certificate": {"order": ['])
def test_many_beginnings_of_a_list_are_not_each_read_to_the_end(begin: str) -> None:
    """That would take minutes."""
    assert "nested too deeply" in error_of(("{" + begin) * 200_000 + "]]}]")


def test_reading_takes_no_more_memory_than_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its bytes; the objects of JSON alone are over three times as much."""
    monkeypatch.setattr(lifting, "_PIECE", 2**13)
    options = Options(strategy="vpp-async", pp=2, chunk_size=1)
    schedule = compile_schedule((Request("r0", 1000),), Model("m", 4), paper_cost(4, 1.0, 0.1), options)
    data = written(schedule).encode()
    tracemalloc.start()
    try:
        assert parse_schedule(data) == replace(schedule, order=None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data)


def test_lists_of_instructions_elsewhere_are_left_alone() -> None:
    odd = {"instructions": [{"op": "WAIT", "of": 1}]}
    schedule = Schedule(**{**vars(SMALL), "extra": {"provenance": odd, 'x"instructions': [odd], "y": [[odd]]}})
    assert parse_schedule(written(schedule)) == schedule


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"layers": [0, 1]', '"layers": [3, 1]'),
        ('"layers": [0, 1]', '"layers": [7, 9]'),
        ('{"request": 0, "start"', '{"request": 2147483647, "start"'),
        ('"pp": 2', '"pp": 3'),
        ('"of": 1', '"of": 2147483647'),
        ('"peer": 1', '"peer": 5'),
        ('"cached_tokens": 0', '"cached_tokens": 8'),
        ('"stage": 3, "rank"', '"stage": 9, "rank"'),
        ('{"rank": 1, "buffers": 2', '{"rank": 0, "buffers": 0'),
    ],
)
def test_what_only_disagrees_with_another_place_is_read(old: str, new: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new)
    assert json.loads(written(parse_schedule(text))) == json.loads(text)


INTEGER = "an integer, without quotes or a decimal point"
OPS = '"FORWARD", "SEND", "RECV", "WAIT", "SAMPLE"'
WRONG = [
    ('"strategy": "vpp-async"', '"strategy": null', "strategy: null is not a string", "a string in quotes"),
    ('"model": {"name": "m", ', '"model": {', 'model: the key "name" is missing', ""),
    ('"model": {"name": "m", "layers": 4}', '"model": "m"', 'model: "m" is not an object', "an object in { }"),
    ('"layers": 4', '"layers": 0', "model.layers: 0 is too small", "at least 1"),
    ('"layers": 4', '"layers": 1048577', "model.layers: 1048577 is too large", "at most 1048576"),
    ('"pp": 2', '"pp": true', "pp: true is not an integer", INTEGER),
    ('"pp": 2', '"pp": "2"', 'pp: "2" is not an integer', INTEGER),
    ('"pp": 2', '"pp": 65537', "pp: 65537 is too large", "at most 65536"),
    ('"pp": 2', f'"pp": {10**40}', "pp: an integer of over 30 digits is too large", "at most 65536"),
    ('"vp": 2', '"vp": 0', "vp: 0 is too small", "at least 1"),
    ('"vp": 2', '"vp": 2, "tp": 0', "tp: 0 is too small", "at least 1"),
    ('"vp": 2', '"vp": 2, "payload": {}', "payload: an object is not a list", "a list in [ ]"),
    ('"vp": 2', '"vp": 2, "prediction": 3', "prediction: 3 is not an object", "an object in { }"),
    (
        '"vp": 2',
        '"vp": 2, "payload": [{"name": "h", "shape": ["tokens"], "dtype": "bf16", "layout": "split"}]',
        'payload[0].layout: "split" is not allowed',
        '"replicated" or "sharded"',
    ),
    ('"layers": [0, 1]', '"layers": [0]', "stages[0].layers: a list of 1 is too short", "at least 2"),
    ('"layers": [0, 1]', '"layers": [0, 1, 2]', "stages[0].layers: a list of 3 is too long", "at most 2"),
    ('"layers": [0, 1]', '"layers": [-1, 1]', "stages[0].layers[0]: -1 is too small", "at least 0"),
    ('"dst": 0', '"dst": -1', "channels[1].dst: -1 is too small", "at least 0"),
    ('"id": "r0"', '"id": 0', "requests[0].id: 0 is not a string", "a string in quotes"),
    ('"prompt_tokens": 8', '"prompt_tokens": 0', "requests[0].prompt_tokens: 0 is too small", "at least 1"),
    ('"arrival": 0.0', '"arrival": -1', "requests[0].arrival: -1 is too small", "at least 0"),
    ('"arrival": 0.0', '"arrival": "now"', 'requests[0].arrival: "now" is not a number', "a number, without quotes"),
    ('"tokens": 8}', '"tokens": 0}', "chunks[0].parts[0].tokens: 0 is too small", "at least 1"),
    ('"tokens": 8}', '"tokens": 8, "decode": 1}', "chunks[0].parts[0].decode: 1 is not a truth value",
     "true or false"),
    ('[{"request": 0, "start": 0, "tokens": 8}]', "[]", "chunks[0].parts: a list of 0 is too short", "at least 1"),
    ('"count": 4, "fixed": 1', '"count": 4, "fxed": 1', 'cost.layers[0]: the key "fxed" is unknown',
     'did you mean "fixed"?'),
    ('"rank": 1, "buffers": 2', '"rank": 1', 'programs[1]: the key "buffers" is missing', ""),
    ('"rank": 1, "buffers": 2', '"rank": 1, "buffers": 1048577', "programs[1].buffers: 1048577 is too large",
     "at most 1048576"),
    (
        '"rank": 1, "buffers": 2',
        '"rank": 1, "buffers": 2, "memory": {"limit": -1}',
        "programs[1].memory.limit: -1 is too small",
        "at least 0",
    ),
    ('"WAIT", "of": 4', '"WAIT"', 'programs[1].instructions[5]: the key "of" is missing', ""),
    ('"op": "WAIT", "of": 4', '"of": 4', 'programs[1].instructions[5]: the key "op" is missing', OPS),
    ('"op": "WAIT", "of": 4', '"op": "wait"', 'programs[1].instructions[5].op: "wait" is not an instruction', OPS),
    ('"op": "WAIT", "of": 4', '"op": []', "programs[1].instructions[5].op: a list is not an instruction", OPS),
    ('{"op": "WAIT", "of": 4}', "7", "programs[1].instructions[5]: 7 is not an object", "an object in { }"),
    ('"of": 4', '"of": -1', "programs[1].instructions[5].of: -1 is too small", "at least 0"),
    ('"of": 4', '"of": 4.0', "programs[1].instructions[5].of: 4.0 is not an integer", INTEGER),
    ('"of": 4', '"of": true', "programs[1].instructions[5].of: true is not an integer", INTEGER),
    ('"of": 4', '"of": null', "programs[1].instructions[5].of: null is not an integer", INTEGER),
    ('"of": 4', '"of": 2147483648', "programs[1].instructions[5].of: 2147483648 is too large",
     "at most 2147483647"),
    ('"stage": 2, "in": 1', '"stage": 2, "in": -1', "programs[1].instructions[3].in: -1 is too small",
     "at least 0"),
    ('"stage": 2, "in": 1', '"stage": 2', 'programs[1].instructions[3]: the key "in" is missing', ""),
    ('"stage": 2, "in": 1, "out": 0', '"stage": -1, "in": null, "out": 0',
     "programs[1].instructions[3].stage: -1 is too small", "at least 0"),
    ('"stage": 2, "in": 1', '"stage": 2, "in": []', "programs[1].instructions[3].in: a list is not an integer",
     INTEGER),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "problem", "remedy"), WRONG)
def test_what_is_wrong_by_itself(old: str, new: str, problem: str, remedy: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    assert error_of(text) == f"s.json: {problem}" + (f"\n  hint: {remedy}" if remedy else "")
    if "4.0" not in new:  # which JSON Schema takes for an integer
        assert not SCHEDULES.is_valid(json.loads(text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"vppc.schedule"', '"vppc.plan"', 'format: "vppc.plan" is not the format that is read here\n'
         '  hint: "vppc.schedule"'),
        ('"vppc.schedule"', '"vppc.cost"', "is a cost file, not a schedule\n  hint: --cost takes a cost file"),
        ('"format": "vppc.schedule", ', "", 'the key "format" is missing\n  hint: "format": "vppc.schedule"'),
        ('"version": 1, "str', '"str', 'the key "version" is missing\n  hint: "version": 1'),
        ('"version": 1, "str', '"version": 2, "str', "version: version 2 is newer than this program\n"
         "  hint: it reads vppc.schedule up to version 1; a newer vppc reads more"),
        ('"version": 1, "str', '"version": "1", "str', 'version: "1" is not a version\n  hint: 1'),
        ('"version": 1, "str', '"version": 0, "str', "version: 0 is not a version\n  hint: 1"),
        ('"version": 1, "str', '"version": true, "str', "version: true is not a version\n  hint: 1"),
        ('"version": 1, "layers"', '"version": 2, "layers"', "cost.version: version 2 is newer than this program\n"
         "  hint: it reads vppc.cost up to version 1; a newer vppc reads more"),
        ('"pp": 2', '"pp": 2, "pp": 2', 'the key "pp" appears twice\n  hint: every key of an object once'),
        ('"of": 4', '"of": 4, "of": 4', 'programs[1].instructions[5]: the key "of" appears twice\n'
         "  hint: every key of an object once"),
        ('"vp": 2', '"vp": 2, "x": {"a b": {"c": 1, "c": 2}}', 'x["a b"]: the key "c" appears twice\n'
         "  hint: every key of an object once"),
        ('"vp": 2', '"x": {"a": 1, "a": 2}, "x": 3, "vp": 2', 'the key "x" appears twice\n'
         "  hint: every key of an object once"),
        ('"arrival": 0.0', '"arrival": NaN', "line 13, column 67: NaN is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        ('"arrival": 0.0', '"arrival": -Infinity', "line 13, column 67: -Infinity is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        ('"arrival": 0.0', '"NaN": 1e999', "line 13, column 63: 1e999 is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        ('"of": 4', '"of": 1e999', "line 32, column 24: 1e999 is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        ('"of": 4', '"of": NaN', "line 32, column 24: NaN is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        ('"of": 4', f'"of": -{"4" * 4301}', "line 32, column 24: an integer has more than 4300 digits\n"
         "  hint: numbers that fit 64 bits"),
        ('"of": 4', '"of": ' + "[" * 10**5 + "]" * 10**5, "values are nested too deeply\n"
         "  hint: at most some hundred levels"),
        ('"of": 4', '"of": 4,', TRAILING_COMMAS[0]),
        ('"of": 4}', '"of": 4},', TRAILING_COMMAS[1]),
        ('"of": 4}', '"of": 4} {', "line 32, column 27: not JSON: expecting ',' delimiter"),
        ('"of": 4}]}]\n}\n', '"of": 4}]}]\n} x', "line 33, column 3: not JSON: extra data"),
        ('"of": 4}]}]\n}\n', '"of": 4}]}]\n', "line 32, column 29: the JSON text ends too early\n"
         "  hint: the file may be truncated; make it again"),
        (TEXT, "[]", 'a list is not a vppc.schedule document\n'
         '  hint: an object with "format": "vppc.schedule" and "version": 1'),
        (TEXT, "\n", "is empty\n  hint: a JSON document"),
        (TEXT, "hello", "line 1, column 1: not JSON: expecting value"),
    ],
)  # fmt: skip
def test_what_is_no_document(old: str, new: str, message: str) -> None:
    assert old in TEXT
    assert error_of(TEXT.replace(old, new, 1)) == f"s.json: {message}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"0f0f', '"0g0f', 'previous: "0g'),
        ('"sequence": 3', '"sequence": -3', "sequence: -3 is too small\n  hint: at least 0"),
        ('"from": 118, ', "", 'programs[0]: the key "from" is missing'),
        ('"of": 7', '"of": 7.5', f"programs[0].instructions[1].of: 7.5 is not an integer\n  hint: {INTEGER}"),
    ],
)
def test_what_is_wrong_in_a_segment(old: str, new: str, message: str) -> None:
    assert old in SEGMENT_TEXT
    text = SEGMENT_TEXT.replace(old, new, 1)
    assert error_of(text, parse_segment).startswith(f"s.json: {message}")
    assert not SEGMENTS.is_valid(json.loads(text))


def test_several_errors_are_counted() -> None:
    text = TEXT.replace('"dst": ', '"dst": -1')
    assert error_of(text) == "s.json: channels[0].dst: -11 is too small (and 1 more)\n  hint: at least 0"


def test_optional_keys_are_kept_as_they_are() -> None:
    tensor = {"name": "hidden", "shape": ["tokens", 7168], "dtype": "bfloat16", "layout": "replicated", "x": 1}
    added: dict[str, Any] = {
        "tp": 8,
        "buffer_tokens": 8192,
        "payload": [tensor],
        "prediction": {"makespan": 1},
        "provenance": {"when": "12:00"},
        "certificate": {"order": [[0, 1]], "lifetimes": [[]], "by": "hand"},
    }
    document = json.loads(TEXT) | added
    document["stages"][0] |= {"modules": ["embed"], "payload": [tensor]}
    document["programs"][0] |= {"memory": {"limit": 1, "weights": 2.5, "kv_per_token": 0, "x": None}}
    document["programs"][0]["instructions"][3]["why"] = "a: b"
    schedule = parse_schedule(json.dumps(document))
    assert schedule.certificate == Certificate(array("i", (0, 1)), (array("i"),), {"by": "hand"})
    del added["certificate"]
    assert schedule.extra == {"cost": SMALL.extra["cost"], **added}
    assert schedule.stages[0].extra == {"modules": ["embed"], "payload": [tensor]}
    assert schedule.programs[0].extra == {"memory": document["programs"][0]["memory"]}
    assert schedule.programs[0].notes == {3: {"why": "a: b"}}
    assert json.loads(written(schedule)) == document


def test_what_is_said_of_instructions_of_long_programs_is_written_where_they_are() -> None:
    notes = {number: {"why": f"{number}"} for number in (0, 4095, 4096, 9999)}
    program = replace(Program.of(0, 1, [Wait(number) for number in range(10_000)]), notes=notes)
    document = json.loads(written(replace(SMALL, programs=(program,))))
    said = {number: each["why"] for number, each in enumerate(document["programs"][0]["instructions"]) if "why" in each}
    assert said == {number: each["why"] for number, each in notes.items()}


def test_what_may_be_left_out() -> None:
    text = TEXT.replace(', "cached_tokens": 0, "arrival": 0.0', "")
    assert parse_schedule(text) == SMALL


def test_deep_values_are_read_and_written_or_refused() -> None:
    for depth in (100, 10**5):
        value: Any = []
        for _ in range(depth):
            value = [value]
        schedule = Schedule(**{**vars(SMALL), "extra": {"x": value}})
        if depth == 100:
            assert written(parse_schedule(written(schedule))) == written(schedule)
        else:
            with pytest.raises(InputError, match="nested too deeply to be written"):
                written(schedule)


def test_every_beginning_of_a_file_is_refused() -> None:
    for end in range(len(TEXT) - 2):
        with pytest.raises(InputError):
            parse_schedule(TEXT[:end])


@given(st.data())
@settings(max_examples=250)
def test_any_change_of_bytes_gives_a_schedule_or_a_message(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT) - 1))
    cut = data.draw(st.integers(0, 3))
    new = data.draw(st.text('{}[]",:-0123456789.eE ntrufalsNIy\\\n\x00é\ud800', max_size=3))
    text = TEXT[:at] + new + TEXT[at + cut :]
    try:
        schedule = parse_schedule(text)
    except VppcError:
        return
    assert parse_schedule(written(schedule)) == schedule


CERTIFIED = written(
    replace(SMALL, certificate=Certificate(array("i", (0, 7, 1, 6)), (array("i", (0, 0, 3)), array("i"))))
)


BEGINNINGS = ('"chunks": [', '"instructions": [', '"certificate": {"order": [[', "NaN", "]}]", "-1")


@given(st.data())
@settings(max_examples=250)
def test_a_damaged_text_is_read_alike_with_its_lists_lifted_and_without(data: st.DataObject) -> None:
    text = CERTIFIED
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(text) - 1))
        cut = data.draw(st.integers(0, 3))
        new = data.draw(st.sampled_from(BEGINNINGS) | st.text('{}[]",:-0123456789.eE ntrufalsNIy\\', max_size=3))
        text = text[:at] + new + text[at + cut :]

    def read() -> Schedule | str:
        try:
            return parse_schedule(text, "s.json")
        except VppcError as error:
            return str(error)

    lifted = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "_LONG", re.compile(rb"(?!)"))
        assert read() == lifted


@given(st.integers(0, 12), st.sampled_from(["op", "chunk", "stage", "peer", "channel", "buffer", "in", "out", "of"]),
       values | st.just(-1) | st.just(LARGEST + 1))  # fmt: skip
@settings(max_examples=100)
def test_the_fast_parser_takes_exactly_what_the_types_take(index: int, key: str, value: Any) -> None:
    document = json.loads(TEXT)
    lists = [each["instructions"] for each in document["programs"]]
    instruction = [each for instructions in lists for each in instructions][index]
    assume(key in instruction)
    instruction[key] = value
    assume(not isinstance(value, float))  # JSON Schema takes 4.0 for an integer
    text = json.dumps(document)
    if SCHEDULES.is_valid(document):
        assert json.loads(written(parse_schedule(text))) == document
    else:
        error_of(text)


@pytest.mark.parametrize("name", ["schedule", "segment", "cost"])
def test_the_schema_command_prints_a_json_schema(name: str, tmp_path: Path) -> None:
    printed = CliRunner().invoke(command, [name])
    assert printed.exit_code == 0
    shape = json.loads(printed.output)
    jsonschema.Draft202012Validator.check_schema(shape)
    assert shape["title"] == f"vppc.{name}"
    assert shape["properties"]["format"] == {"const": f"vppc.{name}", "title": "Format", "type": "string"}
    file = tmp_path / "schema.json"
    assert CliRunner().invoke(command, [name, "-o", str(file)]).output == ""
    assert file.read_text() == printed.output


def test_the_json_schema_has_a_shape_for_each_instruction() -> None:
    shape = schedule_schema()
    items = shape["$defs"]["ProgramDocument"]["properties"]["instructions"]["items"]
    assert items["discriminator"]["propertyName"] == "op"
    required = {
        each["properties"]["op"]["const"]: each["required"]
        for each in (shape["$defs"][one["$ref"].removeprefix("#/$defs/")] for one in items["oneOf"])
    }
    assert required == {
        "FORWARD": ["op", "chunk", "stage", "in", "out"],
        "SEND": ["op", "chunk", "stage", "peer", "channel", "buffer"],
        "RECV": ["op", "chunk", "stage", "peer", "channel", "buffer"],
        "WAIT": ["op", "of"],
        "SAMPLE": ["op", "chunk", "buffer"],
    }


@pytest.mark.parametrize("module", ["vppc.cli", "vppc.files", "vppc.json_text", "vppc.ir.segment"])
def test_modules_that_start_without_heavy_imports(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'pydantic', 'networkx', 'torch'}} & sys.modules.keys()))"
    root = Path(__file__).resolve().parents[1]
    loaded = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
