"""Chrome traces: the rules of the Trace Event Format, and that they tell what the run was."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.journals import write_journal
from tests.plans import compiled, deepseek, paper, plans
from vppc.analysis.breakdown import first_tokens
from vppc.analysis.memory import resident_tokens
from vppc.analysis.times import Timing
from vppc.analysis.timing import simulate
from vppc.cli import vppc
from vppc.compiler import paper_cost
from vppc.costs.document import parse_cost
from vppc.costs.model import OpCosts
from vppc.errors import CheckFailed, InputError
from vppc.ir.document import schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.rules import check
from vppc.ir.schedule import Chunk, Schedule
from vppc.render.chrome_trace import chrome_trace
from vppc.render.lanes import Run

MICRO = Decimal(1_000_000)


def run_of(schedule: Schedule, name: str = "plan") -> Run:
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    return Run(name, schedule, simulate(schedule, costs))


def parsed(*runs: Run) -> list[dict[str, Any]]:
    """The trace's events, with times exactly as the text has them."""
    events = json.loads("".join(chrome_trace(runs)), parse_float=Decimal)
    assert isinstance(events, list)
    return events


def spans(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[Decimal, Decimal]]]:
    """The (start, end) of every thread's slices."""
    found: dict[tuple[int, int], list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return found


def check_rules(events: list[dict[str, Any]]) -> None:
    """The Trace Event Format, as far as we use it."""
    check_fields(events)
    check_names(events)
    for slices in spans(events).values():
        check_nesting(slices)
    check_flows(events)
    check_requests(events)


def check_fields(events: list[dict[str, Any]]) -> None:
    """What each phase needs, and that times are in microseconds to the nanosecond."""
    for event in events:
        assert event["ph"] in ("X", "M", "C", "s", "t", "f", "b", "e")
        assert type(event["name"]) is str
        assert type(event["pid"]) is int and type(event["tid"]) is int
        for key in ("ts", "dur"):
            if key in event:
                assert event[key] >= 0
                assert event[key] * 1000 == int(event[key] * 1000)
        assert ("ts" in event) == (event["ph"] != "M")
        assert ("dur" in event) == (event["ph"] == "X")
        assert ("id" in event) == (event["ph"] in "stf")
        assert ("id2" in event) == (event["ph"] in "be")
        assert ("bp" in event) == (event["ph"] in "tf")
        if event["ph"] == "C":
            [value] = event["args"].values()
            assert type(value) is int and value >= 0


def check_names(events: list[dict[str, Any]]) -> None:
    """Every process has one name, and every thread with slices; ids are from 1, and no thread's is in two processes."""
    metadata = [event for event in events if event["ph"] == "M"]
    processes = [event["pid"] for event in metadata if event["name"] == "process_name"]
    threads = [(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"]
    assert len(set(processes)) == len(processes)
    assert len({thread for _, thread in threads}) == len(threads)
    assert min((*processes, *(event["tid"] for event in events))) > 0
    assert {event["pid"] for event in events} == set(processes)
    assert spans(events).keys() <= set(threads)


def check_nesting(slices: list[tuple[Decimal, Decimal]]) -> None:
    """Two slices of a thread are apart, or one holds the other; the outer one comes first."""
    open_until: list[Decimal] = []
    for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)


def check_flows(events: list[dict[str, Any]]) -> None:
    """A flow starts once and ends once, time does not run back, and all its ends lie in slices."""
    flows: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "t", "f"):
            flows[event["cat"], event["name"], event["id"]].append(event)
    slices = spans(events)
    for steps in flows.values():
        assert [step["ph"] for step in steps] in (["s", "f"], ["s", "t", "f"])
        assert [step["ts"] for step in steps] == sorted(step["ts"] for step in steps)
        for step in steps:
            assert any(start <= step["ts"] < end for start, end in slices[step["pid"], step["tid"]])
    assert len({number for _, _, number in flows}) == len(flows)


def check_requests(events: list[dict[str, Any]]) -> None:
    """Every asynchronous event begins and ends once."""
    begins, ends = (
        {(e["pid"], e["cat"], e["id2"]["local"]): e["ts"] for e in events if e["ph"] == phase} for phase in "be"
    )
    assert begins.keys() == ends.keys()
    assert all(begins[key] <= ends[key] for key in begins)
    assert len(begins) == sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events)


@settings(max_examples=30, deadline=None)
@given(plans(limited=False))
def test_every_plan_keeps_the_rules_and_nothing_is_lost(schedule: Schedule | InputError) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    run = run_of(schedule)
    events = parsed(run)
    check_rules(events)
    categories = [event["cat"] for event in events if event["ph"] == "X"]
    assert categories.count("forward") == len(schedule.chunks) * len(schedule.stages)
    assert "sample" not in categories  # which takes no time
    assert categories.count("transfer") == sum(len(each.starts) for each in run.timing.transfers)


@pytest.mark.parametrize("strategy", ["cpp", "vpp", "vpp-async", "vpp-packed"])
def test_every_transfer_has_a_flow_from_what_made_it_to_what_reads_it(strategy: str) -> None:
    run = run_of(deepseek(strategy, (65536, 40000), 8192, pp=3))
    events = parsed(run)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    assert len(flows) == sum(len(each.starts) for each in run.timing.transfers)
    forwards = {(event["pid"], event["name"]): event for event in events if event.get("cat") == "forward"}
    for made, moved, read in flows.values():
        chunk, stage = read["name"].split()
        source = forwards[made["pid"], f"{chunk} s{int(stage[1:]) - 1}"]
        assert made["ts"] == source["ts"] + source["dur"] - Decimal("0.001")
        assert moved["pid"] == made["pid"]
        assert read["ts"] == forwards[read["pid"], read["name"]]["ts"]


def test_forwards_are_where_the_simulator_has_them() -> None:
    run = run_of(paper("vpp", 5, transfer=0.25))
    shown = {(e["name"], e["ts"], e["dur"]) for e in parsed(run) if e.get("cat") == "forward"}
    expected = {
        (f"C{row[1]} s{row[2]}", Decimal(start) * MICRO, Decimal(end - start) * MICRO)
        for program, starts, ends in zip(run.schedule.programs, run.timing.starts, run.timing.ends, strict=True)
        for row, start, end in zip(program.rows(), starts, ends, strict=True)
        if row[0] == FORWARD
    }
    assert shown == expected


def test_an_exposed_transfer_lies_inside_its_wait() -> None:
    events = parsed(run_of(paper("vpp", 2, transfer=0.25)))
    waits = [(e["name"], e["ts"] / MICRO, e["dur"] / MICRO) for e in events if e.get("cat") == "wait" and e["pid"] == 3]
    quarter = Decimal("0.25")
    assert waits[:2] == [("wait", 0, Decimal("1.25")), ("exposed transfer", 1, quarter)]
    why = next(e["args"]["why"] for e in events if e["name"] == "wait" and e["pid"] == 3)
    assert why == "waits for the input of C0 s1 from rank 0"


@settings(max_examples=20, deadline=None)
@given(plans(limited=False))
def test_counters_end_at_nothing_and_peak_where_the_plan_says(schedule: Schedule | InputError) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    events = parsed(run_of(schedule))
    for rank, program in enumerate(schedule.programs):
        mine = [event for event in events if event["ph"] == "C" and event["pid"] == rank + 2]
        buffers = [event["args"]["buffers"] for event in mine if event["name"] == "buffers in use"]
        tokens = [event["args"]["tokens"] for event in mine if event["name"] == "KV tokens"]
        assert buffers[-1:] in ([], [0])
        assert max(buffers, default=0) <= program.buffers
        assert tokens[-1:] in ([], [0])
        assert max(tokens, default=0) <= resident_tokens(schedule, rank)


def test_a_chunk_may_hold_two_parts_of_one_request() -> None:
    schedule = compiled("vpp", (8,), 2, paper_cost(4, 1.0, 0.0), chunk_size=4)
    halves = tuple(
        Chunk((replace(part, tokens=2), replace(part, start=part.start + 2, tokens=2)))
        for part in (chunk.parts[0] for chunk in schedule.chunks)
    )
    schedule = replace(schedule, chunks=halves)
    assert not check(schedule)
    events = parsed(run_of(schedule))
    tokens = [event["args"]["tokens"] for event in events if event["name"] == "KV tokens" and event["pid"] == 2]
    assert tokens == [4, 8, 0]


def test_a_sample_that_takes_time_is_shown() -> None:
    run = run_of(paper("cpp", 1))  # 2 s on each rank
    run.timing.ends[1][-1] += 0.5
    [sample] = [event for event in parsed(run) if event.get("cat") == "sample"]
    assert (sample["name"], sample["ts"], sample["dur"]) == ("C0 sample", 4 * MICRO, MICRO / 2)
    assert sample["args"] == {"instruction": 3, "requests": ["r0"], "tokens": 1, "prefix_tokens": 0}


def test_the_peak_of_kv_is_reached() -> None:
    schedule = paper("vpp", 5)
    events = parsed(run_of(schedule))
    tokens = [event["args"]["tokens"] for event in events if event["name"] == "KV tokens" and event["pid"] == 2]
    assert tokens == [1, 2, 3, 4, 5, 0]


def test_requests_span_arrival_to_first_token() -> None:
    schedule = paper("vpp-packed", (3, 2))
    late = replace(schedule, requests=(schedule.requests[0], replace(schedule.requests[1], arrival=1.5)))
    run = run_of(late)
    spans = {(e["name"], e["ph"]): e["ts"] / MICRO for e in parsed(run) if e["ph"] in "be"}
    first, second = first_tokens(late, run.timing)
    assert first is not None and second is not None
    assert spans == {
        ("r0", "b"): 0,
        ("r0", "e"): Decimal(first),
        ("r1", "b"): Decimal("1.5"),
        ("r1", "e"): Decimal(second) + Decimal("1.5"),
    }


def test_several_runs_have_processes_of_their_own() -> None:
    events = parsed(run_of(paper("cpp", 3), "cpp"), run_of(paper("vpp", 3), "vpp"))
    check_rules(events)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["cpp requests", "cpp rank 0", "cpp rank 1", "vpp requests", "vpp rank 0", "vpp rank 1"]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_measured_run_keeps_the_rules_even_when_clocks_disagree(data: st.DataObject) -> None:
    planned = run_of(paper("vpp-async", 4, 3, transfer=0.125))
    shifts = [data.draw(st.sampled_from([0.0, -0.75, 0.3333333333, 40.0])) for _ in range(3)]
    moved = Timing(
        tuple([t + shift for t in times] for times, shift in zip(planned.timing.starts, shifts, strict=True)),
        tuple([t + shift for t in times] for times, shift in zip(planned.timing.ends, shifts, strict=True)),
        planned.timing.transfers,
    )
    check_rules(parsed(planned, replace(planned, name="journal", timing=moved)))


def trace(*arguments: str) -> Result:
    return CliRunner().invoke(vppc, ["trace", *arguments])


def saved(path: Path, schedule: Schedule) -> str:
    path.write_text("".join(schedule_text(schedule)))
    return str(path)


def test_command(tmp_path: Path) -> None:
    schedule = paper("vpp", 3)
    plan, out = saved(tmp_path / "plan.json", schedule), tmp_path / "trace.json"
    result = trace(plan, "-o", str(out))
    assert (result.exception, result.output) == (None, "")
    assert out.read_text() == "".join(chrome_trace([run_of(schedule)]))
    assert trace(plan).output == out.read_text()


def test_a_journal_is_traced_beside_its_plan(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 3, transfer=0.5)
    folder = write_journal(tmp_path / "run", schedule, run_of(schedule).timing)
    events = json.loads(trace(str(folder)).output, parse_float=Decimal)
    check_rules(events)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names[:2] == ["plan requests", "plan rank 0"]
    assert names[3:5] == ["journal requests", "journal rank 0"]
    shown = [(e["ts"], e["dur"]) for e in events if e.get("cat") == "forward"]
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
    bare = replace(schedule, extra={key: value for key, value in schedule.extra.items() if key != "cost"})
    alone = write_journal(tmp_path / "bare", bare, run_of(schedule).timing)
    names = [e["args"]["name"] for e in json.loads(trace(str(alone)).output) if e["name"] == "process_name"]
    assert names == ["requests", "rank 0", "rank 1"]


def test_what_cannot_be_traced(tmp_path: Path) -> None:
    schedule = paper("vpp", 3)
    bare = saved(tmp_path / "bare.json", replace(schedule, extra={}))
    assert isinstance(error := trace(bare).exception, InputError)
    assert str(error) == f"{bare}: cost: no costs are embedded\n  hint: give --cost FILE"
    wrong = saved(tmp_path / "wrong.json", replace(schedule, programs=schedule.programs[::-1]))
    assert isinstance(trace(wrong, "-o", str(tmp_path / "x")).exception, CheckFailed | InputError)
    assert not (tmp_path / "x").exists()
