"""The parts of the tuner: prices and slopes, orders, rounding, bounds, the solver, worlds."""

import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.analysis.bounds import lower_bound
from vppc.analysis.order_timeline import timeline
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.errors import InputError
from vppc.ir.placement import stage_ranks
from vppc.ir.schedule import Chunk, Model, Order, Part, Request, Schedule
from vppc.passes.admission import Admission
from vppc.passes.layout import Layout
from vppc.passes.list_schedule import list_schedule
from vppc.passes.planned import PlannedChunks, PlannedOrder
from vppc.passes.strategies import Options
from vppc.tuning.bounds import best_possible
from vppc.tuning.case import Admit, Case
from vppc.tuning.descent import nearest
from vppc.tuning.exact import best_order
from vppc.tuning.prices import Growth, Prices
from vppc.tuning.robust import World, robustness, worlds
from vppc.tuning.rounding import whole, whole_sizes, whole_stages
from vppc.tuning.wander import drop_smallest, one_less, one_more, shift_layers, swap_layers, wander
from vppc.tuning.wiring import Goal, Wiring
from vppc.tuning.workload import Limits, Workload

DENSE = CostModel((LayerCost(12, 0.002, 5e-7, 5e-11, 4e-8),), transfer=Linear(0.0005, 7e-8), name="dense")
MIXED = CostModel(
    (
        LayerCost(3, 0.001, 4e-7, 6e-11, 3e-8),
        LayerCost(9, 0.002, 5e-7, 2e-10, 4e-8, 1e-11, 2048, 1e-3, 2e-7),
    ),
    embed=Linear(0.01, 1e-7),
    head=Linear(0.02, 0.001),
    transfer=Linear(0.0005, 7e-8),
    launch=0.003,
    name="mixed",
)
COSTS = {"dense": DENSE, "mixed": MIXED}
RANDOMS = st.randoms(use_true_random=False)


def random_case(random: Random, cost: CostModel, share: float = 0.0) -> tuple[Case, list[int], list[int]]:
    """A case with whole sizes and layers: one to three prompts, some with a cached prefix, some in one chunk."""
    pp = random.choice([2, 3])
    placement, vp = random.choice([("straight", 1), ("v", 2), ("loop", 2), ("zigzag", 3)])
    requests = []
    for index in range(random.randint(1, 3)):
        cached = random.choice([0, 100])
        requests.append(Request(f"r{index}", cached + random.randint(500, 9000), cached))
    workload = Workload.of(requests, Limits(4096, 64, 64), budget=random.choice([0, 4096]))
    cutting = workload.cut(random.choice([700, 1500, 4000]))
    case = Case(Prices.of(cost), cutting, placement, pp, vp, share)
    equal: list[float] = []
    for run, pieces in zip(workload.runs, cutting.pieces, strict=True):
        equal += [run.tokens / pieces] * pieces
    sizes = list(whole_sizes(cutting, [size * random.uniform(0.8, 1.2) for size in equal]))
    weights = [1.0 + random.random() for _ in range(pp * vp)]
    counts = whole([12 * w / sum(weights) for w in weights], [1] * len(weights), [12] * len(weights), 12)
    return case, sizes, counts


def schedule_of(case: Case, sizes: list[int], counts: list[int]) -> Schedule:
    """The same as a schedule with chunks and stages."""
    cuts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    requests = case.cutting.workload.requests
    start = Schedule("tuned", Model("m", 12), case.pp, 1, requests=requests)
    layout = Layout(case.placement, case.vp, None, tuple(pairwise(cuts)))
    return layout(PlannedChunks(case.cutting.chunks(sizes))(start))


@pytest.mark.parametrize("cost", COSTS.values(), ids=list(COSTS))
@given(random=RANDOMS)
@settings(max_examples=40, deadline=None)
def test_a_quote_is_what_the_cost_model_says(cost: CostModel, random: Random) -> None:
    case, sizes, counts = random_case(random, cost)
    quote = case.quote(sizes, counts)
    real = OpCosts.of(schedule_of(case, sizes, counts), cost)
    assert quote.seconds == pytest.approx(real.seconds)
    assert quote.transfers == pytest.approx(real.transfer)


@pytest.mark.parametrize("kind", [layer for cost in COSTS.values() for layer in cost.layers])
def test_slopes_of_a_layer_are_differences_of_whole_tokens(kind: LayerCost) -> None:
    growth = Growth.of(kind)
    for x in (0, 1, 100, 2046, 5000):
        assert growth.slope(x) == pytest.approx(growth.upto(x + 1) - growth.upto(x), rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("cost", COSTS.values(), ids=list(COSTS))
@given(random=RANDOMS)
@settings(max_examples=15, deadline=None)
def test_slopes_are_those_of_the_smoothed_goal(cost: CostModel, share: float, random: Random) -> None:
    case, whole_tokens, layers = random_case(random, cost, share)
    sizes, counts = [float(size) for size in whole_tokens], [float(count) for count in layers]
    counts[0] += 0.3  # away from the whole layers, where the kind of layer on the edge changes
    counts[-1] -= 0.3
    order = case.listed(case.quote(sizes, counts), Admit(4))
    wiring = case.wired(order)

    def smooth(sizes: list[float], counts: list[float]) -> float:
        quote = case.quote(sizes, counts)
        return wiring.slopes(quote.seconds, quote.transfers, 0.01)[0]

    quote = case.quote(sizes, counts)
    _, by_op, by_transfer = wiring.slopes(quote.seconds, quote.transfers, 0.01)
    by_size = case.token_slopes(sizes, quote, by_op, by_transfer)
    for first, last in case.cutting.movable:  # from one chunk to another of the same prompt
        a, b = random.sample(range(first, last), 2)
        more, less = sizes.copy(), sizes.copy()
        more[a], more[b] = more[a] + 2.0, more[b] - 2.0
        less[a], less[b] = less[a] - 2.0, less[b] + 2.0
        measured = (smooth(more, counts) - smooth(less, counts)) / 4.0
        assert measured == pytest.approx(by_size[a] - by_size[b], rel=0.05, abs=2e-8)
    by_count = case.layer_slopes(counts, quote, by_op)
    more, less = counts.copy(), counts.copy()
    more[0], more[-1] = more[0] + 1e-3, more[-1] - 1e-3
    less[0], less[-1] = less[0] - 1e-3, less[-1] + 1e-3
    measured = (smooth(sizes, more) - smooth(sizes, less)) / 2e-3
    assert measured == pytest.approx(by_count[0] - by_count[-1], rel=0.02, abs=1e-5)


@given(random=RANDOMS)
@settings(max_examples=40, deadline=None)
def test_the_network_of_an_order_keeps_the_time_of_its_timeline(random: Random) -> None:
    case, sizes, counts = random_case(random, MIXED)
    quote, schedule = case.quote(sizes, counts), schedule_of(case, sizes, counts)
    for admit in (Admit(1), Admit(3), Admit(99, prompts_first=True)):
        order = case.listed(quote, admit)
        real = timeline(schedule, OpCosts.of(schedule, MIXED), order)
        ends = case.wired(order).ends(quote.seconds, quote.transfers)[: len(real.ends)]
        assert ends == pytest.approx(real.ends)
        assert PlannedOrder(order)(schedule).order == order


def test_one_prompt_is_dispatched_as_the_list_schedule_does() -> None:
    workload = Workload.of([Request("r", 20000)], Limits(2048, 64, 64))
    case = Case(Prices.of(DENSE), workload.cut(1000), "v", 3, 2)
    sizes, counts = [1000] * 20, [2] * 6
    schedule = schedule_of(case, sizes, counts)
    costs = OpCosts.of(schedule, DENSE)
    listed, finish = list_schedule(schedule, costs, Admission(5).gates(schedule))
    mine = case.listed(case.quote(sizes, counts), Admit(5))
    assert mine == listed
    assert case.at(sizes, counts, mine).value == pytest.approx(finish)


@given(random=RANDOMS)
@settings(max_examples=30, deadline=None)
def test_resequencing_never_loses(random: Random) -> None:
    case, sizes, counts = random_case(random, DENSE)
    start = case.at(sizes, counts, case.listed(case.quote(sizes, counts), Admit(1)))
    better = case.resequenced(start, 3)
    assert better.value <= start.value
    assert better.value == pytest.approx(case.at(sizes, counts, better.order).value)


@given(random=RANDOMS)
@settings(max_examples=30, deadline=None)
def test_leaps_keep_tokens_and_layers(random: Random) -> None:
    case, sizes, counts = random_case(random, MIXED)
    point = case.start(sizes, counts, [Admit(3)])
    for leap in (one_more, one_less, drop_smallest, shift_layers, swap_layers):
        there = leap(case, point, random)
        if there is None:
            continue
        onto, anew, layers = there
        for first, last in onto.cutting.movable:
            run = onto.cutting.workload.runs[onto.cutting.run_of[first]]
            assert sum(anew[first:last]) == pytest.approx(run.tokens)
            assert all(64 - 1e-6 <= size <= 4096 + 1e-6 for size in anew[first:last])
        assert sum(layers) == 12
        assert min(layers) >= 1
        if leap is shift_layers:
            for stages in case.rank_stages:
                assert sum(layers[stage] for stage in stages) == sum(counts[stage] for stage in stages)


def test_no_stage_leaps_to_no_layer() -> None:
    cutting = Workload.of([Request("r", 4000)], Limits(4096, 64, 64)).cut(1000)
    case = Case(Prices.of(DENSE), cutting, "v", 6, 2, 0.0)
    single = case.start([1000] * 4, [1] * 12, [Admit(3)])
    assert [leap(case, single, Random(0)) for leap in (shift_layers, swap_layers)] == [None, None]


@given(random=RANDOMS)
@settings(max_examples=5, deadline=None)
def test_wandering_never_loses(random: Random) -> None:
    case, sizes, counts = random_case(random, DENSE)
    start = case.start(sizes, counts, [Admit(3)])
    _, best = wander(case, start, [Admit(3)], 20_000, layers=True)
    assert best.value <= start.value


def test_an_order_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        Wiring.of(Order(((1, 0), ())), (0, 0), (0.0,), Goal(0.0, ()))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=12), st.integers(0, 5), st.integers(6, 40), st.floats(0, 1))
def test_nearest_numbers_keep_limits_total_and_order(values: list[float], least: int, most: int, part: float) -> None:
    total = len(values) * (least + part * (most - least))
    moved = nearest(values, least, most, total)
    assert sum(moved) == pytest.approx(total, abs=1e-5)
    assert all(least <= m <= most for m in moved)
    pairs = sorted(zip(values, moved, strict=True))
    assert all(a[1] <= b[1] + 1e-9 for a, b in pairwise(pairs))


def test_what_is_eased_moves_more() -> None:
    """Three too many of ten, one of them at a limit: the rest goes down in proportion to its ease."""
    assert nearest([1.0, 4.0, 5.0], 1.0, 9.0, 7.0, [2.0, 2.0, 1.0]) == pytest.approx([1.0, 2.0, 4.0])


@given(RANDOMS)
@settings(max_examples=50, deadline=None)
def test_whole_sizes_are_aligned_within_limits_and_complete(random: Random) -> None:
    limits = Limits(random.choice([512, 1000]), random.choice([64, 100]), random.choice([1, 16, 64]))
    tokens = random.randint(1, 20000)
    workload = Workload.of([Request("r", tokens)], limits)
    cutting = workload.cut(random.randint(50, 2000))
    count = len(cutting)
    sizes = whole_sizes(cutting, nearest([random.random() * 900 for _ in range(count)], 1, 10**6, tokens))
    assert sum(sizes) == tokens
    assert all(0 < size <= limits.max_chunk for size in sizes)
    assert all(size >= limits.min_chunk for size in sizes) or count == 1
    assert all(size % limits.align == 0 for size in sizes[:-1])


def test_whole_layers_keep_the_totals_of_ranks() -> None:
    ranks = ((0, 3), (1, 2))
    assert whole_stages((2.7, 2.9, 3.1, 3.3), ranks) == (3.0, 3.0, 3.0, 3.0)
    assert whole_stages((2.4, 1.0, 5.0, 3.6), ranks) == (2.0, 1.0, 5.0, 4.0)


@given(random=RANDOMS)
@settings(max_examples=60, deadline=None)
def test_no_schedule_is_quicker_than_the_bound_of_all_chunkings(random: Random) -> None:
    cost = random.choice(list(COSTS.values()))
    case, sizes, counts = random_case(random, cost)
    cuts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    bound = best_possible(case.prices, case.cutting.workload, case.ranks, tuple(pairwise(cuts)))
    point = case.start(sizes, counts, [Admit(bound) for bound in (1, 2, 4, 8, 99)])
    assert bound <= point.value * (1 + 1e-9)
    schedule = schedule_of(case, sizes, counts)
    assert lower_bound(schedule, OpCosts.of(schedule, cost)).seconds <= point.value * (1 + 1e-9)


def test_prompts_that_fit_into_a_chunk_need_not_have_one_each() -> None:
    """Two ranks, 3 s a chunk and 1 s a token in a layer. Four prompts of 2 tokens share a chunk of 8: 3 + 8 s a rank.

    By the bound the first rank runs that, and then the second at least a token: 3 + 1 s. A fifth prompt needs another
    chunk, and one of 9 tokens two of its own.
    """
    cost = CostModel((LayerCost(2, fixed=3.0, per_token=1.0),))

    def bound(*prompts: int) -> float:
        workload = Workload.of([Request(f"r{index}", tokens) for index, tokens in enumerate(prompts)], Limits(8, 1, 1))
        return best_possible(Prices.of(cost), workload, (0, 1), ((0, 1), (1, 2)))

    assert bound(2, 2, 2, 2) == 11 + 4
    assert bound(2, 2, 2, 2, 2) == 6 + 10 + 4
    assert bound(2, 9, 2) == 9 + 13 + 4


def test_chunks_that_are_allowed_may_not_add_up_to_a_prompt() -> None:
    requests = [Request("a", 80), Request("b", 110), Request("c", 180)]
    assert Workload.of(requests, Limits(100, 90, 1)).uncut == Workload.of(requests, Limits(100, 90, 1)).runs[1]
    assert Workload.of(requests, Limits(110, 90, 1)).uncut is None
    assert Workload.of(requests, Limits(100, 50, 1)).uncut is None


@given(RANDOMS)
@settings(max_examples=100, deadline=None)
def test_sizes_add_up_wherever_they_can(random: Random) -> None:
    """By trying all numbers of chunks: so many units each at least, and at most, with what is left in the last."""
    align = random.choice([1, 3, 16])
    least = random.randint(1, 60)
    limits = Limits(least + align + random.randint(0, 60), least, align)
    tokens = random.randint(1, 400)
    workload = Workload.of([Request("r", tokens)], limits)
    possible = tokens <= limits.most or any(
        count * limits.least <= tokens <= count * limits.most for count in range(2, 401)
    )
    assert (workload.uncut is None) == possible
    if possible:
        cutting = workload.cut(random.randint(1, 200))
        assert sum(whole_sizes(cutting, [tokens / len(cutting)] * len(cutting))) == tokens


def test_the_bound_of_all_chunkings_by_hand() -> None:
    """Two ranks, a second a token and layer, chunks of 4 at most, 8 tokens: a token each way, and 8 of work."""
    cost = CostModel((LayerCost(2, per_token=1.0),), transfer=Linear(0.5))
    workload = Workload.of([Request("r", 8)], Limits(4, 1, 1))
    assert best_possible(Prices.of(cost), workload, (0, 1), ((0, 1), (1, 2))) == 1 + 0.5 + 8
    fixed = CostModel((LayerCost(2, fixed=3.0, per_token=1.0),))
    # two chunks of 4: 7 + 7 on the first rank, and the last one 7 more on the second; a third would cost 3 more
    assert best_possible(Prices.of(fixed), workload, (0, 1), ((0, 1), (1, 2))) == pytest.approx(21, rel=1e-3)


@pytest.mark.parametrize("fixed", [0.0, 1.0, 3.0])
def test_the_bound_of_all_chunkings_is_near_the_best_of_them(fixed: float) -> None:
    """Two ranks of a layer, 8 tokens in chunks of 4 at most: all 108 ways to cut them, run one after another."""
    cost = CostModel((LayerCost(2, fixed=fixed, per_token=1.0),))
    workload = Workload.of([Request("r", 8)], Limits(4, 1, 1))
    bound = best_possible(Prices.of(cost), workload, (0, 1), ((0, 1), (1, 2)))
    makespans = []
    for many in range(2, 9):
        for sizes in product(range(1, 5), repeat=many):
            if sum(sizes) == 8:
                first = second = 0.0
                for size in sizes:
                    first += size + fixed
                    second = max(first, second) + size + fixed
                makespans.append(second)
    assert len(makespans) == 108
    assert 0.97 * min(makespans) < bound <= min(makespans)


def test_a_chunk_that_cannot_be_so_small_may_end_later() -> None:
    """Three ranks, of which the last has two layers: six chunks of a token take as long as the ranks' own bound.

    Going back from the end with the longest chunks, five leave less than a token for the first, which (2) has no room
    for there: the fifth last has to end later than the longest four would let it.
    """
    first = LayerCost(1, 0.5, 1.0, 0.05, 0.1, 0.2, collective_per_token=0.1)
    cost = CostModel((first, LayerCost(3, 0.0, 0.1, 0.5, indexer_per_pair=0.2)))
    workload = Workload.of([Request("r", 8, 2)], Limits(3, 1, 1))
    case = Case(Prices.of(cost), workload.cut_into([6]), "straight", 3, 1)
    point = case.start([1.0] * 6, [1.0, 1.0, 2.0], [Admit(99)])
    bound = best_possible(case.prices, workload, case.ranks, ((0, 1), (1, 2), (2, 4)))
    assert point.value == pytest.approx(52.15)
    assert 0.99 * point.value < bound <= point.value * (1 + 1e-9)


def test_the_solver_proves_an_order_and_finds_a_better_one() -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    schedule = compile_schedule(
        (Request("r", 6000),), Model("m", 12), DENSE, Options(strategy="vpp-async", pp=2, chunk_size=1500)
    )
    costs = OpCosts.of(schedule, DENSE)
    longest = 2.0 * sum(costs.seconds)
    exact = best_order(schedule, costs, longest, 20.0)
    assert exact.bound <= exact.makespan
    assert exact.makespan == pytest.approx(exact.bound, rel=1e-3)
    _, listed = list_schedule(schedule, costs, Admission(3).gates(schedule))
    assert exact.makespan <= listed * (1 + 1e-3)


def test_the_solver_lets_no_more_chunks_in_than_the_gates() -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    options = Options(strategy="vpp-async", pp=2, chunk_size=1500)
    schedule = compile_schedule((Request("r", 6000),), Model("m", 12), DENSE, options)
    costs = OpCosts.of(schedule, DENSE)
    free, one_by_one = (
        best_order(schedule, costs, 2.0 * sum(costs.seconds), 20.0, Admission(ahead).gates(schedule))
        for ahead in (None, 1)
    )
    assert one_by_one.order.ranks[0] == tuple(4 * chunk + stage for chunk in range(4) for stage in (0, 3))
    assert free.makespan < one_by_one.bound <= one_by_one.makespan


SOLVE_INTERRUPTED = """
import os, signal, threading
from ortools.sat.python.cp_model import CpSolver, CpSolverSolutionCallback
from tests.test_tuning_parts import DENSE, Model, OpCosts, Options, Request, best_order, compile_schedule

def solve(pp, tokens):
    requests, options = (Request("r", tokens),), Options(strategy="vpp-async", pp=pp, chunk_size=1500)
    schedule = compile_schedule(requests, Model("m", 12), DENSE, options)
    costs = OpCosts.of(schedule, DENSE)
    best_order(schedule, costs, 2 * sum(costs.seconds), 600)

solve(2, 3000)
try:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(60)
except KeyboardInterrupt:
    print("after")

class Interrupted(CpSolverSolutionCallback):
    def on_solution_callback(self):
        os.kill(os.getpid(), signal.SIGINT)

solved = CpSolver.solve
CpSolver.solve = lambda self, model: solved(self, model, Interrupted())
try:
    solve(4, 90_000)
except KeyboardInterrupt:
    print("within")
"""


def test_the_solver_leaves_ctrl_c_to_the_program() -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    root = Path(__file__).resolve().parents[1]
    python = [sys.executable, "-c", SOLVE_INTERRUPTED]
    ran = subprocess.run(python, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.stdout.split(), ran.returncode) == (["after", "within"], 0), ran.stderr


def test_worlds_change_what_they_say() -> None:
    schedule = compile_schedule(
        (Request("r", 6000),), Model("m", 12), DENSE, Options(strategy="vpp-async", pp=2, chunk_size=1500)
    )
    same = robustness(schedule, DENSE, [World("none")])
    assert same.mean == same.expected
    assert same.spread == 0.0
    off = robustness(schedule, DENSE, worlds(2))
    seconds = {world.name: makespan for world, makespan in off.worlds}
    assert seconds["flatter"] < off.expected < seconds["steeper"]
    assert off.expected < seconds["rank 0 slower"] <= 1.05 * off.expected * (1 + 1e-9)
    assert off.expected < seconds["interference"]
    assert off.worst[1] == max(seconds.values())
    assert len({seconds[f"noise {seed}"] for seed in range(4)}) == 4
    assert robustness(schedule, DENSE, worlds(2)) == off


def test_limits_that_allow_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="no multiple of 64 lies between 65 and 100"):
        Limits(100, 65, 64)
    with pytest.raises(InputError, match="0 tokens"):
        Limits(100, 1, 0)


def test_short_prompts_share_a_chunk_under_a_budget() -> None:
    requests = [Request("a", 7), Request("b", 90), Request("c", 5000), Request("d", 60), Request("e", 3, 1, 1.0)]
    workload = Workload.of(requests, Limits(4096, 64, 64), budget=200)
    assert [run.requests for run in workload.runs] == [(0, 1), (2,), (3,), (4,)]
    cutting = workload.cut_into([3, 2, 1, 1])
    assert cutting.pieces == (1, 2, 1, 1)
    chunks = cutting.chunks([97, 3000, 2000, 60, 2])
    assert chunks[0] == Chunk((Part(0, 0, 7), Part(1, 0, 90)))
    assert chunks[2] == Chunk((Part(2, 3000, 2000),))
    assert chunks[4] == Chunk((Part(4, 1, 2),))


def test_a_planned_order_must_be_complete() -> None:
    workload = Workload.of([Request("r", 100)], Limits())
    case = Case(Prices.of(DENSE), workload.cut(100), "v", 2, 2)
    schedule = schedule_of(case, [100], [3, 3, 3, 3])
    assert stage_ranks("v", 2, 2) == schedule.stage_ranks
    for of_rank_1 in [((1,),), ()]:
        with pytest.raises(InputError, match="every operation of rank 1 once"):
            PlannedOrder(Order(((0, 3), *of_rank_1)))(schedule)
