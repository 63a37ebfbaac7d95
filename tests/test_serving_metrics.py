"""Metrics of serving: hand-worked cases, and a clock that is walked tick by tick."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import costs, random_costs, random_shape, shape
from vppc.analysis.order_timeline import Timeline, timeline
from vppc.costs.model import OpCosts
from vppc.ir.schedule import Order, Part, Schedule
from vppc.passes.admission import Admission
from vppc.passes.list_schedule import list_schedule
from vppc.serving.metrics import Distribution, RankUse, ServingReport, serving_report

TICK = 1 / 8
CAUSES = ("compute", "collective", "transfer", "imbalance", "held", "starved", "empty")


def judged(
    schedule: Schedule, op_costs: OpCosts, in_flight: int | None = None, target: float | None = None
) -> ServingReport:
    order, _ = list_schedule(schedule, op_costs, Admission(in_flight).gates(schedule))
    return serving_report(schedule, order, timeline(schedule, op_costs, order), op_costs, target)


def spent(use: RankUse) -> dict[str, float]:
    return {cause: asdict(use)[cause] for cause in CAUSES}


class TestDistribution:
    def test_percentiles_are_by_nearest_rank(self) -> None:
        found = Distribution.of(float(time) for time in range(200, 0, -1))
        assert (found.mean, found.p50, found.p90, found.p99, found.longest) == (100.5, 100.0, 180.0, 198.0, 200.0)

    def test_of_one(self) -> None:
        assert Distribution.of([3.0]) == Distribution(3.0, 3.0, 3.0, 3.0, 3.0)


class TestByHand:
    """Two ranks, one stage each."""

    def test_one_prompt_leaves_nothing_to_pack(self) -> None:
        # rank 0   0 [C0 2] 2 [C1 3] 5
        # rank 1            3 [C0 2] 5   6 [C1 3] 9     transfers of 1 s: 2 to 3, 5 to 6
        report = judged(shape([0, 1], [[Part(0, 0, 4)], [Part(0, 4, 6)]]), costs([2, 2, 3, 3], [1, 1], [0.5] * 4))
        first, second = map(spent, report.ranks)
        assert first == dict(zip(CAUSES, (4.0, 1.0, 0.0, 0.0, 0.0, 4.0, 0.0), strict=True))
        # to 2 s the prompt still waits with its second chunk
        assert second == dict(zip(CAUSES, (4.0, 1.0, 2.0, 2.0, 0.0, 0.0, 0.0), strict=True))
        assert (report.makespan, report.throughput, report.ttft.mean, report.queueing.mean) == (9.0, 10 / 9, 9.0, 0.0)
        assert report.depth == 1.0
        assert report.bubble_ratio(report.ranks[1]) == pytest.approx(2 / 9)
        assert [use.kv_tokens for use in report.ranks] == [10, 10]
        assert [use.needed for use in report.ranks] == [5.0, 9.0]
        assert report.depth_at_last == 1

    def test_one_chunk_at_a_time_starves_when_the_last_has_entered(self) -> None:
        # rank 0   0 [C0 s0] 1   2 [C0 s2] 3 [C1 s0] 4   5 [C1 s2] 6
        # rank 1             1 [C0] 2                4 [C1] 5
        report = judged(shape([0, 1, 0], [[Part(0, 0, 1)], [Part(1, 0, 1)]], [0.0, 0.0]), costs([1] * 6, [0, 0]), 1)
        first, second = map(spent, report.ranks)
        assert (first["imbalance"], first["starved"], first["held"]) == (1.0, 1.0, 0.0)
        assert (second["imbalance"], second["starved"]) == (2.0, 2.0)
        assert report.queueing == Distribution.of([0.0, 3.0])

    def test_a_limit_holds_what_waits(self) -> None:
        # rank 0 may let C1 in when rank 1 has run C0
        schedule, order = shape([0, 1], [[Part(0, 0, 1)], [Part(0, 1, 1)]]), Order(((0, 2), (1, 3)))
        run = Timeline([0.0, 1.0, 3.0, 4.0], [1.0, 3.0, 4.0, 6.0], [0.0, 1.0, 0.0, 4.0])
        first, second = map(spent, serving_report(schedule, order, run, costs([1, 2, 1, 2], [0, 0])).ranks)
        assert (first["held"], first["starved"], first["imbalance"]) == (2.0, 2.0, 0.0)
        assert (second["held"], second["starved"], second["imbalance"]) == (0.0, 1.0, 1.0)

    def test_nobody_is_there(self) -> None:
        report = judged(shape([0, 1], [[Part(0, 0, 1)], [Part(1, 0, 1)]], [1.0, 8.0]), costs([1, 2, 1, 2], [0, 0]))
        # 1 [C0] 2 .. 4, nobody from 4 to 8, 8 [C1] 9 .. 11
        first, second = map(spent, report.ranks)
        assert (report.makespan, first["empty"], first["starved"]) == (10.0, 4.0, 4.0)
        assert (second["empty"], second["starved"], second["compute"]) == (4.0, 2.0, 4.0)
        assert report.ttft == Distribution.of([3.0, 3.0])
        assert report.depth == 0.6

    def test_goodput_counts_those_in_time(self) -> None:
        schedule = shape([0], [[Part(0, 0, 1)], [Part(1, 0, 1)], [Part(2, 0, 1)]], [0.0] * 3)
        report = judged(schedule, costs([2, 2, 4], [0, 0, 0]), target=4.0)
        assert report.ttft == Distribution.of([2.0, 4.0, 8.0])
        assert report.goodput == 2 / 8
        assert judged(schedule, costs([2, 2, 4], [0, 0, 0])).goodput is None

    def test_in_time_is_what_a_request_itself_says(self) -> None:
        schedule = shape([0], [[Part(0, 0, 1)], [Part(1, 0, 1)], [Part(2, 0, 1)]], [0.0] * 3)
        first, second, third = schedule.requests  # whose tokens come at 2, 4 and 8 s
        hurried, patient = replace(first, extra={"ttft_target": 1.5}), replace(third, extra={"ttft_target": 8})
        asked = replace(schedule, requests=(hurried, second, patient))
        assert judged(asked, costs([2, 2, 4], [0, 0, 0]), target=9.0).goodput == 2 / 8
        assert judged(asked, costs([2, 2, 4], [0, 0, 0]), target=1.0).goodput == 1 / 8


def by_ticks(schedule: Schedule, order: Order, run: Timeline, op_costs: OpCosts, rank: int) -> dict[str, float]:
    """What a rank does in every tick of the clock, asked afresh each time."""
    stages = len(schedule.stages)

    def waits(request: int, now: float) -> bool:
        mine = [c for c, chunk in enumerate(schedule.chunks) if any(part.request == request for part in chunk.parts)]
        return schedule.requests[request].arrival < now < run.starts[mine[-1] * stages]

    def is_there(request: int, now: float) -> bool:
        mine = [c for c, chunk in enumerate(schedule.chunks) if any(part.request == request for part in chunk.parts)]
        return schedule.requests[request].arrival < now < run.ends[mine[-1] * stages + stages - 1]

    found = dict.fromkeys(CAUSES, 0.0)
    start = min(request.arrival for request in schedule.requests)
    everybody = range(len(schedule.requests))
    for number in range(round((run.finish - start) / TICK)):
        now = start + (number + 0.5) * TICK
        following = next((op for op in order.ranks[rank] if run.ends[op] > now), None)
        if following is not None and run.starts[following] < now:
            found["compute"] += TICK
        elif not any(is_there(request, now) for request in everybody):
            found["empty"] += TICK
        elif (
            following is not None
            and following % stages
            and schedule.stage_ranks[following % stages - 1] != rank
            and run.ends[following - 1] < now < run.arrivals[following]
        ):
            found["transfer"] += TICK
        elif not any(waits(request, now) for request in everybody):
            found["starved"] += TICK
        elif following is not None and following % stages == 0:
            found["held"] += TICK
        else:
            found["imbalance"] += TICK
    found["collective"] = sum(op_costs.collective[op] for op in order.ranks[rank])
    found["compute"] -= found["collective"]
    return found


@given(st.integers(0, 2**32), st.sampled_from([None, 1, 2]))
def test_a_walk_by_ticks_finds_the_same(seed: int, in_flight: int | None) -> None:
    rng = Random(seed)
    schedule = random_shape(rng)
    op_costs = random_costs(rng, schedule)
    if schedule.stage_ranks[0] != 0:
        in_flight = None  # only rank 0 can count
    order, _ = list_schedule(schedule, op_costs, Admission(in_flight).gates(schedule))
    run = timeline(schedule, op_costs, order)
    report = serving_report(schedule, order, run, op_costs)
    for use in report.ranks:
        assert spent(use) == pytest.approx(by_ticks(schedule, order, run, op_costs, use.rank))
        assert sum(spent(use).values()) == pytest.approx(report.makespan)
        assert use.bubble == pytest.approx(report.makespan - use.compute - use.collective - use.transfer)
