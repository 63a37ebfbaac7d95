"""``vppc convert``: every notation to every other, and what it refuses."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from plans import plans

from vppc.cli import vppc
from vppc.errors import CheckFailed, InputError
from vppc.ir.assembly import parse_assembly, to_assembly
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.rules import check
from vppc.ir.schedule import Order, Schedule
from vppc.ir.torch_csv import parse_torch_csv, to_torch_csv

COMPUTE = "0F0,0F1,3F0,3F1\r\n1F0,2F0,1F1,2F1\r\n"
COMMS = "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\r\n1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1\r\n"


def convert(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(vppc, ["convert", *map(str, arguments)], input=stdin)


def converted(*arguments: str | Path, stdin: str = "") -> str:
    result = convert(*arguments, stdin=stdin)
    assert result.exception is None, result.exception
    return result.stdout_bytes.decode()


def refused(*arguments: str | Path, stdin: str = "") -> str:
    error = convert(*arguments, stdin=stdin).exception
    assert isinstance(error, (InputError, CheckFailed))
    return str(error)


def test_a_tour_of_the_notations_ends_where_it_began(tmp_path: Path) -> None:
    start, asm, back, csv, rows = (tmp_path / name for name in ("a.json", "a.asm", "b.json", "a.csv", "compute.csv"))
    start.write_text("".join(schedule_text(parse_torch_csv(COMMS))))
    for source, target in ((start, asm), (asm, back), (back, csv)):
        assert converted(source, "-o", target) == ""
    assert back.read_bytes() == start.read_bytes()
    assert csv.read_bytes().decode() == COMMS
    converted(asm, "--to", "torch-compute-csv", "-o", rows)
    assert rows.read_bytes().decode() == COMPUTE
    made = parse_schedule(converted(csv, "--to", "json"))
    assert made.extra.pop("provenance") == {"command": shlex.join(["vppc", "convert", str(csv), "--to", "json"])}
    assert "".join(schedule_text(made)) == start.read_text()


@settings(max_examples=25)
@given(plans(max_pp=3))
def test_compiled_schedules_survive_every_notation(plan: Schedule | InputError) -> None:
    if isinstance(plan, InputError):
        return
    text = "".join(schedule_text(plan))
    assert converted("-", "--from", "asm", "--to", "json", stdin="".join(to_assembly(plan))) == text
    rows = converted("-", "--from", "json", "--to", "torch-csv", stdin=text)
    again = parse_torch_csv(rows)
    if again.programs:
        assert "".join(to_torch_csv(again)) == rows
        ours = [[row[:3] for row in program.rows() if row[0] < 3] for program in plan.programs]
        assert [[row[:3] for row in program.rows() if row[0] < 3] for program in again.programs] == ours


def test_a_compute_only_csv_is_lowered_and_proven(tmp_path: Path) -> None:
    schedule = parse_schedule(converted("-", "--from", "torch-csv", "--to", "json", stdin=COMPUTE))
    assert check(schedule) == ()
    assert "".join(to_torch_csv(schedule, compute_only=True)) == COMPUTE
    assert converted("-", "--from", "torch-csv", "--to", "torch-compute-csv", stdin=COMPUTE) == COMPUTE


def test_blocking_transfers(tmp_path: Path) -> None:
    """What hangs when each transfer is waited for at once runs when they are posted."""
    crossing = (
        "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
        "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n"
    )
    arguments = ("-", "--from", "torch-csv", "--to", "json", "--transfers")
    assert check(parse_schedule(converted(*arguments, "posted", stdin=crossing))) == ()
    findings = check(parse_schedule(converted(*arguments, "blocking", stdin=crossing)))
    assert [finding.code for finding in findings] == ["D2"]


def ordered(text: str = COMPUTE) -> Schedule:
    return parse_torch_csv(text)


@pytest.mark.parametrize("steps", [None, (0, 1, 1, 2, 1, 2, 2, 3)])
def test_an_order_in_assembly_is_lowered(steps: tuple[int, ...] | None) -> None:
    """As printed after a pass, before there are programs; with steps it blocks."""
    schedule = replace(ordered(), order=Order(((0, 4, 3, 7), (1, 2, 5, 6)), steps))
    text = "".join(to_assembly(schedule))
    lowered = parse_schedule(converted("-", "--from", "asm", "--to", "json", stdin=text))
    assert check(lowered) == ()
    assert "".join(to_torch_csv(lowered, compute_only=True)) == COMPUTE


def test_an_order_is_lowered_for_the_costs_that_it_embeds() -> None:
    """Where transfers take long, receives are posted at other places."""
    cost = {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "fixed": 1.0}]}
    none, short, long = (
        parse_schedule(converted("-", "--from", "asm", "--to", "json", stdin=HEAD + said))
        for said in ("", *(f".cost {json.dumps({**cost, 'transfer': {'latency': wait}})}\n" for wait in (0.0, 10.0)))
    )
    assert check(short) == check(long) == ()
    assert none.programs == short.programs != long.programs


def test_layer_splits(tmp_path: Path) -> None:
    assert (
        converted("-", "--from", "torch-csv", "--to", "vpp_layer_ranges", stdin=COMPUTE)
        == "[[[0,1],[3,4]],[[1,2],[2,3]]]\n"
    )
    straight = "0F0\n1F0\n"
    for name in ("VLLM_PP_LAYER_PARTITION", "SGLANG_PP_LAYER_PARTITION"):
        assert converted("-", "--from", "torch-csv", "--to", name, stdin=straight) == "1,1\n"
        assert "more than one stage a rank" in refused("-", "--from", "torch-csv", "--to", name, stdin=COMPUTE)


def test_a_notation_that_no_name_tells_is_asked_for(tmp_path: Path) -> None:
    assert refused("-", "--to", "json") == (
        "--from: cannot tell the notation of a pipe by its name\n"
        "  hint: give --from, or a name that ends in .json, .asm, .csv"
    )
    (tmp_path / "a.asm").write_text("")
    assert refused(tmp_path / "a.asm", "-o", tmp_path / "plan.txt").startswith("--to: cannot tell the notation of")


HEAD = "".join(to_assembly(parse_torch_csv(COMPUTE)))
STEPS = HEAD[: HEAD.index("order")] + (
    "order 0 c0.s0@0 c1.s0@1 c0.s3@2 c1.s3@3\norder 1 c0.s1@1 c0.s2@1 c1.s1@2 c1.s2@2\n"
)
WRONG: dict[str, tuple[str, str]] = {
    "a reversed order": (HEAD.replace("c0.s1 c0.s2", "c0.s2 c0.s1"), "D1 rank 0"),
    "an operation twice": (HEAD.replace("c0.s1 c0.s2", "c0.s1 c0.s1 c0.s2"), "P3 order 1: c0.s1 runs 2 times"),
    "an operation never": (HEAD.replace("c0.s1 c0.s2", "c0.s1"), "P4 order 1: c0.s2 runs never"),
    "on another rank": (HEAD.replace("c0.s1 c0.s2", "c0.s1 c0.s2 c0.s3"), "P2 order 1: c0.s3 does not belong"),
    "a rank without order": (HEAD.replace("order 1 ", "; "), "S5 order: 1 orders for 2 ranks"),
    "a step too early": (
        STEPS.replace("c1.s1@2 c1.s2@2", "c1.s1@1 c1.s2@2"),
        "D1 order 1: c1.s1 in step 1, c1.s0 in step 1",
    ),
    "steps out of turn": (
        STEPS.replace("c1.s1@2 c1.s2@2", "c1.s1@9 c1.s2@2"),
        "D1 order 1: c1.s2 of step 2 after step 9",
    ),
    "a fold in reverse": (
        STEPS.replace("c0.s1@1 c0.s2@1", "c0.s2@1 c0.s1@1"),
        "D1 order 1: c0.s2 in step 1, c0.s1 in step 1",
    ),
    "no channel": (HEAD.replace("channel 1", "; channel 1"), "C3 channels"),
    "an unknown request": (HEAD.replace("r0[1..2]", "r7[1..2]"), "R1 "),
    "a stage on no rank": (HEAD.replace("stage 1 rank=1", "stage 1 rank=9"), "S2 "),
    "no stage": (
        "\n".join(x for x in HEAD.splitlines() if not x.startswith(("stage", "order"))),
        "neither programs nor",
    ),
    "neither": (HEAD.replace("order", "; order"), "neither programs nor an order"),
    "a wrong cost": (HEAD + ".cost 7\n", "cost"),
    "costs of another model": (
        HEAD + '.cost {"format": "vppc.cost", "version": 1, "layers": [{"count": 61}]}\n',
        "cost.layers: the counts add up to 61",
    ),
    "pp 0": (HEAD.replace("pp=2", "pp=0"), ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_lowered_is_refused(name: str, tmp_path: Path) -> None:
    text, problem = WRONG[name]
    source, target = tmp_path / "plan.asm", tmp_path / "plan.json"
    source.write_text(text)
    said = refused(source, "-o", target)
    assert said.startswith(str(source))
    assert problem in said
    assert not target.exists()


def test_assembly_is_held_to_the_types_of_the_schedule_file(tmp_path: Path) -> None:
    programs = "".join(to_assembly(parse_torch_csv(COMMS)))
    for wrong, right in (("pp=0", "pp=2"), ("layers=0", "layers=4")):
        said = refused("-", "--from", "asm", "--to", "torch-csv", stdin=programs.replace(right, wrong, 1))
        assert said.startswith(f"stdin: {'pp' if 'pp' in wrong else 'model.layers'}: 0 is too small")


def test_json_keeps_unknown_keys_through_assembly() -> None:
    document: Any = json.loads("".join(schedule_text(parse_torch_csv(COMMS))))
    document["x-note"] = {"a": [1, None]}
    document["stages"][1]["y"] = "z"
    document["programs"][0]["instructions"][2]["why"] = "soon"
    asm = converted("-", "--from", "json", "--to", "asm", stdin=json.dumps(document))
    assert json.loads(converted("-", "--from", "asm", "--to", "json", stdin=asm)) == document
    assert parse_assembly(asm) == parse_schedule(json.dumps(document))
