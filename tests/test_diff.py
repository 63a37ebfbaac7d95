"""What differs between two schedules, or a plan and its run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.journals import write_journal
from tests.plans import deepseek, paper, price
from vppc.analysis.differences import fork, order_of, same_programs, same_work, shifts
from vppc.analysis.timing import simulate
from vppc.cli import vppc
from vppc.costs.document import parse_cost
from vppc.costs.model import OpCosts
from vppc.ir.document import schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Op, Schedule

GOLDEN = Path(__file__).parent / "golden"


def saved(folder: Path, name: str, schedule: Schedule) -> str:
    file = folder / f"{name}.json"
    file.write_text("".join(schedule_text(schedule)))
    return str(file)


def diff(*arguments: str) -> str:
    shown = CliRunner().invoke(vppc, ["diff", *arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_a_fork_is_where_sequences_part(ours: list[int], theirs: list[int]) -> None:
    found = fork(ours, theirs)
    assert ours[: found.common] == theirs[: found.common]
    assert found.same == (ours == theirs)
    if not found.same:
        assert [found.ours, found.theirs] == [
            (each[found.common : found.common + 1] or [None])[0] for each in (ours, theirs)
        ]


def test_the_order_of_a_rank() -> None:
    assert order_of(paper("vpp", 2), 0) == [Op(0, 0), Op(1, 0), Op(0, 3), Op(1, 3)]


def test_work_is_the_same_when_order_alone_differs() -> None:
    apart, packed = paper("vpp-async", (4, 4)), paper("vpp-packed", (4, 4))
    assert same_work(apart, packed)
    assert not same_programs(apart, packed)
    assert same_programs(apart, apart)
    assert not same_work(apart, paper("cpp", (4, 4)))
    assert not same_work(apart, paper("vpp-async", (8,)))


def test_shifts_are_of_operations_and_largest_first() -> None:
    both = [
        (schedule, simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))))
        for schedule in (paper("vpp-async", (4, 4)), paper("vpp-packed", (4, 4)))
    ]
    found = shifts(*both, 1000)
    assert sorted(shift.op for shift in found) == [Op(chunk, stage) for chunk in range(8) for stage in range(4)]
    moved = [abs(shift.their_start - shift.our_start) for shift in found]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0
    assert shifts(*both, 3) == found[:3]


def test_two_strategies_side_by_side(tmp_path: Path) -> None:
    ours, theirs = paper("cpp", 4, transfer=0.5), paper("vpp", 4, transfer=0.5)
    text = diff(saved(tmp_path, "cpp", ours), saved(tmp_path, "vpp", theirs))
    assert text.replace(f"{tmp_path}/", "") == (GOLDEN / "diff.txt").read_text()


def test_a_run_beside_its_plan(tmp_path: Path) -> None:
    """The journal of a run in which one FORWARD took 3 s longer, and all that follows is late."""
    schedule = paper("cpp", 3)
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    slow = list(costs.seconds)
    slow[2] += 3.0  # chunk 1, stage 0
    run = write_journal(tmp_path / "run", schedule, simulate(schedule, replace(costs, seconds=slow)))
    plan = saved(tmp_path, "plan", schedule)
    text = diff(plan, str(run))
    [first, *_] = text.split("largest differences in what instructions took\n")[1].splitlines()[2:]
    index = next(i for i, row in enumerate(schedule.programs[0].rows()) if row[:3] == (FORWARD, 1, 0))
    assert first.split() == f"0 {index} FORWARD c1 s0 tokens -> b1 2 s 4 s 2 s 7 s +3 s".split()
    same = "every instruction takes the same time in both"
    assert same in diff(plan, plan)
    assert same not in diff(plan, str(run), "--listed", "0")
    document = json.loads(diff(plan, str(run), "--json", "--listed", "1"))
    assert document["same_programs"] is True
    assert document["instructions"] == [
        {"rank": 0, "i": index, "a": {"start": 2.0, "seconds": 4.0}, "b": {"start": 2.0, "seconds": 7.0}}
    ]


def test_a_rank_that_is_slow_is_seen_in_its_own_work_and_not_in_what_waits_for_it(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 6, transfer=0.5)
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    ranks = schedule.stage_ranks * len(schedule.chunks)
    slow = [seconds * (1.5 if rank == 1 else 1.0) for seconds, rank in zip(costs.seconds, ranks, strict=True)]
    run = write_journal(tmp_path / "run", schedule, simulate(schedule, replace(costs, seconds=slow)))
    text = diff(saved(tmp_path, "plan", schedule), str(run), "--listed", "6")
    assert re.search(r"work, rank 0 .* same\n", text)
    assert re.search(r"work, rank 1 .* \+50\.0%\n", text)
    rows = [line.split() for line in text.split("difference\n")[1].splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("1", "FORWARD")] * 6
    for command in (["explain", str(run)], ["profile", str(run)]):
        told = CliRunner().invoke(vppc, command).output
        assert "rank 1 is the slowest, 1.500; by rank 1.000, 1.500" in told


def test_json_of_two_strategies(tmp_path: Path) -> None:
    ours, theirs = deepseek("vpp-async", (40000, 40000), 8192), deepseek("vpp-packed", (40000, 40000), 8192)
    document = json.loads(diff(saved(tmp_path, "a", ours), saved(tmp_path, "b", theirs), "--json"))
    assert document["a"]["makespan"] == price(ours).makespan
    assert document["b"]["report"] == price(theirs).json()
    assert (document["same_prompts"], document["same_programs"], document["chunks"]["same"]) == (True, False, True)
    assert [each["same"] for each in document["orders"]] == [False, False]
    assert len(document["operations"]) == 10


def test_other_prompts_and_other_ranks_are_said(tmp_path: Path) -> None:
    text = diff(saved(tmp_path, "a", paper("cpp", 3)), saved(tmp_path, "b", paper("cpp", 4, 3)))
    assert "prompts: not the same, so times say little" in text
    assert "chunks: 3 chunks of the same sizes first, then A has none, and B 1 token" in text
    assert re.search(r"ranks x stages +2 x 1 +3 x 1\n", text)
    assert "rank 2" not in text


def test_runs_without_costs_are_compared_by_their_times(tmp_path: Path) -> None:
    schedule = paper("cpp", 3)
    timing = simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))
    bare = replace(schedule, extra={key: value for key, value in schedule.extra.items() if key != "cost"})
    runs = [str(write_journal(tmp_path / name, bare, timing)) for name in "ab"]
    text = diff(*runs)
    assert re.search(r"\nmakespan +18 s +18 s", text)
    assert "efficiency" not in text and "lower bound" not in text
