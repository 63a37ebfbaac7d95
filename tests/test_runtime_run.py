"""A run's other results: its journal, its profile, its time, and that its memory does not grow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import BEFORE, Fault, faulty
from plans import compiled, paper, price
from test_runtime_tokens import written
from token_runs import memory
from worlds import World, journal, succeeded

from runtime.__main__ import main
from runtime.profiling import instruction_name
from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule
from vppc.costs.document import parse_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.ir.instruction import OPS, WAIT
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options


def run(folder: Path, schedule: Schedule, *options: str) -> list[str]:
    arguments = [written(schedule, folder / "plan.json"), *options]
    return succeeded(World(folder, schedule.pp, main, lambda process: (arguments,)).ended()).out


class TestJournal:
    def test_it_has_every_instruction(self, tmp_path: Path) -> None:
        schedule = paper("vpp-packed", (5, 3), 2)
        run(tmp_path, schedule, "--runner", "null", "--journal", str(tmp_path / "journal"))
        files = journal(tmp_path / "journal")
        assert (tmp_path / "journal" / "schedule.json").read_text() == (tmp_path / "plan.json").read_text()
        for program, lines in zip(schedule.programs, files.values(), strict=True):
            assert sorted(line["i"] for line in lines) == list(range(len(program)))
            for line in lines:
                row = program.row(line["i"])
                assert line["op"] == OPS[row[0]]
                assert line["start"] <= line["end"]
                assert ("posted" in line) == (line["op"] in ("SEND", "RECV"))
            ends = {line["i"]: line["end"] for line in lines}
            for index, row in enumerate(program.rows()):
                if row[0] == WAIT:
                    assert ends[index] == ends[row[3]]

    def test_in_the_folder_of_a_run_on_more_ranks(self, tmp_path: Path) -> None:
        """There is nothing of that one then, and what else is there stays."""
        folder = tmp_path / "journal"
        run(tmp_path, paper("cpp", (5, 3), 2), "--runner", "null", "--journal", str(folder))
        (folder / "rank-1-notes.jsonl").write_text("mine")
        run(tmp_path, paper("cpp", (5, 3), 1), "--runner", "null", "--journal", str(folder))
        assert {each.name for each in folder.iterdir()} == {
            "schedule.json",
            "rank-0-tp-0.jsonl",
            "rank-1-notes.jsonl",
        }

    def test_of_a_run_that_fails(self, tmp_path: Path) -> None:
        """What was done by then is there."""
        schedule = paper("vpp-packed", (5, 3), 2)
        plan = written(schedule, tmp_path / "plan.json")
        arguments = [plan, "--runner", "null", "--journal", str(tmp_path / "journal")]
        faults = [Fault(0, 6, BEFORE, ("divide",))]
        ended = World(tmp_path, 2, faulty, lambda process: (arguments, faults)).ended()
        assert ended.statuses == [1, 1]
        lines = journal(tmp_path / "journal")["rank-0-tp-0.jsonl"]
        done = {index for index in range(6) if schedule.programs[0].row(index)[0] not in (1, 2)}
        assert done <= {line["i"] for line in lines} <= set(range(6))


class TestTimed:
    def test_the_simulated_time(self, tmp_path: Path) -> None:
        """Never faster, and not much slower, however busy the machine is: every FORWARD where the plan has it."""
        schedule = paper("vpp-packed", (6, 4), 4, t=0.012, transfer=0.01)
        report = price(schedule)
        assert 0.9 < report.makespan < 1.5
        run(tmp_path, schedule, "--runner", "timed", "--journal", str(tmp_path / "journal"))
        timing = simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))
        lines = journal(tmp_path / "journal").values()
        last = max(line["end"] for each in lines for line in each)
        assert report.makespan - 1e-3 < last < 1.1 * report.makespan + 0.05
        for starts, each in zip(timing.starts, lines, strict=True):
            for line in each:
                if line["op"] == "FORWARD":
                    assert starts[line["i"]] - 6e-3 < line["start"] < starts[line["i"]] + 0.1 * report.makespan + 0.05

    def test_requests_that_arrive_later(self, tmp_path: Path) -> None:
        requests = (Request("r0", 2), Request("r1", 2, arrival=0.6))
        cost = CostModel((LayerCost(2, per_token=0.01),))
        schedule = compile_schedule(requests, Model("test", 2), cost, Options(strategy="cpp", pp=2, chunk_size=1))
        (table, _) = run(tmp_path, schedule, "--runner", "timed")
        for line in table.splitlines()[1:]:
            assert 0.029 < float(line.split()[2]) < 0.2  # from its own arrival: three steps of a hundredth

    def test_it_needs_costs(self, tmp_path: Path) -> None:
        schedule = paper("cpp", 3, 2)
        bare = replace(schedule, extra={})
        arguments = [written(bare, tmp_path / "plan.json"), "--runner", "timed"]
        ended = World(tmp_path, 2, main, lambda process: (arguments,)).ended()
        assert ended.statuses == [2, 2]
        assert "has no cost, which the timed runner needs" in ended.err[0]


class TestProfile:
    def test_every_kernel_is_under_an_instruction(self, tmp_path: Path) -> None:
        schedule = paper("vpp-packed", (4, 2), 2)
        run(tmp_path, schedule, "--profile", str(tmp_path / "profile"))
        for rank, program in enumerate(schedule.programs):
            trace = json.loads((tmp_path / "profile" / f"rank-{rank}-tp-0.json").read_text())
            events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
            names = [instruction_name(program, index) for index in range(len(program))]
            marks = sorted((e for e in events if e["name"] in set(names)), key=lambda event: float(event["ts"]))
            assert [mark["name"] for mark in marks] == names
            first, last = float(marks[0]["ts"]), float(marks[-1]["ts"]) + float(marks[-1]["dur"])
            kernels = [
                event
                for event in events
                if event.get("cat") == "cpu_op"
                and event["tid"] == marks[0]["tid"]
                and event not in marks
                and first <= float(event["ts"]) <= last  # before and behind, the ranks meet
            ]
            assert any(kernel["name"] == "aten::linear" for kernel in kernels)
            assert all(any(_inside(kernel, mark) for mark in marks) for kernel in kernels)

    def test_in_the_folder_of_a_run_on_more_ranks(self, tmp_path: Path) -> None:
        folder = tmp_path / "profile"
        for pp in (2, 1):
            run(tmp_path, paper("cpp", (5, 3), pp), "--runner", "null", "--profile", str(folder))
            assert len(list(folder.iterdir())) == pp


def _inside(kernel: Any, mark: Any) -> bool:
    begin, end = float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])
    return begin <= float(kernel["ts"]) and float(kernel["ts"]) + float(kernel["dur"]) <= end + 1e-3


class TestMemory:
    def test_it_does_not_grow_with_the_number_of_requests(self, tmp_path: Path) -> None:
        cost = CostModel((LayerCost(2, per_token=1.0),), transfer=Linear(0.1))
        schedule = compiled("cpp", (5, 3, 9, 7) * 250, 2, cost, chunk_size=6)
        plan = written(schedule, tmp_path / "plan.json")
        ended = succeeded(World(tmp_path, 2, memory, lambda process: (plan, 100)).ended())
        for out in ended.out:
            resident = [int(line) for line in out.split()]
            assert len(resident) == 10
            assert resident[-1] - resident[1] < 4 * 2**20


@pytest.mark.parametrize("arguments", [["--timeout", "0"], ["--cancel", "r0"], ["--tp", "0"], ["--runner", "magic"]])
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan.json", *arguments])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
