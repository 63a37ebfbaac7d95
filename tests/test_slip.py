"""Why a run ends later than its plan: the causes, which add up to the difference."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import settings as examples
from journals import write_journal
from plans import paper, plans

from vppc.analysis.activity import Activity, Doing
from vppc.analysis.slip import slip
from vppc.analysis.times import Timing
from vppc.analysis.timing import simulate
from vppc.cli import vppc
from vppc.costs.document import parse_cost
from vppc.costs.model import OpCosts
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import timing_of


def planned(schedule: Schedule) -> tuple[OpCosts, Timing]:
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    return costs, simulate(schedule, costs)


def paused(schedule: Schedule, timing: Timing, pause: float) -> tuple[Timing, int, int]:
    """The last rank stands still before the FORWARD that ends the run: all that it does from there on is later."""
    rank = schedule.stages[-1].rank
    index = max(i for i, row in enumerate(schedule.programs[rank].rows()) if row[0] == FORWARD)
    starts, ends = ([*map(list, each)] for each in (timing.starts, timing.ends))
    for each in (starts[rank], ends[rank]):
        each[index:] = [moment + pause for moment in each[index:]]
    return replace(timing, starts=tuple(starts), ends=tuple(ends)), rank, index


def test_a_pause_is_the_cause_and_all_of_the_slip(tmp_path: Path) -> None:
    schedule = paper("vpp", 4, transfer=0.5)
    _, plan = planned(schedule)
    late, rank, index = paused(schedule, plan, 2.0)
    folder = write_journal(tmp_path / "run", schedule, late)
    shown = CliRunner().invoke(vppc, ["profile", str(folder)]).output
    [line] = [line for line in shown.splitlines() if "gap before" in line]
    assert line.split()[:4] == [str(rank), "gap", "before", str(index)]
    assert line.split()[-6:] == ["0", "s", "2", "s", "+2", "s"]
    assert "the run ends 2 s later than the plan; on its critical path: between instructions (overhead) +2 s\n" in shown
    assert "\nthese come to 2 s\n" in shown
    found = json.loads(CliRunner().invoke(vppc, ["profile", str(folder), "--json"]).output)["slip"]
    assert (found["seconds"], found["between"], found["run"]) == pytest.approx((2.0, 2.0, 0.0))
    assert [(each["rank"], each["i"], each["doing"]) for each in found["worst"]] == [(rank, index, "between")]
    file = tmp_path / "run" / "schedule.json"
    compared = CliRunner().invoke(vppc, ["diff", str(file), str(folder)]).output
    assert "B ends 2 s later than A; on its critical path: between instructions (overhead) +2 s\n" in compared


@given(plans(max_pp=4))
@examples(max_examples=40)
def test_losses_add_up_to_the_slip_and_what_was_spare(schedule: Any) -> None:
    assume(isinstance(schedule, Schedule))
    costs, plan = planned(schedule)
    noise = random.Random(len(schedule.chunks))
    slow = replace(costs, seconds=[each * noise.uniform(0.5, 2.0) for each in costs.seconds])
    before, after = (Activity.of(schedule, timing) for timing in (plan, simulate(schedule, slow)))
    found = slip(before, after)
    scale = after.end - after.start
    assert sum(loss.seconds for loss in found.losses) == pytest.approx(found.seconds + found.spare, abs=1e-9 * scale)
    assert found.spare >= -1e-9 * scale
    assert sum(map(found.total, Doing)) == pytest.approx(found.seconds + found.spare, abs=1e-9 * scale)
    assert found.seconds == pytest.approx((after.end - after.start) - (before.end - before.start))


@pytest.mark.parametrize(
    ("prompts", "arrival", "operation", "took", "said"),
    [
        (
            (2,),
            0.0,
            1,
            6.0,
            "the run ends 2 s later than the plan; on its critical path: forwards and samples +4 s, less "
            "2 s that these had spare in the plan",
        ),
        ((1, 1), 50.0, 3, 3.0, "the run ends 1 s later than the plan; on its critical path: forwards and samples +1 s"),
    ],
    ids=["spare", "arrival"],
)
def test_one_forward_that_took_longer(
    prompts: tuple[int, ...], arrival: float, operation: int, took: float, said: str, tmp_path: Path
) -> None:
    """On the second rank: of a first chunk, which had waited 2 s for what comes next; of a prompt that came late."""
    schedule = paper("cpp", prompts)
    requests = (*schedule.requests[:-1], replace(schedule.requests[-1], arrival=arrival))
    schedule = replace(schedule, requests=requests, certificate=None)
    costs, _ = planned(schedule)
    slow = [took if place == operation else seconds for place, seconds in enumerate(costs.seconds)]
    folder = write_journal(tmp_path / "run", schedule, simulate(schedule, replace(costs, seconds=slow)))
    assert f"\n{said}\n" in CliRunner().invoke(vppc, ["profile", str(folder)]).output


def test_a_transfer_that_nobody_saw_end_delays_no_other(tmp_path: Path) -> None:
    """Every start is as simulated: when both ends were posted, not when the WAIT for the one before it came."""
    schedule = paper("vpp-async", 8, transfer=0.01)
    _, plan = planned(schedule)
    read = timing_of(read_journal(str(write_journal(tmp_path / "run", schedule, plan))))
    for simulated, found in zip(plan.transfers, read.transfers, strict=True):
        assert found.starts == pytest.approx(simulated.starts, abs=1e-6)
