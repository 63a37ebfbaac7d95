"""Journals: what was simulated and written as a journal comes back, and what is no whole journal is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import settings as examples
from journals import write_journal
from plans import compiled, deepseek, paper, plans

from vppc.analysis.report import predict
from vppc.analysis.timing import simulate
from vppc.cli import vppc
from vppc.costs.calibration import calibrate
from vppc.costs.document import cost_json, parse_cost, read_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.costs.samples import Layers
from vppc.errors import CheckFailed, InputError
from vppc.ir.schedule import Schedule
from vppc.profiles.journal import is_journal, read_journal
from vppc.profiles.measured import measure, measurements, timing_of
from vppc.profiles.sources import Reading, gather

TOY = CostModel(
    (LayerCost(3, 2e-3, 4e-6, 2e-9, 3e-8), LayerCost(9, 3e-3, 7e-6, 2e-9, 3e-8)),
    embed=Linear(4e-3, 1e-6),
    transfer=Linear(2e-4, 1e-7),
    name="toy",
)


def costs_of(schedule: Schedule) -> tuple[CostModel, OpCosts]:
    cost = parse_cost(schedule.extra["cost"])
    return cost, OpCosts.of(schedule, cost)


def simulated(folder: Path, schedule: Schedule, **options: Any) -> Path:
    _, costs = costs_of(schedule)
    return write_journal(folder, schedule, simulate(schedule, costs), **options)


def noisy(schedule: Schedule, noise: Callable[[int], float]) -> OpCosts:
    """The costs that the schedule was planned with, each FORWARD off by a factor."""
    _, costs = costs_of(schedule)
    return replace(costs, seconds=[second * noise(place) for place, second in enumerate(costs.seconds)])


# What comes back


@given(plans(max_pp=4))
@examples(max_examples=40)
def test_a_simulated_run_is_measured_as_it_was_planned(tmp_path_factory: pytest.TempPathFactory, plan: Any) -> None:
    assume(not isinstance(plan, InputError))
    cost, costs = costs_of(plan)
    folder = write_journal(tmp_path_factory.mktemp("run"), plan, simulate(plan, costs))
    measured = measure(read_journal(str(folder)), cost)
    planned = predict(plan, cost)
    assert measured.report.makespan == planned.makespan
    assert measured.report.ttft == planned.ttft
    assert measured.report.ideal == planned.ideal
    assert measured.plan == planned
    assert measured.report.bound.seconds <= planned.makespan * (1 + 1e-9) + 1e-9
    for fact, theory in zip(measured.report.ranks, planned.ranks, strict=True):
        assert fact.compute == pytest.approx(theory.compute + theory.collective, abs=1e-9)
        assert fact.collective == 0.0
        assert fact.exposed_transfer == pytest.approx(theory.exposed_transfer, abs=1e-9)
        assert fact.launch_stall == pytest.approx(theory.launch_stall, abs=1e-9)
        assert fact.free == pytest.approx(theory.free, abs=1e-9)
    assert all(each.measured == pytest.approx(each.planned, abs=1e-9) for each in measured.differences)


def test_the_timing_of_transfers_that_were_watched_is_exact(tmp_path: Path) -> None:
    """With blocking transfers every receiver waits for all of them."""
    schedule = paper("vpp", 6, transfer=0.25)
    _, costs = costs_of(schedule)
    planned = simulate(schedule, costs)
    timing = timing_of(read_journal(str(simulated(tmp_path, schedule))))
    assert (timing.starts, timing.ends) == (planned.starts, planned.ends)
    assert timing.transfers == planned.transfers


def test_hidden_transfers_are_taken_to_be_as_quick_as_those_watched(tmp_path: Path) -> None:
    schedule = deepseek("vpp-async", (131072,), 16384)
    cost, _ = costs_of(schedule)
    planned = predict(schedule, cost)
    measured = measure(read_journal(str(simulated(tmp_path, schedule))), cost)
    for fact, theory in zip(measured.report.ranks, planned.ranks, strict=True):
        assert theory.hidden_transfer > 0.0
        assert fact.hidden_transfer == pytest.approx(theory.hidden_transfer, rel=1e-6)


def test_sampling_takes_time_only_when_measured_and_counts_as_compute(tmp_path: Path) -> None:
    schedule = paper("cpp", 3)
    cost, costs = costs_of(schedule)
    timing = simulate(schedule, costs)
    timing.ends[1][-1] += 2.0  # the SAMPLE, last of all
    measured = measure(read_journal(str(write_journal(tmp_path, schedule, timing))), cost)
    planned = predict(schedule, cost)
    assert measured.report.ranks[1].compute == planned.ranks[1].compute + 2.0
    assert measured.report.ranks[1].free == planned.ranks[1].free
    assert measured.report.ttft[0] == planned.makespan + 2.0
    worst = measured.differences[0]
    assert (worst.rank, worst.index, worst.planned, worst.measured) == (1, len(schedule.programs[1]) - 1, 0.0, 2.0)


def test_lines_come_in_any_order(tmp_path: Path) -> None:
    schedule = deepseek("vpp-packed", (65536, 20000), 8192)
    cost, _ = costs_of(schedule)
    folder = simulated(tmp_path, schedule)
    before = measure(read_journal(str(folder)), cost)
    for file in folder.glob("*.jsonl"):
        header, *lines = file.read_text().splitlines()
        random.Random(1).shuffle(lines)
        file.write_text("\n".join([header, *lines]))  # and without a line end at the end
    after = measure(read_journal(str(folder)), cost)
    assert replace(after, journal=before.journal) == before


def test_of_tp_ranks_the_first_gives_the_times(tmp_path: Path) -> None:
    schedule = deepseek("vpp-async", (32768,), 8192)
    schedule = replace(schedule, extra={"tp": 2, **schedule.extra})
    cost, _ = costs_of(schedule)
    folder = simulated(tmp_path, schedule, tp=2, late=0.5, uncertainty=1e-4)
    journal = read_journal(str(folder))
    assert journal.uncertainty == 2e-4
    assert [len(rank) for rank in journal.ranks] == [2, 2]
    assert measure(journal, cost).report.makespan == pytest.approx(predict(schedule, cost).makespan)


def test_a_folder_with_a_schedule_is_a_journal(tmp_path: Path) -> None:
    folder = simulated(tmp_path, paper("cpp", 2))
    assert is_journal(folder)
    (folder / "schedule.json").rename(folder / "plan.json")
    assert not is_journal(folder)


@pytest.mark.parametrize("command", ["profile", "explain", "plot", "trace", "report", "calibrate"])
def test_a_journal_that_no_process_wrote_is_refused_as_one(tmp_path: Path, command: str) -> None:
    """As it is left where all ranks were killed."""
    if command == "report":
        pytest.importorskip("bokeh", reason="a report needs Bokeh")
    folder = simulated(tmp_path, paper("cpp", 2))
    for file in folder.glob("*.jsonl"):
        file.unlink()
    refused = CliRunner().invoke(vppc, [command, str(folder)]).exception
    assert isinstance(refused, CheckFailed)
    assert str(refused).startswith(f"{folder}: J1 journal: has no file of rank 0, tp rank 0\n")


# What is refused


def broken(tmp_path: Path, edit: Callable[[list[str]], list[str]]) -> Path:
    """A journal with the lines of rank 1 edited."""
    folder = simulated(tmp_path / "run", paper("vpp", 2, transfer=0.25))
    file = folder / "rank-1-tp-0.jsonl"
    file.write_text("".join(edit(file.read_text().splitlines(keepends=True))))
    return folder


def changed(line: str, **values: Any) -> str:
    entry = json.loads(line) | values
    return json.dumps({key: value for key, value in entry.items() if value is not None}) + "\n"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: [], "rank-1-tp-0.jsonl: is empty"),
        (lambda lines: lines[:-1], "ends without instruction"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "the JSON text ends too early"),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], "line 5: instruction 2 is there twice"),
        (lambda lines: [*lines[:2], changed(lines[2], end=float("nan")), *lines[3:]], "line 3: end: NaN is not a time"),
        (lambda lines: [*lines[:2], changed(lines[2], start=True), *lines[3:]], "line 3: start: true is not a time"),
        (lambda lines: [*lines[:2], changed(lines[2], start="0"), *lines[3:]], 'line 3: start: "0" is not a time'),
        (lambda lines: [*lines[:2], changed(lines[2], start=-2.0), *lines[3:]], "line 3: start: -2.0 is not a time"),
        (
            lambda lines: [*lines[:2], changed(lines[2], end=-0.5), *lines[3:]],
            "line 3: ends at -0.5 s, before its start",
        ),
        (lambda lines: [lines[0], changed(lines[1], posted=None), *lines[2:]], 'line 2: the key "posted" is missing'),
        (lambda lines: [lines[0], changed(lines[1], posted=-0.5), *lines[2:]], "line 2: posted before start"),
        (lambda lines: [*lines[:2], changed(lines[2], end=None), *lines[3:]], 'line 3: the key "end" is missing'),
        (lambda lines: [*lines[:2], changed(lines[2], i=99), *lines[3:]], "line 3: i: 99 is no instruction of rank 1"),
        (lambda lines: [*lines[:2], changed(lines[2], op="SAMPLE"), *lines[3:]], 'is a WAIT, not "SAMPLE"'),
        (lambda lines: [*lines[:2], "[1]\n", *lines[3:]], "line 3: is not an object"),
        (lambda lines: [*lines[:2], "\n", *lines[3:]], "line 3: is blank"),
        (lambda lines: [changed(lines[0], rank=7), *lines[1:]], "line 1: rank: 7 is too large"),
        (lambda lines: [changed(lines[0], rank=-1), *lines[1:]], "line 1: rank: -1 is no rank"),
        (lambda lines: [changed(lines[0], digest=3), *lines[1:]], "line 1: digest: 3 is no digest"),
        (lambda lines: [changed(lines[0], clock_uncertainty=None), *lines[1:]], "null is no clock_uncertainty"),
        (lambda lines: [changed(lines[0], version=2), *lines[1:]], "line 1.version: version 2 is newer"),
        (lambda lines: [changed(lines[0], format="x"), *lines[1:]], 'line 1.format: "x" is not the format'),
        (lambda lines: lines[1:], 'line 1: the key "format" is missing'),
    ],
)
def test_broken_lines_are_refused_with_their_number(
    tmp_path: Path, edit: Callable[[list[str]], list[str]], message: str
) -> None:
    with pytest.raises(InputError) as error:
        read_journal(str(broken(tmp_path, edit)))
    assert message in str(error.value)
    assert "rank-1-tp-0.jsonl" in str(error.value)


def test_a_run_that_did_not_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_journal(str(broken(tmp_path, lambda lines: lines[:6])))
    assert "rank-1-tp-0.jsonl: line 6: ends without instruction" in str(error.value)
    assert "one of 7 that are missing" in str(error.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: [changed(lines[0], digest="00"), *lines[1:]], "is of a run of another schedule"),
        (lambda lines: [changed(lines[0], digest="00", rank=7), *lines[1:]], "is of a run of another schedule"),
        (lambda lines: [changed(lines[0], tp_rank=1), *lines[1:]], "has no file of rank 0, tp rank 1"),
    ],
)
def test_files_that_disagree_are_a_failed_check(
    tmp_path: Path, edit: Callable[[list[str]], list[str]], message: str
) -> None:
    with pytest.raises(CheckFailed) as error:
        read_journal(str(broken(tmp_path, edit)))
    assert message in str(error.value)


def test_missing_and_doubled_ranks_are_a_failed_check(tmp_path: Path) -> None:
    folder = simulated(tmp_path, paper("cpp", 2))
    (folder / "rank-1-tp-0.jsonl").rename(folder / "other.jsonl")
    assert len(read_journal(str(folder)).ranks) == 2  # by its header, not by its name
    (folder / "again.jsonl").write_text((folder / "other.jsonl").read_text())
    with pytest.raises(CheckFailed, match=r"other\.jsonl: J1 journal: is of rank 1, tp rank 0, as is again\.jsonl"):
        read_journal(str(folder))
    (folder / "again.jsonl").unlink()
    one = paper("cpp", 2)
    whole = simulated(tmp_path / "two", replace(one, extra={**one.extra, "tp": 1}, certificate=None), tp=2)
    with pytest.raises(
        CheckFailed, match=r"rank-0-tp-1\.jsonl: J1 journal: is of tp rank 1, but the schedule is for 1"
    ):
        read_journal(str(whole))
    (folder / "other.jsonl").unlink()
    with pytest.raises(CheckFailed, match="has no file of rank 1, tp rank 0"):
        read_journal(str(folder))


def test_a_schedule_that_cannot_have_run_is_refused(tmp_path: Path) -> None:
    schedule = paper("cpp", 2)
    first, second = schedule.programs
    folder = simulated(tmp_path, schedule)
    wrong = replace(schedule, programs=(first, replace(second, code=second.code[6:])))
    write_journal(folder, wrong, simulate(schedule, costs_of(schedule)[1]))
    with pytest.raises(CheckFailed, match=r"schedule\.json"):
        read_journal(str(folder))


# Calibration from journals


def test_a_journal_gives_the_costs_that_it_ran_with(tmp_path: Path) -> None:
    """Chunks of several sizes, stages with and without the embedding, kinds of layers in different numbers."""
    schedule = compiled("vpp-async", (20000, 7000, 3333), 2, TOY, chunk_size=1500)
    journal = read_journal(str(simulated(tmp_path, schedule)))
    layers = Layers.of(TOY.layers)
    found = calibrate(measurements(journal, layers))
    again = OpCosts.of(schedule, found.cost)
    assert again.seconds == pytest.approx(costs_of(schedule)[1].seconds, rel=1e-6)
    assert found.cost.transfer.per_token == pytest.approx(1e-7, rel=0.3)
    assert found.cost.name == "test"
    assert found.fits[0].median_error < 1e-6


def test_what_is_in_a_journal_is_gathered_with_the_kinds_of_its_layers(tmp_path: Path) -> None:
    schedule = compiled("vpp-async", (20000,), 2, TOY, chunk_size=1500)
    folder = str(simulated(tmp_path, schedule))
    found = gather([folder], Reading())
    assert found.layers == Layers.of(TOY.layers)
    assert found.by_products == {"transfers", "heads"}  # a chaotic link is no reason to refuse the forwards
    assert {each.layers for each in found.forwards} == {(3, 0), (0, 3)}
    assert gather([folder], Reading(topk=64)).layers == Layers.alike(12, 64)
    assert gather([folder], Reading(Layers.alike(12))).layers == Layers.alike(12)


def test_the_embedding_is_in_the_forwards_of_stage_0_alone(tmp_path: Path) -> None:
    cost = replace(TOY, layers=(replace(TOY.layers[0], count=12),))
    schedule = compiled("vpp-async", (20000, 7000, 3333), 2, cost, chunk_size=1500)
    found = calibrate(gather([str(simulated(tmp_path, schedule))], Reading())).cost
    assert [found.embed.fixed, found.embed.per_token] == pytest.approx([4e-3, 1e-6], rel=1e-4)


def test_transfers_that_queue_on_a_channel_are_timed_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 8, transfer=60.0)
    found = measurements(read_journal(str(simulated(tmp_path, schedule))), Layers.alike(4))
    assert len(found.transfers) == 16  # all of them
    assert [each.seconds for each in found.transfers] == pytest.approx([60.0] * 16)


@pytest.mark.parametrize("seed", range(3))
def test_a_short_noisy_run_predicts_a_longer_one(tmp_path: Path, seed: int) -> None:
    """Noise of 5%, the first FORWARD of each rank cold; another length's makespan within 5%."""
    draw = random.Random(seed)
    short = deepseek("vpp-async", (65536,), 8192)
    cold = {0, 1}
    costs = noisy(short, lambda op: 6.0 if op in cold else draw.gauss(1.0, 0.05))
    journal = read_journal(str(write_journal(tmp_path, short, simulate(short, costs))))
    found = calibrate(measurements(journal, Layers.of(costs_of(short)[0].layers))).cost
    long = deepseek("vpp-async", (196608,), 8192)
    truth = predict(long, costs_of(long)[0]).makespan
    assert predict(long, found).makespan == pytest.approx(truth, rel=0.05)


# The commands


def run(*arguments: str) -> Any:
    return CliRunner().invoke(vppc, list(arguments))


def test_json_has_the_keys_of_simulate_and_the_differences(tmp_path: Path) -> None:
    schedule = deepseek("vpp-packed", (65536, 20000), 8192)
    folder = simulated(tmp_path, schedule)
    planned = predict(schedule, costs_of(schedule)[0]).json()
    shown = json.loads(run("profile", str(folder), "--json", "--listed", "3").output)
    assert planned.keys() <= shown.keys()
    assert shown["makespan"] == planned["makespan"]
    assert shown["ttft"] == planned["ttft"]
    assert [rank.keys() for rank in shown["ranks"]] == [rank.keys() for rank in planned["ranks"]]
    assert shown["plan"] == planned
    assert len(shown["differences"]) == 3
    assert shown["forwards_ratio"] == pytest.approx(1.0)


def test_the_tables_of_a_journal(tmp_path: Path) -> None:
    schedule = paper("vpp", 2, transfer=0.25)
    cost, costs = costs_of(schedule)
    slow = replace(costs, seconds=[3.0 * second for second in costs.seconds])
    folder = write_journal(tmp_path / "run", schedule, simulate(schedule, slow), uncertainty=1e-5)
    assert run("profile", str(folder), "--listed", "2").output == GOLDEN
    doubled = tmp_path / "cost.json"
    doubled.write_text(
        json.dumps(cost_json(replace(cost, layers=tuple(replace(k, per_pair=3.0) for k in cost.layers))))
    )
    text = run("profile", str(folder), "--cost", str(doubled)).output
    assert "note:" not in text


GOLDEN = """\
vpp, 2 ranks x 2 stages, 1 request, 2 chunks, 25 instructions
makespan     27.75 s
efficiency   21.6% of the ideal 6 s
lower bound  27.50 s, and this takes 0.91% longer
bound by     rank 1: 3.250 s before + 18 s of work there + 6.250 s after

request  prompt  cached  arrival     TTFT
-------  ------  ------  -------  -------
r0            2       0      0 s  27.75 s

rank  compute  collective  exposed transfer  launch stall  free  bubble  hidden transfer
----  -------  ----------  ----------------  ------------  ----  ------  ---------------
   0     18 s         0 s          750.0 ms           0 s   9 s   32.4%              0 s
   1     18 s         0 s          750.0 ms           3 s   6 s   32.4%              0 s
bubble: launch stall (until the first input) and free; transfers: exposed is waited for, hidden is not
efficiency: the ideal, the prompts' work without what chunks cost, shared evenly, over the makespan

planned    9.750 s; measured 27.75 s, 2.846 of it
forwards   took 3.000 of what was planned
clocks     agree to within 20.00 us
note: these costs, and the efficiency, are another machine's (vppc calibrate fits some to a journal), or this one
was busy, now or when they were measured: then run again when it is idle

the run ends 18 s later than the plan; on its critical path: forwards and samples +18 s

rank  what                      the run at  the plan took  the run took  longer by
----  ------------------------  ----------  -------------  ------------  ---------
   1  8 FORWARD c1 s1 b1 -> b0     9.500 s            2 s           6 s       +4 s
   1  9 FORWARD c1 s2 b0 -> b1     15.50 s            2 s           6 s       +4 s

these come to 8 s; 4 smaller ones come to 10 s

largest differences between plan and fact
rank  instruction                   planned at  took  measured at  took  difference
----  ----------------------------  ----------  ----  -----------  ----  ----------
   0  3 FORWARD c1 s0 tokens -> b0     1.250 s   2 s      3.250 s   6 s        +4 s
   0  11 FORWARD c1 s3 b1 -> b0        7.750 s   2 s      21.75 s   6 s        +4 s
"""


def test_calibrate_reads_journals_and_writes_costs_for_the_next_plan(tmp_path: Path) -> None:
    schedule = deepseek("vpp-async", (131072, 40000), 8192)
    folder = simulated(tmp_path / "run", schedule)
    out = tmp_path / "cost.json"
    result = run("calibrate", str(folder), "-o", str(out))
    assert result.exit_code == 0, result.exception
    assert "test: costs for 61 layers" in result.output
    again = OpCosts.of(schedule, read_cost(str(out)))
    assert again.seconds == pytest.approx(costs_of(schedule)[1].seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "--step", "2"), "--step: says nothing without a device profile"),
        (("calibrate", "--layers", "60"), "is of a model with 61 layers, not 60"),
        (("calibrate", "--select", "a=b"), '--select: no table has a column "a"'),
    ],
)
def test_bad_usage(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    folder = simulated(tmp_path, deepseek("vpp-async", (32768,), 8192))
    result = run(arguments[0], str(folder), *arguments[1:])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_a_schedule_without_costs_needs_some(tmp_path: Path) -> None:
    schedule = deepseek("vpp-async", (32768,), 8192)
    timing = simulate(schedule, costs_of(schedule)[1])
    folder = write_journal(tmp_path, replace(schedule, extra={}), timing)
    result = run("profile", str(folder))
    assert isinstance(result.exception, InputError)
    assert "no costs are embedded" in str(result.exception)
    assert run("calibrate", str(folder)).exit_code == 0
