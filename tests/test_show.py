"""``vppc show``: what it prints of a good schedule, of a long one and of a wrong one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from vppc.cli import vppc
from vppc.cli.show import wants_color
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import CheckFailed, InputError
from vppc.ir.assembly import to_assembly
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.schedule import Schedule
from vppc.ir.torch_csv import parse_torch_csv

GOLDEN = Path(__file__).parent / "golden"
FOLD = "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1\n"
COST = CostModel((LayerCost(4, per_pair=1.0),), transfer=Linear(0.25))


def priced(schedule: Schedule) -> Schedule:
    return replace(schedule, extra={"cost": cost_json(COST)})


def show(tmp_path: Path, schedule: Schedule, *arguments: str, **options: Any) -> Result:
    path = tmp_path / "plan.json"
    path.write_text("".join(schedule_text(schedule)))
    return CliRunner().invoke(vppc, ["show", str(path), *arguments], **options)


def printed(tmp_path: Path, schedule: Schedule, *arguments: str, **options: Any) -> str:
    result = show(tmp_path, schedule, *arguments, **options)
    assert result.exception is None, result.exception
    return result.output


def test_golden(tmp_path: Path) -> None:
    assert printed(tmp_path, priced(parse_torch_csv(FOLD)), "--width", "80") == (GOLDEN / "show.txt").read_text()


def test_parts_can_be_left_out(tmp_path: Path) -> None:
    schedule = priced(parse_torch_csv(FOLD))
    whole = printed(tmp_path, schedule)
    drawn = printed(tmp_path, schedule, "--no-programs")
    listed = printed(tmp_path, schedule, "--no-timeline")
    assert "FORWARD" not in drawn
    assert "bubble\nrank 0" in drawn
    assert "rank 0 buffers=" in listed
    assert "bubble\nrank 0" not in listed
    assert listed + drawn.partition("\n\n")[2] == whole


def test_one_rank(tmp_path: Path) -> None:
    text = printed(tmp_path, priced(parse_torch_csv(FOLD)), "--rank", "1", "--no-timeline")
    assert "rank 1 buffers=6  ; s1 layers 1..2, s2 layers 2..3" in text
    assert "rank 0 buffers" not in text
    result = show(tmp_path, parse_torch_csv(FOLD), "--rank", "2")
    assert str(result.exception) == "--rank: there is no rank 2\n  hint: a number below 2"


def straight(chunks: int) -> Schedule:
    """Two stages on two ranks; the programs have 3 instructions a chunk, and rank 1 a SAMPLE."""
    rank0 = ",".join(f"0F{chunk},0SEND_F{chunk}" for chunk in range(chunks))
    rank1 = ",".join(f"1RECV_F{chunk},1F{chunk}" for chunk in range(chunks))
    return parse_torch_csv(f"{rank0}\n{rank1}\n")


def test_long_programs_are_cut_in_the_middle(tmp_path: Path) -> None:
    assert "more" not in printed(tmp_path, straight(13))
    text = printed(tmp_path, straight(400))
    lines = text.partition("\nrank 1 ")[0].splitlines()
    numbers = [int(line.split()[0]) for line in lines if line.startswith("  ") and line.split()[0].isdigit()]
    assert numbers == [*range(30), *range(1190, 1200)]
    assert "       ... 1,160 more, shown with --all\n" in text
    assert "       ... 1,161 more, shown with --all\n" in text
    assert "more" not in printed(tmp_path, straight(400), "--all")


def test_a_schedule_without_costs_has_no_timeline_unless_they_are_given(tmp_path: Path) -> None:
    schedule = parse_torch_csv(FOLD)
    assert printed(tmp_path, schedule).endswith("no timeline: no costs are embedded; give --cost FILE\n")
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps(cost_json(COST)))
    assert printed(tmp_path, schedule, "--cost", str(cost)) == printed(tmp_path, priced(schedule))
    cost.write_text(json.dumps(cost_json(replace(COST, layers=(LayerCost(5),)))))
    error = show(tmp_path, schedule, "--cost", str(cost)).exception
    assert isinstance(error, InputError)
    assert error.file == str(cost)


def test_a_wrong_schedule_is_listed_and_refused(tmp_path: Path) -> None:
    wrong = priced(parse_torch_csv(FOLD.replace("0F1,", "0F0,0F1,")))
    result = show(tmp_path, wrong)
    assert "    2  FORWARD  c0 s0  tokens -> b0\n" in result.output
    assert "makespan" not in result.output
    assert "timeline" not in result.output
    assert isinstance(result.exception, CheckFailed)
    assert [finding.code for finding in result.exception.findings] == ["P3"]


def test_json(tmp_path: Path) -> None:
    document = json.loads(printed(tmp_path, priced(parse_torch_csv(FOLD)), "--json", "--rank", "1"))
    assert {key: document[key] for key in ("strategy", "pp", "vp", "requests", "chunks", "instructions")} == {
        "strategy": "torch-csv",
        "pp": 2,
        "vp": 2,
        "requests": 1,
        "chunks": 2,
        "instructions": 25,
    }
    assert document["prediction"]["makespan"] == 9.75
    assert [(program["rank"], program["instructions"][:3]) for program in document["programs"]] == [
        (1, ["RECV c0 s1 b0 <- rank 0 ch0", "WAIT 0", "FORWARD c0 s1 b0 -> b1"])
    ]
    assert document["timeline"][0][:2] == [
        {"chunk": 0, "stage": 0, "start": 0.0, "end": 1.0},
        {"chunk": 1, "stage": 0, "start": 1.0, "end": 3.0},
    ]
    bare = json.loads(printed(tmp_path, parse_torch_csv(FOLD), "--json", "--no-programs"))
    assert (bare["prediction"], bare["timeline"], "programs" in bare) == (None, None, False)


def test_colour_is_for_terminals_or_on_demand(tmp_path: Path) -> None:
    schedule = priced(parse_torch_csv(FOLD))
    assert "\x1b" not in printed(tmp_path, schedule)
    assert "\x1b" in printed(tmp_path, schedule, "--color", "always", color=True)


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_is_asked_whether_it_wants_colour(
    environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_color("auto") == colored
    assert not wants_color("never")


def test_a_stdout_that_cannot_show_blocks_gets_ascii(tmp_path: Path) -> None:
    schedule = priced(parse_torch_csv(FOLD))
    assert not printed(tmp_path, schedule).isascii()
    assert printed(tmp_path, schedule, "--ascii").isascii()
    runner = CliRunner(charset="ascii")
    path = tmp_path / "plan.json"
    path.write_text("".join(schedule_text(schedule)))
    assert runner.invoke(vppc, ["show", str(path)]).output == printed(tmp_path, schedule, "--ascii")


def test_channels_may_have_any_ids(tmp_path: Path) -> None:
    plain = priced(parse_torch_csv(FOLD))
    renumbered = json.loads("".join(schedule_text(plain)))
    for channel in renumbered["channels"]:
        channel["id"] += 40
    for instruction in (each for program in renumbered["programs"] for each in program["instructions"]):
        if "channel" in instruction:
            instruction["channel"] += 40
    other = parse_schedule(json.dumps(renumbered))
    for interference in (0.0, 0.5):
        cost = {"cost": {**cost_json(COST), "interference": interference}}
        expected = printed(tmp_path, replace(plain, extra=cost))
        assert printed(tmp_path, replace(other, extra=cost)).replace("ch4", "ch") == expected


def test_a_part_of_the_run(tmp_path: Path) -> None:
    schedule = priced(parse_torch_csv(FOLD))
    part = printed(tmp_path, schedule, "--no-programs", "--from", "2", "--to", "6000ms", "--width", "80")
    assert re.findall(r"[\d.]+ s", part.splitlines()[5])[::100] == ["2 s"]
    refused = show(tmp_path, schedule, "--from", "9", "--to", "3s").exception
    assert "lies from 9 s to 3 s" in str(refused)


def test_assembly_is_read_as_json_is(tmp_path: Path) -> None:
    schedule = priced(parse_torch_csv(FOLD))
    path = tmp_path / "plan.asm"
    path.write_text("".join(to_assembly(schedule)))
    for name in ("show", "simulate", "verify"):
        read = CliRunner().invoke(vppc, [name, str(path)])
        assert read.exception is None, read.exception
    assert CliRunner().invoke(vppc, ["show", str(path)]).output == printed(tmp_path, schedule)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("; a comment\nschedule nonsense\n", "line 2"),
        ('schedule "cpp" version=1 pp=1 vp=1\nmodel "m" layers=1\nstage 0 rank=0 layers=0..1\n', "no programs yet"),
        ("schedules are JSON", "JSON"),
    ],
    ids=["wrong", "without programs", "no assembly"],
)
def test_wrong_assembly_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.asm"
    path.write_text(text)
    refused = CliRunner().invoke(vppc, ["verify", str(path)]).exception
    assert isinstance(refused, InputError)
    assert said in str(refused)
