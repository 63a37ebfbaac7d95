"""Plans that stay true: drift between plan and fact, the alarm, costs refitted while serving."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest
from serve_worlds import Server, Serving, cost, slow
from worlds import LIMIT, succeeded

from tests.serving_streams import COST, LAYERS, Stream, header, stream
from vppc.costs.calibration import Calibration, calibrate
from vppc.costs.model import CostModel, LayerCost, OpCosts
from vppc.costs.samples import Measurements
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Request
from vppc.serving import refit as refit_module
from vppc.serving.batching import Limits
from vppc.serving.drift import LEAST, WINDOW, Drift
from vppc.serving.refit import Found, NoFit, Refit

LENGTHS = (40, 7, 100, 64, 12, 3, 80, 33, 25, 90)


def streamed(cancelled: Sequence[str] = (), lengths: Sequence[int] = LENGTHS) -> Stream:
    each = stream("vpp-packed", 2, Limits(chunk_size=16))
    for index, tokens in enumerate(lengths):
        each.compiler.add(Request(f"r{index}", tokens), 0.0)
    each.advance(0.05)
    for name in cancelled:
        each.compiler.cancel(name, 0.05)
    each.close()
    return each


def run(each: Stream, drift: Drift, costs: CostModel) -> int:
    """Tell ``drift`` that the whole stream has run at these costs, rank by rank; how many FORWARDs that are."""
    for segment in each.segments:
        drift.sent(segment)
    seconds = OpCosts.of(each.schedule, costs).seconds
    count = 0
    for program in each.schedule.programs:
        times: list[float] = []
        for op, chunk, stage, *_ in program.rows():
            start = times[-1] if times else 0.0
            forward = op == FORWARD
            count += forward
            times += (start, start + (seconds[chunk * len(each.schedule.stages) + stage] if forward else 0.0))
        half = len(times) // 4 * 2
        drift.ran(program.rank, 0, times[:half])
        drift.ran(program.rank, half // 2, times[half:])
    return count


def times_longer(factor: float) -> CostModel:
    (layer,) = COST.layers
    slower = LayerCost(LAYERS, factor * layer.fixed, factor * layer.per_token, factor * layer.per_pair)
    return CostModel((slower,), head=COST.head, transfer=COST.transfer, name=COST.name)


def test_as_planned_there_is_no_drift_and_no_news() -> None:
    drift = Drift(header("vpp-packed", 2), COST)
    assert drift.value is None
    assert LEAST < run(streamed(), drift, COST) < WINDOW
    assert drift.value == pytest.approx(0.0)
    assert drift.news() == ""


def test_drift_is_told_once_and_again_when_it_is_over() -> None:
    drift = Drift(header("vpp-packed", 2), COST, bound=0.2)
    run(streamed(), drift, times_longer(1.5))
    assert drift.value is not None and 0.4 < drift.value < 0.5  # the head takes what it takes
    assert drift.news().startswith("the last ") and drift.news() == ""
    assert drift.alarmed
    drift.replan(times_longer(1.5))
    assert drift.value is None and not drift.alarmed


def test_costs_are_fitted_when_drift_begins_and_not_when_it_is_over() -> None:
    """What takes 1.5 times as long for a fifth of the time, and then as long as planned."""
    each, notices, found = streamed(lengths=2 * LENGTHS), list[str](), SimpleQueue[Found]()
    drift = Drift(header("vpp-packed", 2), COST)
    refit = Refit(drift, notices.append, found.put)
    for segment in each.segments:
        drift.sent(segment)
    seconds = OpCosts.of(each.schedule, COST).seconds
    for program in each.schedule.programs:
        for index, (op, chunk, stage, *_) in enumerate(program.rows()):
            slow = 1.5 if program.rank == 0 and index < len(program) // 5 else 1.0
            planned = slow * seconds[chunk * len(each.schedule.stages) + stage] if op == FORWARD else 0.0
            drift.ran(program.rank, index, (0.0, planned))
            refit.look()
    [during, after] = notices
    assert re.fullmatch(r"the last \d+ FORWARDs took \d+% longer than planned", during)
    assert re.fullmatch(r"the last \d+ FORWARDs took as long as planned again", after)
    assert isinstance(found.get(timeout=LIMIT), Calibration) and found.empty()


def test_where_no_costs_fit_the_plan_stays() -> None:
    notices: list[str] = []
    refit = Refit(Drift(header("vpp-packed", 2), COST), notices.append, lambda _: None)
    assert refit.take(NoFit("nothing was measured")) is None
    assert notices == ["no costs fit what the ranks take: nothing was measured"]


def test_where_no_costs_fit_they_are_looked_for_again_when_as_much_again_has_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each, notices, found = streamed(lengths=6 * LENGTHS), list[str](), SimpleQueue[Found]()
    drift = Drift(header("vpp-packed", 2), COST)
    refit = Refit(drift, notices.append, found.put)
    at: list[int] = []

    def fit(measured: Measurements, base: CostModel) -> Calibration:
        at.append(drift.measured)
        if len(at) < 3:
            raise InputError("all is noise")
        return calibrate(measured, base=base)

    monkeypatch.setattr(refit_module, "calibrate", fit)
    for segment in each.segments:
        drift.sent(segment)
    seconds = OpCosts.of(each.schedule, times_longer(1.5)).seconds
    for program in each.schedule.programs:
        for index, (op, chunk, stage, *_) in enumerate(program.rows()):
            if op == FORWARD:
                drift.ran(program.rank, index, (0.0, seconds[chunk * len(each.schedule.stages) + stage]))
                before = len(at)
                refit.look()
                if drift.measured in (LEAST, 2 * LEAST, 4 * LEAST):  # it is in a thread
                    refit.take(found.get(timeout=LIMIT))
                    assert len(at) == before + 1
    assert at == [LEAST, 2 * LEAST, 4 * LEAST]
    noise = "no costs fit what the ranks take: all is noise"
    assert notices[1:] == [noise, noise, "costs refitted to what the ranks take"]


def test_costs_are_refitted_to_what_ran() -> None:
    drift = Drift(header("vpp-packed", 2), COST)
    run(streamed(), drift, times_longer(1.5))
    fitted = calibrate(drift.measurements(), base=COST).cost
    (found,), (wanted,) = fitted.layers, times_longer(1.5).layers
    assert found.per_pair == pytest.approx(wanted.per_pair, rel=0.02)
    assert found.per_token == pytest.approx(wanted.per_token, rel=0.1)
    assert fitted.transfer == COST.transfer


def test_cancelled_parts_do_not_count() -> None:
    """What a rank leaves out takes no time and says nothing of costs."""
    each = streamed(cancelled=["r0"])
    assert any(segment.extra.get("cancelled") for segment in each.segments)
    drift = Drift(header("vpp-packed", 2), COST)
    index = [request.id for request in each.schedule.requests].index("r0")
    drift.cancelled(index)
    count = run(each, drift, COST)
    assert drift.value == pytest.approx(0.0)
    skipped = sum(index in {part.request for part in chunk.parts} for chunk in each.schedule.chunks)
    assert len(drift.measurements().forwards) == count - skipped * len(each.schedule.stages)


def test_a_server_replans_to_what_its_ranks_take(tmp_path: Path) -> None:
    """The ranks take twice as long as the plan says, until it says so, too."""
    costs = cost(4, 1e-5)
    lines = [{"id": f"q{index}", "prompt_tokens": 200 + 100 * (index % 7)} for index in range(60)]
    with Serving(tmp_path, 2, "--runner", "timed", target=slow) as serving:
        server = Server(serving, 2, costs, chunk_size=256, bound=0.3)
        served = server.serve(lines)
        succeeded(serving.ended())
    assert len(served.ttfts) == 60
    assert server.notices[0].endswith("% longer than planned")
    assert server.notices[1] == "costs refitted to what the ranks take"
    assert server.drift.cost.layers[0].per_token == pytest.approx(2 * costs.layers[0].per_token, rel=0.25)
    assert server.drift.value is not None and abs(server.drift.value) < 0.3
