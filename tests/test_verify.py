"""``vppc verify``, and the memory that it reports."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import by_hand, changed
from tests.random_schedules import random_schedule
from tests.test_segments import cut
from vppc.cli import vppc
from vppc.errors import CheckFailed, InputError
from vppc.ir.certificate import LIFETIME, entries
from vppc.ir.document import digest, parse_schedule, schedule_text, segment_text
from vppc.ir.instruction import Forward
from vppc.ir.rules import Verifier, check, prove
from vppc.ir.rules.memory import buffer_bytes, peak_buffers, peak_kv_tokens
from vppc.ir.schedule import Schedule

PROVEN = "proven: 25 instructions on 2 ranks, no deadlock (eager and rendezvous), peak buffers 3, peak KV 4 tokens\n"


def verify(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(vppc, ["verify", *arguments], input=text)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path / "plan.json", by_hand())


def written(path: Path, schedule: Schedule) -> Path:
    path.write_text("".join(schedule_text(schedule)), encoding="utf-8")
    return path


def test_a_proven_file_is_one_line(plan: Path) -> None:
    result = verify(str(plan))
    assert (result.output, result.exit_code) == (f"{plan}: {PROVEN}", 0)


def test_stdin(plan: Path) -> None:
    result = verify("-", text=plan.read_text(encoding="utf-8"))
    assert (result.output, result.exit_code) == (f"stdin: {PROVEN}", 0)


def test_json(plan: Path) -> None:
    assert json.loads(verify(str(plan), "--json").output) == {
        "proven": True,
        "open": False,
        "ranks": 2,
        "instructions": [13, 12],
        "peak_buffers": [3, 2],
        "peak_kv_tokens": [4, 4],
        "findings": [],
    }


def test_a_schedule_from_elsewhere_is_written_with_its_proof(plan: Path, tmp_path: Path) -> None:
    """As it is proven when compiled; also over itself, and where a certificate no longer holds."""
    edited = replace(by_hand(), certificate=replace(prove(by_hand()), order=prove(by_hand()).order[2:]))
    for name, schedule in (("plan.json", by_hand()), ("edited.json", edited)):
        path, output = written(tmp_path / name, schedule), tmp_path / f"proven-{name}"
        assert verify(str(path), "-o", str(output)).output == f"{path}: {PROVEN}"
        extra = {"provenance": {"command": f"vppc verify {path}"}}
        assert parse_schedule(output.read_bytes()) == replace(by_hand(), certificate=prove(by_hand()), extra=extra)
        assert verify(str(path), "-o", "-").output == output.read_text(encoding="utf-8")
        assert verify(str(path), "-o", str(path)).exit_code == 0
        assert path.read_bytes() == output.read_bytes()


def test_a_proven_schedule_goes_through_a_pipe_whole(plan: Path, tmp_path: Path) -> None:
    """What cannot be read back is not: a device that keeps nothing, and a pipe whose reader wants all of it."""
    assert verify(str(plan), "-o", os.devnull).output == f"{plan}: {PROVEN}"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text, encoding="utf-8")
        assert verify(str(plan), "-o", str(pipe)).output == f"{plan}: {PROVEN}"
        assert read.result() == verify(str(plan), "-o", "-").output


def test_what_is_not_proven_is_not_written(tmp_path: Path) -> None:
    bad, output = written(tmp_path / "bad.json", changed(by_hand(), 0, 3, out=0)), tmp_path / "proven.json"
    assert isinstance(verify(str(bad), "-o", str(output)).exception, CheckFailed)
    for option in ("--open", str(bad)):
        refused = verify(str(bad), option, "-o", str(output)).exception
        assert isinstance(refused, InputError)
        assert refused.place == "-o"
    assert not output.exists()


def test_findings_name_the_file_and_are_json_when_asked_for(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.json", changed(by_hand(), 0, 3, out=0))
    result = verify(str(bad), "--json")
    assert isinstance(result.exception, CheckFailed)
    assert str(result.exception).startswith(f"{bad}: B5 programs[0].instructions[3] (rank 0): FORWARD c1 s0 writes b0")
    said: dict[str, Any] = json.loads(result.output)
    assert not said["proven"]
    assert [finding["code"] for finding in said["findings"]] == ["B5"]
    assert said["findings"][0]["rule"] == "no buffer is written while a transfer uses it"
    with pytest.raises(CheckFailed):
        raise result.exception


def test_segments_are_files_behind_the_schedule(tmp_path: Path) -> None:
    first, segments = cut(by_hand(), [[8, 6], [10, 8]])
    paths = [written(tmp_path / "first.json", first)]
    for number, segment in enumerate(segments, 1):
        chained = replace(segment, previous=digest(paths[-1].read_bytes()))
        paths.append(tmp_path / f"segment{number}.json")
        paths[-1].write_text("".join(segment_text(chained)), encoding="utf-8")
    names = list(map(str, paths))
    assert verify(*names).output == f"{names[0]} + 2 segments: {PROVEN}"
    halfway = verify(*names[:2], "--open")
    assert halfway.output.startswith(f"{names[0]} + 1 segment: proven so far: 18 instructions on 2 ranks")
    for wrong, code in ((names[:2], "P4"), ([names[0], names[2]], "G1")):
        failed = verify(*wrong).exception
        assert isinstance(failed, CheckFailed)
        assert failed.findings[0].code == code
        assert failed.file == " + ".join(wrong)


def test_bad_input_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "plan.json", replace(by_hand(), extra={"x": 0}))
    path.write_text(path.read_text().replace('"x": 0', '"certificate": {"order": 3}'))
    for arguments, place in (
        ([str(path)], "certificate.order"),
        ([str(tmp_path / "none.json")], ""),
    ):
        error = verify(*arguments).exception
        assert isinstance(error, InputError)
        assert (error.file, error.place) == (arguments[0], place)


def test_peaks() -> None:
    verifier = Verifier(by_hand())
    assert verifier.findings(closed=True) == ()
    assert [peak_buffers(tape) for tape in verifier.tapes] == [3, 2]
    assert peak_kv_tokens(verifier.tapes, verifier.prompts) == [4, 4]


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_kv_of_a_request_is_resident_from_its_first_part_to_its_last(seed: int) -> None:
    schedule = random_schedule(Random(seed))
    verifier = Verifier(schedule)
    peaks = []
    for program in schedule.programs:
        runs: dict[int, list[tuple[int, int]]] = defaultdict(list)  # request -> (instruction, position reached)
        for index, each in enumerate(program):
            for part in schedule.chunks[each.chunk].parts if isinstance(each, Forward) else ():
                runs[part.request].append((index, part.end))
        resident = [
            sum(
                max(end for at, end in mine if at <= index)
                for mine in runs.values()
                if mine[0][0] <= index <= mine[-1][0]
            )
            for index in range(len(program))
        ]
        peaks.append(max(resident))
    assert peak_kv_tokens(verifier.tapes, verifier.prompts) == peaks


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_most_buffers_in_use_at_once(seed: int) -> None:
    schedule = random_schedule(Random(seed))
    for tape, lifetimes in zip(Verifier(schedule).tapes, prove(schedule).lifetimes, strict=True):
        held = list(entries(lifetimes, LIFETIME))
        used = [sum(first <= index <= last for _, first, last in held) for index in range(len(tape))]
        assert peak_buffers(tape) == max(used)


def limited(limit: float, **more: Any) -> Schedule:
    rank0, rank1 = by_hand().programs
    memory = {"limit": limit, "weights": 1000, "kv_per_token": 100}
    return replace(by_hand(), programs=(rank0, replace(rank1, extra={"memory": memory})), extra=more)


PAYLOAD = [
    {"name": "hidden", "shape": ["tokens", 8], "dtype": "bfloat16", "layout": "replicated"},
    {"name": "residual", "shape": ["tokens", 8], "dtype": "float32", "layout": "sharded"},
]


def test_weights_kv_and_buffers_fit_the_limit_exactly() -> None:
    assert check(limited(1400)) == ()
    assert [finding.code for finding in check(limited(1399))] == ["M1"]
    # two buffers of 2 tokens: 2 x 8 x 2 bytes, and 2 x 8 x 4 over 2 devices
    carried = {"payload": PAYLOAD, "buffer_tokens": 2, "tp": 2}
    assert buffer_bytes(limited(0, **carried)) == 64
    assert buffer_bytes(limited(0, payload=PAYLOAD, buffer_tokens=2)) == 96
    assert check(limited(1400 + 2 * 64, **carried)) == ()
    (finding,) = check(limited(1400 + 2 * 64 - 1, **carried))
    assert (
        finding.problem
        == "1,527 bytes do not hold the 1,528 of weights (1,000) + KV of 4 tokens (400) + 2 buffers (128)"
    )


def test_buffers_of_unknown_size_are_not_counted() -> None:
    for dtype, shape in (("thing", ["tokens", 8]), ("int8", ["rows", 8])):
        payload = [{"name": "x", "shape": shape, "dtype": dtype, "layout": "replicated"}]
        assert buffer_bytes(limited(0, payload=payload, buffer_tokens=2)) is None
        assert check(limited(1400, payload=payload, buffer_tokens=2)) == ()
    assert buffer_bytes(limited(0, payload=PAYLOAD)) is None


def test_a_stage_may_pass_more_than_the_others() -> None:
    base = limited(0, payload=PAYLOAD[:1], buffer_tokens=2)
    wide = [{"name": "hidden", "shape": ["tokens", 9], "dtype": "float8_e4m3fn", "layout": "replicated"}] * 4
    stages = (replace(base.stages[0], extra={"payload": wide}), *base.stages[1:])
    assert buffer_bytes(base) == 32
    assert buffer_bytes(replace(base, stages=stages)) == 72
