"""Every strategy against what it must give: closed forms, the paper's figures, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import compiled, deepseek, paper, plans, price
from vppc.analysis.order_timeline import timeline
from vppc.analysis.timing import simulate
from vppc.compiler import paper_cost
from vppc.costs.document import parse_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.errors import InputError
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.rules import check
from vppc.ir.schedule import Model, Order, Request, Schedule
from vppc.passes.admission import Admission
from vppc.passes.async_reorder import AsyncReorder
from vppc.passes.list_schedule import list_schedule
from vppc.passes.order import StepOrder
from vppc.passes.strategies import Options, passes

N = (1, 2, 3, 5, 8, 16, 33)


@pytest.mark.parametrize("n", N)
@pytest.mark.parametrize("strategy", ["vpp", "vpp-async", "vpp-packed"])
def test_without_transfers_the_v_idles_once_round(strategy: str, n: int) -> None:
    report = price(paper(strategy, n, t=2.0))
    assert report.makespan == (n + 1) ** 2 * 2.0
    for rank in report.ranks:
        assert rank.launch_stall + rank.free == (n + 1) * 2.0
        assert rank.bubble_ratio == pytest.approx(1 / (n + 1))


@pytest.mark.parametrize("n", N)
def test_a_straight_pipeline_idles_twice_as_long_as_its_last_chunk_takes(n: int) -> None:
    report = price(paper("cpp", n, t=3.0))
    for rank in report.ranks:
        assert rank.launch_stall + rank.free == 2 * n * 3.0


@pytest.mark.parametrize("n", N)
@pytest.mark.parametrize("x", [1.0, 4.0])
def test_blocking_transfers_cost_one_exchange_a_step(n: int, x: float) -> None:
    assert price(paper("vpp", n, t=10.0, transfer=x)).makespan == (n + 1) ** 2 * 10.0 + (n + 1) * x


@pytest.mark.parametrize(("n", "makespan"), [(5, 362), (16, 2892), (22, 5292), (64, 42252)])
def test_overlapped_transfers_show_only_at_fill_and_drain(n: int, makespan: int) -> None:
    """The proven optimum: a constraint solver finds nothing shorter."""
    assert price(paper("vpp-async", n, t=10.0, transfer=1.0)).makespan == makespan


def test_three_packed_requests_keep_rank_0_busy() -> None:
    assert price(paper("vpp-packed", (8, 8, 8))).ranks[0].bubble_ratio < 0.05


def test_the_ablation_of_the_paper() -> None:
    """256K in 8 chunks, three requests: rank 0's bubble is 11.0, 8.3 and 2.4% in the paper."""
    bubbles = {
        strategy: price(deepseek(strategy, (262144,) * 3, 32768)).ranks[0].bubble_ratio
        for strategy in ("vpp", "vpp-async", "vpp-packed")
    }
    assert bubbles["vpp"] == pytest.approx(0.110, abs=0.0005)
    assert bubbles["vpp-async"] == pytest.approx(0.086, abs=0.0005)
    assert bubbles["vpp-packed"] <= 0.03


@pytest.mark.parametrize(("in_flight", "plain"), [(4, 0.043), (5, 0.021), (6, 0.010)])
def test_packing_gains_with_every_chunk_in_flight(in_flight: int, plain: float) -> None:
    """``plain`` is the bubble of list scheduling that always lets the next prompt in first."""
    plan = deepseek("vpp-packed", (262144,) * 3, 32768, max_in_flight=in_flight)
    assert price(plan).ranks[0].bubble_ratio <= plain


def test_packing_delays_the_prompts_before_by_little() -> None:
    """Letting the next prompt in whenever it can delays the first tokens by 12.6% and 2.0%."""
    alone = price(deepseek("vpp-async", (262144,) * 3, 32768)).ttft
    packed = price(deepseek("vpp-packed", (262144,) * 3, 32768)).ttft
    assert all(after <= before * 1.05 for after, before in zip(packed, alone, strict=True))


def test_at_512k_the_bubble_is_gone_and_24k_is_best() -> None:
    reports = {size: price(deepseek("vpp-async", (524288,), size * 1024)) for size in (8, 16, 24, 32)}
    assert reports[24].ranks[0].bubble_ratio < 0.005
    assert min(reports, key=lambda size: reports[size].makespan) == 24


@pytest.mark.parametrize("pp", [4, 8, 16])
@pytest.mark.parametrize("times", [8, 12])
def test_deep_pipelines_come_within_a_percent_of_the_bound(pp: int, times: int) -> None:
    report = price(paper("vpp-async", times * pp, pp))
    assert report.gap < 0.01
    assert len({rank.compute for rank in report.ranks}) == 1


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize("x", [0.0, 1.0])
def test_the_blocking_v_is_not_serial_on_deep_pipelines(pp: int, x: float) -> None:
    """It stays within a percent of the bound and an exchange a step; serial would be pp times as long."""
    n = 8 * pp
    bound = price(paper("vpp", n, pp)).bound.seconds
    assert price(paper("vpp", n, pp, transfer=x)).makespan <= bound * 1.012 + (n + 2 * pp - 2) * x


@pytest.mark.parametrize("strategy", ["vpp", "vpp-async"])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_in_the_steady_state_all_ranks_work_alike(strategy: str, pp: int) -> None:
    """Between two ends of the last stage, every rank has computed for the same time."""
    plan = paper(strategy, 10 * pp, pp)
    timing = simulate(plan, OpCosts.of(plan, parse_cost(plan.extra["cost"])))
    last = len(plan.stages) - 1
    exits = {
        row[1]: timing.ends[0][index]
        for index, row in enumerate(plan.programs[0].rows())
        if row[0] == FORWARD and row[2] == last
    }
    begin, end = exits[4 * pp], exits[7 * pp]
    work = [
        sum(
            max(0.0, min(e, end) - max(s, begin))
            for (op, *_), s, e in zip(program.rows(), starts, ends, strict=True)
            if op == FORWARD
        )
        for program, starts, ends in zip(plan.programs, timing.starts, timing.ends, strict=True)
    ]
    assert min(work) >= (end - begin) * 0.999


@given(plans())
@settings(max_examples=150)
def test_whatever_is_asked_is_proven_or_refused_with_a_reason(plan: Schedule | InputError) -> None:
    if isinstance(plan, InputError):
        assert plan.problem and plan.remedy
    else:
        assert check(plan) == ()
        assert price(plan).gap >= -1e-9
        assert parse_schedule("".join(schedule_text(plan))).programs == plan.programs


prompts = st.lists(st.integers(1, 30), min_size=2, max_size=5).map(tuple)


@given(prompts, st.integers(2, 4), st.integers(1, 6), st.sampled_from([0.0, 0.5, 7.0]))
@settings(max_examples=60)
def test_packing_is_never_worse_than_not_packing(tokens: tuple[int, ...], pp: int, size: int, transfer: float) -> None:
    cost = CostModel((LayerCost(2 * pp, fixed=3.0, per_token=1.0, per_pair=0.25),), transfer=Linear(transfer))
    spans = [
        price(compiled(strategy, tokens, pp, cost, chunk_size=size)).makespan
        for strategy in ("vpp-packed", "vpp-async", "vpp")
    ]
    assert spans[0] <= spans[1] * (1 + 1e-9)
    assert spans[1] <= spans[2] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("placement", "prompts", "seconds", "orders", "finish"),
    [
        # at 2.0 rank 1 folds: chunk 0 goes on, and nobody waits for chunk 1 meanwhile
        ("v", (1, 1), (1.0, 1.0, 1.0, 1.0), ((0, 4, 3, 7), (1, 2, 5, 6)), 6.0),
        # at 5.0 rank 1 feeds rank 0, which has work until 6.0: chunk 2 goes before stage 3 of chunk 0
        ("loop", (2, 1), (1.0, 2.0, 1.0, 1.0), ((0, 4, 8, 2, 6, 10), (1, 5, 9, 3, 7, 11)), 10.0),
    ],
)
def test_a_later_prompt_goes_first_only_where_the_next_rank_would_run_dry(
    placement: str,
    prompts: tuple[int, ...],
    seconds: tuple[float, ...],
    orders: tuple[tuple[int, ...], ...],
    finish: float,
) -> None:
    """Worked by hand: chunks of one token, seconds by stage, nothing for transfers, and no limit on what enters."""
    plan = paper("vpp-packed", prompts, placement=placement)
    chunks = len(plan.chunks)
    costs = OpCosts([*seconds] * chunks, [0.0] * len(seconds) * chunks, [0.0] * chunks)
    assert list_schedule(plan, costs, Admission().gates(plan)) == (Order(orders), finish)


@given(plans(strategies=("vpp-async", "vpp-packed"), limited=False))
@settings(max_examples=80)
def test_lowering_keeps_the_timing_of_the_order(plan: Schedule | InputError) -> None:
    """Receives are posted in time and buffers suffice, so programs run as if only data and order mattered."""
    if isinstance(plan, InputError):
        return
    costs = OpCosts.of(plan, parse_cost(plan.extra["cost"]))
    stages = len(plan.stages)
    order = Order(
        tuple(tuple(r[1] * stages + r[2] for r in program.rows() if r[0] == FORWARD) for program in plan.programs)
    )
    assert max(ends[-1] for ends in simulate(plan, costs).ends) == pytest.approx(timeline(plan, costs, order).finish)


@pytest.mark.parametrize(
    ("size", "given", "smallest"),
    [(8192, None, 4096), (32768, None, 4096), (2048, None, 1024), (1, None, 1), (2048, 4096, 4096)],
)
def test_the_smallest_dynamic_chunk_leaves_a_choice(size: int, given: int | None, smallest: int) -> None:
    assert Options(strategy="dcpp", chunk_size=size, min_chunk=given).smallest_chunk == smallest


@pytest.mark.parametrize(
    ("strategy", "pp", "least"),
    [("cpp", 4, 2), ("vpp", 2, 3), ("vpp", 4, 4), ("vpp-async", 4, 2), ("vpp-packed", 2, 5)],
)
def test_a_refusal_of_few_buffers_names_the_least_that_do(strategy: str, pp: int, least: int) -> None:
    cost = CostModel((LayerCost(16, per_token=1.0, per_pair=0.1),), transfer=Linear(0.5, 0.1))
    for buffers in range(1, least):
        with pytest.raises(InputError) as refused:
            compiled(strategy, (40, 30), pp, cost, chunk_size=7, max_buffers=buffers)
        assert refused.value.remedy == f"allow at least {least}, or fewer chunks in flight"
    allowed = compiled(strategy, (40, 30), pp, cost, chunk_size=7, max_buffers=least)
    assert check(allowed) == ()
    assert max(program.buffers for program in allowed.programs) <= least


@pytest.mark.parametrize(("placement", "vp"), [("v", 2), ("zigzag", 4), ("loop", 2)])
def test_stages_of_a_rank_where_nothing_is_said(placement: str, vp: int) -> None:
    cost = CostModel((LayerCost(8, per_token=1.0),))
    assert compiled("vpp", (40,), 2, cost, chunk_size=7, placement=placement).vp == vp


def test_an_order_is_made_where_there_is_none() -> None:
    cost = paper_cost(4, 1.0, 0.5)
    chunking, layout, *_ = passes(Options(strategy="vpp-async", pp=2, chunk_size=1), cost)
    laid = layout(chunking(Schedule("vpp-async", Model("m", 4), 2, 1, requests=(Request("r", 6),))))
    reorder = AsyncReorder(cost)
    assert laid.order is None
    assert reorder(laid).order == reorder(StepOrder(reorder.admission)(laid)).order


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"--strategy: unknown strategy 'gpipe'\n  hint: choose one of cpp, dcpp, "):
        compiled("gpipe", (40,), 2, paper_cost(4, 1.0, 0.0))
