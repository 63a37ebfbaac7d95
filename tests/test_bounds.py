from dataclasses import replace
from random import Random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import (
    best_makespan,
    best_set_bound,
    costs,
    one_prompt,
    random_costs,
    random_programs,
    random_shape,
    shape,
)
from vppc.analysis.bounds import LowerBound, longest_paths, lower_bound
from vppc.analysis.breakdown import makespan
from vppc.analysis.timing import simulate
from vppc.costs.model import OpCosts
from vppc.ir.dag import Dag
from vppc.ir.schedule import Channel, Part, Schedule

RANDOMS = st.randoms(use_true_random=False)


def growing(schedule: Schedule, seconds: float, transfer: float) -> OpCosts:
    """Chunk k takes (k + 1) ``seconds`` at every stage."""
    count, stages = len(schedule.chunks), len(schedule.stages)
    return costs([seconds * (k + 1) for k in range(count) for _ in range(stages)], [transfer] * count)


def edge_graph(schedule: Schedule, prices: OpCosts) -> nx.DiGraph:
    """The DAG with seconds on its edges: from start to start, from a source and to a sink."""
    graph = nx.DiGraph()
    dag = Dag.of(schedule)
    for op, seconds in enumerate(prices.seconds):
        graph.add_edge(op, "end", seconds=seconds)
        arrival = schedule.chunk_arrivals[op // dag.stages] - min(schedule.chunk_arrivals)
        graph.add_edge("clock", op, seconds=arrival if op % dag.stages == 0 else 0.0)
    for before, after, data in dag.to_networkx().edges(data=True):
        seconds = prices.seconds[before] + (prices.transfer[before // dag.stages] if data["transfer"] else 0.0)
        known = graph.edges[before, after]["seconds"] if graph.has_edge(before, after) else 0.0
        graph.add_edge(before, after, seconds=max(seconds, known))
    return graph


def longest_from(graph: nx.DiGraph, source: object) -> dict[object, float]:
    """Longest distances from a node, by relaxing over a topological order."""
    distance: dict[object, float] = {source: 0.0}
    for node in nx.topological_sort(graph):
        for _, after, seconds in graph.out_edges(node, data="seconds"):
            if node in distance:
                distance[after] = max(distance.get(after, 0.0), distance[node] + seconds)
    return distance


class TestClosedForms:
    @pytest.mark.parametrize(("count", "seconds"), [(5, 362), (16, 2892), (22, 5292), (64, 42252)])
    def test_v_on_two_ranks_with_transfers(self, count: int, seconds: float) -> None:
        """Fill 11, work 10 N (N + 1), tail 10 N + 1: an optimum that vpp-async reaches."""
        schedule = one_prompt([0, 1, 1, 0], count)
        assert lower_bound(schedule, growing(schedule, 10, 1)) == LowerBound(
            "rank 1", 11, 10 * count * (count + 1), 10 * count + 1
        )
        assert lower_bound(schedule, growing(schedule, 10, 1)).seconds == seconds

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_v_on_two_ranks_without_transfers(self, count: int) -> None:
        schedule = one_prompt([0, 1, 1, 0], count)
        assert lower_bound(schedule, growing(schedule, 1, 0)).seconds == (count + 1) ** 2

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_a_straight_pipeline(self, count: int) -> None:
        """CPP: two layers a rank, so N (N + 1) of work on each and 2 N to do after the first rank's."""
        schedule = one_prompt([0, 1], count)
        assert lower_bound(schedule, growing(schedule, 2, 0)).seconds == count * (count + 1) + 2 * count

    def test_one_chunk_is_its_critical_path(self) -> None:
        schedule = one_prompt([0, 1, 2, 2, 1, 0], 1)
        assert lower_bound(schedule, costs([1, 2, 4, 8, 16, 32], [0.5])).seconds == 63 + 4 * 0.5

    def test_a_decode_waits_for_the_token_before_it(self) -> None:
        schedule = shape([0, 1, 0], [[Part(0, 0, 1)], [Part(0, 1, 1, decode=True)]])
        heads, tails = longest_paths(schedule, costs([1, 2, 3, 4, 5, 6], [0.5, 0.25]), Dag.of(schedule))
        assert heads == [0, 1.5, 4, 7, 11.25, 16.5]
        assert tails == [21.5, 19, 15.5, 11.5, 6.25, 0]


class TestWhatBinds:
    def test_early_work_that_nothing_follows_is_left_out(self) -> None:
        """Request 0 could start first, but after requests 1 and 2, from 1 on, 10 s follow on other ranks."""
        schedule = shape([0, 1, 2], [[Part(r, 0, 1)] for r in range(3)], [0.0, 1.0, 1.0])
        assert lower_bound(schedule, costs([3, 0, 0] + [10, 5, 5] * 2, [0] * 3)) == LowerBound("rank 0", 1, 20, 10)

    def test_a_slow_channel(self) -> None:
        """Three transfers of 10 on one channel, from 1 on, and the last chunk's second stage after them."""
        schedule = one_prompt([0, 1], 3)
        assert lower_bound(schedule, costs([1, 2] * 3, [10] * 3)) == LowerBound("channel 0 -> 1", 1, 30, 2)

    def test_a_second_channel_between_the_ranks_could_share_the_load(self) -> None:
        schedule = one_prompt([0, 1], 3)
        schedule = replace(schedule, channels=(*schedule.channels, Channel(1, 0, 1)))
        assert lower_bound(schedule, costs([1, 2] * 3, [10] * 3)) == LowerBound("rank 1", 11, 6, 0)

    def test_a_late_request_binds_with_its_own_work_only(self) -> None:
        """Request 1 arrives 100 after request 0, whose work is long done by then."""
        schedule = shape([0], [[Part(0, 0, 1)], [Part(1, 0, 1)], [Part(1, 1, 1)]], [5.0, 105.0])
        assert lower_bound(schedule, costs([3, 4, 6], [0, 0, 0])) == LowerBound("rank 0", 100, 10, 0)

    def test_nothing_to_do(self) -> None:
        assert lower_bound(shape([0], []), costs([], [])).seconds == 0.0


class TestAgainstOracles:
    @settings(max_examples=100)
    @given(RANDOMS)
    def test_no_program_is_quicker(self, rng: Random) -> None:
        schedule = random_programs(rng, random_shape(rng))
        prices = random_costs(rng, schedule)
        bound = lower_bound(schedule, prices).seconds
        assert bound <= makespan(schedule, simulate(schedule, prices))
        assert bound <= makespan(schedule, simulate(schedule, prices, 0.5)) + 1e-9

    @settings(max_examples=60)
    @given(RANDOMS)
    def test_no_order_is_quicker(self, rng: Random) -> None:
        schedule = random_shape(rng, max_ranks=3, max_stages=3, max_chunks=3)
        prices = random_costs(rng, schedule)
        assert lower_bound(schedule, prices).seconds <= best_makespan(schedule, prices)

    @settings(max_examples=100)
    @given(RANDOMS)
    def test_heads_and_tails_are_longest_paths(self, rng: Random) -> None:
        schedule = random_shape(rng)
        prices = random_costs(rng, schedule)
        heads, tails = longest_paths(schedule, prices, Dag.of(schedule))
        graph = edge_graph(schedule, prices)
        from_clock, to_end = longest_from(graph, "clock"), longest_from(graph.reverse(), "end")
        assert heads == [from_clock[op] for op in range(len(heads))]
        assert tails == [to_end[op] - prices.seconds[op] for op in range(len(tails))]

    @settings(max_examples=60)
    @given(RANDOMS)
    def test_it_is_the_best_over_all_sets_of_operations_of_a_rank_or_channel(self, rng: Random) -> None:
        schedule = random_shape(rng, max_ranks=3, max_stages=4, max_chunks=4)
        prices = random_costs(rng, schedule)
        stages, ranks = len(schedule.stages), schedule.stage_ranks
        heads, tails = longest_paths(schedule, prices, Dag.of(schedule))
        jobs: dict[object, list[tuple[float, float, float]]] = {}
        for op, seconds in enumerate(prices.seconds):
            chunk, stage = divmod(op, stages)
            jobs.setdefault(ranks[stage], []).append((heads[op], seconds, tails[op]))
            if stage + 1 < stages and ranks[stage] != ranks[stage + 1]:
                after = prices.seconds[op + 1] + tails[op + 1]
                link = (ranks[stage], ranks[stage + 1])
                jobs.setdefault(link, []).append((heads[op] + seconds, prices.transfer[chunk], after))
        bound = lower_bound(schedule, prices)
        assert bound.seconds == max(map(best_set_bound, jobs.values()))
        assert bound.seconds == bound.head + bound.work + bound.tail
