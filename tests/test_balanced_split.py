"""Layers shared out by costs: held against all other splits, priced, and against what must come out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import DEEPSEEK, compiled, price
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.partition import Ranges, check_ranges
from vppc.ir.placement import stage_ranks
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.balanced_split import BalancedSplit
from vppc.passes.layout import Layout

GROWING = CostModel((LayerCost(12, fixed=2.0, per_pair=1.0),), transfer=Linear(0.1))
TWO_KINDS = CostModel((LayerCost(3, fixed=1.0, per_pair=0.1), LayerCost(9, fixed=3.0, per_pair=1.0)))
WITH_ENDS = CostModel((LayerCost(12, fixed=2.0, per_pair=1.0),), embed=Linear(4.0), head=Linear(60.0), launch=0.5)


def counts(ranges: Ranges) -> list[int]:
    return [last - first for first, last in ranges]


def split(cost: CostModel, placement: str, pp: int, vp: int, tokens: int = 8, chunk: int = 1) -> Ranges:
    schedule = Schedule("", Model("m", cost.layer_count), pp, vp, requests=(Request("r0", tokens),))
    return BalancedSplit(cost, chunk)(schedule, stage_ranks(placement, pp, vp))


def all_splits(layers: int, stages: int) -> Iterator[Ranges]:
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(pairwise((0, *cuts, layers)))


@pytest.mark.parametrize("cost", [GROWING, TWO_KINDS, WITH_ENDS], ids=["growing", "two-kinds", "ends"])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_no_other_split_of_a_straight_pipeline_is_quicker(cost: CostModel, pp: int) -> None:
    ours = price(compiled("cpp", (8,), pp, cost, chunk_size=1, split="balanced")).makespan
    others = (price(compiled("cpp", (8,), pp, cost, chunk_size=1, ranges=each)).makespan for each in all_splits(12, pp))
    assert ours <= min(others) * (1 + 1e-9)


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_where_chunks_return_the_outer_ranks_have_the_layers_that_are_left_over(pp: int) -> None:
    for layers in range(2 * pp, 5 * pp):
        ranges = split(CostModel((LayerCost(layers, fixed=1.0, per_pair=0.5),)), "v", pp, 2)
        held = [0] * pp
        for rank, number in zip(stage_ranks("v", pp, 2), counts(ranges), strict=True):
            held[rank] += number
        assert held == [layers // pp + (rank < layers % pp) for rank in range(pp)]
        assert max(counts(ranges)) - min(counts(ranges)) <= 1


def test_what_is_done_once_a_rank_counts_as_its_work() -> None:
    """Eight tokens in twelve layers and a head of 16 s are 112 s of work, 56 s a rank: on rank 0 16 of the head."""
    for once in (Linear(16.0), Linear(8.0, 8.0)):
        head = CostModel((LayerCost(12, per_token=1.0),), head=once)
        first, *middle, last = counts(split(head, "v", 2, 2))
        assert (first + last, sum(middle)) == (5, 7)


@pytest.mark.parametrize(("strategy", "pp"), [("cpp", 2), ("cpp", 4), ("cpp", 8), ("vpp-async", 4), ("vpp-async", 8)])
def test_deepseek_is_quicker_than_with_the_engines_splits(strategy: str, pp: int) -> None:
    cost = read_cost(str(DEEPSEEK))
    ours, theirs = (
        price(compiled(strategy, (262144,), pp, cost, chunk_size=8192, split=each)).makespan
        for each in ("balanced", None)
    )
    assert theirs / ours > 1.02


@st.composite
def lines(draw: st.DrawFn) -> tuple[CostModel, str, int, int]:
    seconds = st.floats(0.0, 100.0).map(lambda x: round(x, 2))
    layers = tuple(
        LayerCost(draw(st.integers(1, 9)), draw(seconds), draw(seconds), draw(seconds))
        for _ in range(draw(st.integers(1, 3)))
    )
    cost = CostModel(layers, embed=Linear(draw(seconds)), head=Linear(draw(seconds)), launch=draw(seconds))
    placement, vp = draw(st.sampled_from([("straight", 1), ("v", 2), ("zigzag", 4), ("loop", 2), ("loop", 3)]))
    return cost, placement, draw(st.integers(1, 4)), vp


@settings(max_examples=60, deadline=None)
@given(lines(), st.integers(1, 9), st.integers(1, 4))
def test_any_costs_give_a_split(line: tuple[CostModel, str, int, int], tokens: int, chunk: int) -> None:
    cost, placement, pp, vp = line
    if pp * vp > cost.layer_count:
        with pytest.raises(InputError, match="stages cannot share"):
            split(cost, placement, pp, vp, tokens, chunk)
        return
    ranges = split(cost, placement, pp, vp, tokens, chunk)
    assert check_ranges(ranges, stage_ranks(placement, pp, vp), cost.layer_count) == ranges
    schedule = Schedule("", Model("m", cost.layer_count), pp, vp, requests=(Request("r0", tokens),))
    laid = Layout(placement, vp, BalancedSplit(cost, chunk))(schedule)
    assert tuple(stage.layers for stage in laid.stages) == ranges


def test_without_requests_the_stages_are_equal() -> None:
    schedule = Schedule("", Model("m", 61), 2, 2)
    assert counts(BalancedSplit(read_cost(str(DEEPSEEK)), 8192)(schedule, stage_ranks("v", 2, 2))) == [15, 15, 15, 16]
