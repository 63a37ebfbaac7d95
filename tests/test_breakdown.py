from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import (
    breakdown_by_ticks,
    costs,
    one_prompt,
    random_costs,
    random_programs,
    random_shape,
    shape,
    straight_pair,
    with_programs,
)
from vppc.analysis.breakdown import RankBreakdown, breakdown, first_tokens, makespan
from vppc.analysis.report import predict
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.ir.instruction import Forward, Recv, Sample, Send, Wait
from vppc.ir.schedule import Part, Schedule

RANDOMS = st.randoms(use_true_random=False)


def ranks_of(schedule: Schedule, prices: OpCosts, interference: float = 0.0) -> tuple[RankBreakdown, ...]:
    return breakdown(schedule, simulate(schedule, prices, interference), prices)


def rank_breakdown(
    rank: int,
    *,
    compute: float,
    collective: float = 0.0,
    exposed: float = 0.0,
    hidden: float = 0.0,
    launch: float = 0.0,
    free: float = 0.0,
) -> RankBreakdown:
    total = compute + collective + exposed + launch + free
    return RankBreakdown(rank, compute, collective, exposed, hidden, launch, free, (launch + free) / total)


class TestByHand:
    def test_waiting_for_a_posted_transfer_is_exposed_and_for_the_peer_is_bubble(self) -> None:
        """Rank 1 waits 10 s for chunk 0 to be computed and 3 s for it to arrive; chunk 1 arrives beside compute."""
        assert ranks_of(straight_pair(), costs([10, 20, 11, 21], [3, 4])) == (
            rank_breakdown(0, compute=21, exposed=4, hidden=3, free=29),
            rank_breakdown(1, compute=41, exposed=3, hidden=4, launch=10),
        )

    def test_a_sender_waiting_for_its_receiver_is_free(self) -> None:
        """Rank 0 waits from 21 to 37 for chunk 1 to be taken, which rank 1 is ready for at 33."""
        assert ranks_of(straight_pair(receive_late=True), costs([10, 20, 11, 21], [3, 4])) == (
            rank_breakdown(0, compute=21, exposed=4, hidden=3, free=12 + 21),
            rank_breakdown(1, compute=41, exposed=3 + 4, launch=10),
        )

    def test_queueing_on_the_channel_is_exposed(self) -> None:
        """Rank 0 waits at 2 for its second transfer, which is posted at 2 and queues until 11."""
        schedule = straight_pair()
        program = [*schedule.programs[0][:4], Wait(3), Wait(1)]
        queued = with_programs(schedule, program, schedule.programs[1][:])
        assert ranks_of(queued, costs([1, 5, 1, 5], [10, 10])) == (
            rank_breakdown(0, compute=2, exposed=19, hidden=1, free=5),
            rank_breakdown(1, compute=10, exposed=10 + 5, hidden=5, launch=1),
        )

    def test_overlapping_transfers_count_once_as_hidden(self) -> None:
        """Both directions are under way from 9 to 11 while rank 0 computes; it waits for the second from 12 to 13."""
        exchange = with_programs(
            one_prompt([0, 1, 0], 2),
            [
                Forward(0, 0, None, 0),
                Send(0, 0, 1, 0, 0),
                Recv(0, 2, 1, 1, 1),
                Forward(1, 0, None, 2),
                Send(1, 0, 1, 0, 2),
                Forward(0, 2, 1, None),
                Wait(2),
            ],
            [Recv(0, 1, 0, 0, 0), Recv(1, 1, 0, 0, 1), Wait(0), Forward(0, 1, 0, 2), Send(0, 1, 0, 1, 2)],
        )
        (first, _) = ranks_of(exchange, costs([2, 3, 5, 5, 0, 0], [4, 4]))
        # to rank 1: 2..6 and 7..11; back: 9..13; computing 0..12, waiting 12..13
        assert first == rank_breakdown(0, compute=12, exposed=1, hidden=4 + 5)

    def test_collective_is_taken_out_of_compute(self) -> None:
        prices = costs([10, 20, 11, 21], [3, 4], collective=[1, 2, 0.5, 4])
        first, second = ranks_of(straight_pair(), prices)
        assert (first.compute, first.collective) == (19.5, 1.5)
        assert (second.compute, second.collective) == (35, 6)

    def test_a_slow_down_counts_as_compute(self) -> None:
        first, second = ranks_of(straight_pair(), costs([10, 20, 11, 21], [4, 6]), interference=1.0)
        assert first == rank_breakdown(0, compute=10 + 13, exposed=6, hidden=4, free=58 - 29)
        assert second == rank_breakdown(1, compute=41 + 3, exposed=4, hidden=6, launch=10)

    def test_a_rank_without_work_is_all_launch_stall(self) -> None:
        lonely = with_programs(shape([0], [[Part(0, 0, 1)]], pp=2), [Forward(0, 0, None, 0), Sample(0, 0)], [])
        assert ranks_of(lonely, costs([3], [0])) == (
            rank_breakdown(0, compute=3),
            rank_breakdown(1, compute=0, launch=3),
        )

    def test_nothing_to_do_has_no_bubble(self) -> None:
        (idle,) = ranks_of(with_programs(shape([0], []), []), costs([], []))
        assert idle.bubble_ratio == 0.0

    def test_the_clock_starts_when_the_first_chunk_can(self) -> None:
        schedule = straight_pair()
        late = replace(schedule, requests=(replace(schedule.requests[0], arrival=100.0),))
        prices = costs([10, 20, 11, 21], [3, 4])
        assert ranks_of(late, prices) == ranks_of(schedule, prices)

    def test_idling_on_purpose_before_a_later_arrival_is_launch_stall(self) -> None:
        late_first = with_programs(
            shape([0], [[Part(0, 0, 1)], [Part(1, 0, 1)]], [0.0, 5.0]),
            [Forward(1, 0, None, 0), Sample(1, 0), Forward(0, 0, None, 0), Sample(0, 0)],
        )
        assert ranks_of(late_first, costs([2, 3], [0, 0])) == (rank_breakdown(0, compute=5, launch=5),)


class TestAgainstTicks:
    @settings(max_examples=60)
    @given(RANDOMS)
    def test_every_second_is_what_the_rank_does_in_it(self, rng: Random) -> None:
        schedule = random_programs(rng, random_shape(rng, max_ranks=3, max_stages=5, max_chunks=4))
        prices = random_costs(rng, schedule)
        timing = simulate(schedule, prices)
        found = breakdown(schedule, timing, prices)
        assert [
            {
                "busy": rank.compute + rank.collective,
                "exposed": rank.exposed_transfer,
                "hidden": rank.hidden_transfer,
                "launch": rank.launch_stall,
                "free": rank.free,
            }
            for rank in found
        ] == breakdown_by_ticks(schedule, timing, 1 / 8)

    @settings(max_examples=100)
    @given(RANDOMS, st.sampled_from([0.0, 0.3]))
    def test_the_parts_of_every_rank_add_up_to_the_makespan(self, rng: Random, interference: float) -> None:
        schedule = random_programs(rng, random_shape(rng))
        prices = random_costs(rng, schedule)
        timing = simulate(schedule, prices, interference)
        total = makespan(schedule, timing)
        for rank in breakdown(schedule, timing, prices):
            parts = (rank.compute, rank.collective, rank.exposed_transfer, rank.launch_stall, rank.free)
            assert min(parts) >= 0.0
            assert sum(parts) == pytest.approx(total)
            assert rank.bubble_ratio * total == pytest.approx(rank.launch_stall + rank.free)


class TestFirstTokens:
    def test_from_arrival_to_the_sample_of_the_last_prompt_chunk(self) -> None:
        """Request 0 ends in chunk 1 and decodes in chunk 2, where request 1, which came at 2, ends."""
        chunks = [[Part(0, 0, 1)], [Part(0, 1, 1), Part(1, 0, 1)], [Part(0, 2, 1, decode=True), Part(1, 1, 1)]]
        schedule = shape([0], chunks, [0.0, 2.0])
        prompts = (replace(schedule.requests[0], prompt_tokens=2), schedule.requests[1])
        schedule = with_programs(
            replace(schedule, requests=prompts),
            [
                Forward(0, 0, None, None),
                Forward(1, 0, None, 0),
                Sample(1, 0),
                Forward(2, 0, None, 0),
                Sample(2, 0),
            ],
        )
        assert first_tokens(schedule, simulate(schedule, costs([3, 4, 5], [0, 0, 0]))) == (7.0, 10.0)

    def test_a_request_that_an_open_stream_has_not_finished_has_none(self) -> None:
        stream = with_programs(shape([0], [[Part(0, 0, 1)], [Part(1, 0, 1)]], [0.0, 0.0]), [Forward(0, 0, None, 0)])
        assert first_tokens(stream, simulate(stream, costs([1, 1], [0, 0]))) == (None, None)


class TestReport:
    # two layers, a stage each; per_pair gives chunk k of one token k + 1 seconds in each
    cost = CostModel((LayerCost(2, per_pair=1.0),), launch=0.5, transfer=Linear(fixed=0.25))

    def test_json_has_the_documented_keys(self) -> None:
        made = predict(straight_pair(), self.cost).json()
        assert list(made) == ["makespan", "ideal", "efficiency", "lower_bound", "lower_bound_by", "ttft", "ranks"]
        assert list(made["ranks"][0]) == [
            "rank",
            "compute",
            "collective",
            "exposed_transfer",
            "hidden_transfer",
            "launch_stall",
            "free",
            "bubble_ratio",
        ]

    def test_values_by_hand(self) -> None:
        """Stages take 1.5 and 2.5 s: rank 0 0..1.5..4, the second transfer 4..4.25, rank 1 4.25..6.75."""
        report = predict(straight_pair(), self.cost)
        assert report.makespan == 6.75
        assert report.ideal == 2 * 3 / 2
        assert report.efficiency == 3 / 6.75
        assert report.bound.seconds == 6.75
        assert report.gap == 0.0
        assert report.ttft == (6.75,)
        assert [rank.compute for rank in report.ranks] == [4.0, 4.0]

    def test_the_cost_models_interference_is_applied(self) -> None:
        slowed = predict(straight_pair(), replace(self.cost, interference=1.0))
        assert slowed.makespan > 6.75
        assert slowed.bound.seconds == 6.75
