"""``vppc show``: what it prints of a good schedule, of a long one and of a wrong one."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from plans import paper, price

from tests.serving_streams import stream
from vppc.cli import vppc
from vppc.cli.show import wants_color
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import CheckFailed, InputError
from vppc.ir.assembly import to_assembly
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.schedule import Chunk, Request, Schedule
from vppc.ir.torch_csv import parse_torch_csv
from vppc.render.report import report_text
from vppc.serving.batching import Limits

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
    text = printed(tmp_path, straight(400), "--programs")
    lines = text.partition("\nrank 1 ")[0].splitlines()
    numbers = [int(line.split()[0]) for line in lines if line.startswith("  ") and line.split()[0].isdigit()]
    assert numbers == [*range(30), *range(1190, 1200)]
    assert "       ... 1,160 more, shown with --all\n" in text
    assert "       ... 1,161 more, shown with --all\n" in text
    assert "more" not in printed(tmp_path, straight(400), "--programs", "--all")
    alone = printed(tmp_path, straight(400), "--rank", "0")
    assert "rank 1 buffers" not in alone
    assert "       ... 1,160 more, shown with --all\n" in alone


def test_long_programs_are_summarized(tmp_path: Path) -> None:
    """A line a rank and a request, and of many how first tokens are spread."""
    text = printed(tmp_path, paper("vpp-packed", (4,) * 14, transfer=0.25), "--width", "80")
    golden = GOLDEN / "show_long.txt"
    if "REWRITE_GOLDEN" in os.environ:
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_request_is_shown_by_its_chunks(tmp_path: Path) -> None:
    """Chunk k of a straight pipeline of two ranks takes 2 (k + 1) on each, and never waits for the one before."""
    schedule = paper("cpp", 14)
    rows = [[k, 1, k, k * (k + 1), (k + 1) * (k + 4), 4 * (k + 1)] for k in range(14)]
    assert table_of(printed(tmp_path, schedule, "--request", "r0", "--all"), "chunk") == rows
    text = printed(tmp_path, schedule, "--request", "r0")
    assert table_of(text, "chunk") == [*rows[:6], *rows[8:]]
    assert "  ...  2 more\n" in text
    assert table_of(text, "request") == [[14, 0, 13, 0, 14 * 17]]


def table_of(text: str, header: str) -> list[list[int]]:
    """The numbers in the table whose first column has this header; a line that is cut has none."""
    lines = text.partition(f"\n{header} ")[2].partition("\n\n")[0].splitlines()[2:]
    return [[int(n) for n in re.findall(r"(?<![\w.])\d+", line)] for line in lines if "more" not in line]


def test_a_requests_instructions_are_those_about_its_chunks(tmp_path: Path) -> None:
    schedule = paper("vpp-packed", (9, 8))
    each = [listed(tmp_path, schedule, "--request", name) for name in ("r0", "r1")]
    both = listed(tmp_path, schedule, "--request", "r0", "--request", "r1")
    assert both == listed(tmp_path, schedule)
    assert not each[0] & each[1]
    assert each[0] | each[1] == both
    chunks = [{int(c) for _, line in lines for c in re.findall(r"\bc(\d+)\b", line)} for lines in each]
    assert chunks == [set(range(9)), set(range(9, 17))]


def listed(tmp_path: Path, schedule: Schedule, *arguments: str) -> set[tuple[str, str]]:
    """Every instruction that is listed, with its rank."""
    text = printed(tmp_path, schedule, "--programs", "--all", "--no-timeline", *arguments)
    found, rank = set(), ""
    for line in text.splitlines():
        rank = line.split()[1] if line.startswith("rank ") else rank
        found |= {(rank, line)} if re.match(r"  +\d+  [A-Z]", line) else set()
    return found


def test_the_timeline_of_a_request_goes_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    schedule = paper("cpp", (3, 2))  # chunks of 2, 4, 6 and 2, 4 on each rank
    window = ("--from", "12", "--to", "24")
    whole = ("--no-programs", "--width", "80")
    assert printed(tmp_path, schedule, *whole, "--request", "r1") == printed(tmp_path, schedule, *whole, *window)


def test_an_unknown_request(tmp_path: Path) -> None:
    error = show(tmp_path, paper("cpp", (1, 1, 1, 1)), "--request", "r9").exception
    assert str(error) == "--request: there is no request 'r9'\n  hint: an id: r0, r1, r2, ..."


def test_a_long_schedule_that_is_wrong_is_listed(tmp_path: Path) -> None:
    schedule = paper("cpp", 40)
    [part] = schedule.chunks[3].parts
    chunks = (*schedule.chunks[:3], Chunk((replace(part, request=7),)), *schedule.chunks[4:])
    result = show(tmp_path, replace(schedule, chunks=chunks, certificate=None), "--request", "r0")
    assert "FORWARD  c2  s0" in result.output
    assert "FORWARD  c3  s0" not in result.output
    assert isinstance(result.exception, CheckFailed)


def test_a_schedule_without_costs_has_no_timeline_unless_they_are_given(tmp_path: Path) -> None:
    schedule = parse_torch_csv(FOLD)
    assert printed(tmp_path, schedule).endswith("no timeline: no costs are embedded; give --cost FILE\n")
    bare = replace(paper("cpp", 14), extra={})
    assert table_of(printed(tmp_path, bare), "request") == [[14, 0, 13]]
    assert table_of(printed(tmp_path, bare, "--request", "r0", "--all"), "chunk") == [[k, 1, k] for k in range(14)]
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


def test_a_tick_whose_label_has_no_room_is_there_without_it(tmp_path: Path) -> None:
    window = ("--from", "12345.000001", "--to", "12345.000002", "--width", "40", "--no-programs")
    labels, ticks = printed(tmp_path, paper("cpp", 4, t=1000.0), *window).splitlines()[5:7]
    assert labels == "        12345.000001 s         12345.000002 s"
    assert ticks.count("┬") == 3


def test_where_all_is_given_up_there_is_no_first_token(tmp_path: Path) -> None:
    each = stream("cpp", 2, Limits(chunk_size=8))
    for number in range(9):
        each.compiler.add(Request(f"r{number}", 80), 0.0)
    each.advance(0.0)
    for number in range(9):
        each.compiler.cancel(f"r{number}", 0.1)
    schedule = each.close()
    assert printed(tmp_path, schedule).splitlines()[3] == "bubble 48.3% of a rank's time, no first token"
    assert [request.id for request in schedule.requests] == ["r0"]
    many = replace(schedule.requests[0], id="r1")
    several = replace(schedule, requests=(*schedule.requests, *[many] * 8), certificate=None)
    assert "\nTTFT: none of 9 requests is sampled\n" in report_text(several, price(several))


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
