from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import (
    costs,
    one_prompt,
    random_costs,
    random_programs,
    random_shape,
    shape,
    straight_pair,
    times_of,
    timing_by_longest_paths,
    with_programs,
)
from vppc.analysis.interference import simulate_interference
from vppc.analysis.timing import Timing, simulate
from vppc.errors import CheckFailed
from vppc.ir.instruction import Forward, Recv, Sample, Send, Wait
from vppc.ir.rules import check
from vppc.ir.schedule import Part, Schedule

RANDOMS = st.randoms(use_true_random=False)


class TestByHand:
    def test_receives_posted_ahead(self) -> None:
        timing = simulate(straight_pair(), costs([10, 20, 11, 21], [3, 4]))
        assert timing.starts[0] == [0, 10, 10, 21, 21, 21]
        assert timing.ends[0] == [10, 10, 21, 21, 21, 25]
        assert timing.starts[1] == [0, 0, 0, 13, 33, 33, 54]
        assert timing.ends[1] == [0, 0, 13, 33, 33, 54, 54]
        (transfers,) = timing.transfers
        assert (transfers.sends, transfers.recvs) == ([1, 3], [0, 1])
        assert (transfers.send_posted, transfers.recv_posted) == ([10, 21], [0, 0])
        assert (transfers.starts, transfers.ends) == ([10, 21], [13, 25])

    def test_a_transfer_starts_when_both_ends_are_posted(self) -> None:
        timing = simulate(straight_pair(receive_late=True), costs([10, 20, 11, 21], [3, 4]))
        (transfers,) = timing.transfers
        assert (transfers.send_posted, transfers.recv_posted) == ([10, 21], [0, 33])
        assert (transfers.starts, transfers.ends) == ([10, 33], [13, 37])
        assert timing.ends[0][-1] == 37, "the sender waits for its receiver"
        assert timing.ends[1][-1] == 58

    def test_transfers_queue_on_their_channel(self) -> None:
        timing = simulate(straight_pair(), costs([1, 5, 1, 5], [10, 10]))
        (transfers,) = timing.transfers
        assert (transfers.starts, transfers.ends) == ([1, 11], [11, 21])
        assert timing.starts[1][3] == 11
        assert timing.starts[1][5] == 21

    def test_the_two_directions_of_a_pair_overlap(self) -> None:
        exchange = with_programs(
            shape([0, 1, 0], [[Part(0, 0, 1)], [Part(1, 0, 1)]], [0.0, 0.0]),
            [
                Forward(0, 0, None, 0),
                Send(0, 0, 1, 0, 0),
                Recv(0, 2, 1, 1, 1),
                Forward(1, 0, None, 2),
                Send(1, 0, 1, 0, 2),
                Wait(1),
                Wait(2),
                Wait(4),
            ],
            [
                Recv(0, 1, 0, 0, 0),
                Wait(0),
                Forward(0, 1, 0, 1),
                Send(0, 1, 0, 1, 1),
                Recv(1, 1, 0, 0, 2),
                Wait(3),
                Wait(4),
            ],
        )
        timing = simulate(exchange, costs([10, 5, 0, 7, 0, 0], [2, 2]))
        there, back = timing.transfers
        assert (there.starts, there.ends) == ([10, 17], [12, 19])
        assert (back.starts, back.ends) == ([17], [19])

    def test_stage_zero_waits_for_the_last_arrival_of_its_chunk(self) -> None:
        late = with_programs(
            shape([0], [[Part(0, 0, 1), Part(1, 0, 1)], [Part(0, 1, 1)]], [3.0, 7.5]),
            [Forward(0, 0, None, 0), Sample(0, 0), Forward(1, 0, None, 0), Sample(1, 0)],
        )
        timing = simulate(late, costs([2, 4], [0, 0]))
        assert timing.starts == ([7.5, 9.5, 9.5, 13.5],)
        assert timing.ends == ([9.5, 9.5, 13.5, 13.5],)

    def test_an_open_stream_may_leave_transfers_open(self) -> None:
        stream = with_programs(one_prompt([0, 1], 1), [Forward(0, 0, None, 0), Send(0, 0, 1, 0, 0)], [])
        (transfers,) = simulate(stream, costs([4, 4], [1])).transfers
        assert (transfers.send_posted, transfers.recv_posted, transfers.starts) == ([4], [], [])


class TestInterference:
    def test_compute_beside_a_transfer_slows_down_on_both_ends(self) -> None:
        """Rank 0 runs chunk 1 from 10 on, 4 s of it at half speed beside the first transfer."""
        timing = simulate(straight_pair(), costs([10, 20, 11, 21], [4, 6]), interference=1.0)
        assert timing.ends[0][2] == 10 + 4 + (11 - 2)
        (transfers,) = timing.transfers
        assert (transfers.starts, transfers.ends) == ([10, 23], [14, 29])
        assert timing.ends[1][3] == 14 + 9 + 6 + (20 - 9 - 3), "full speed to 23, half speed to 29, full speed"

    def test_two_transfers_at_once_slow_down_like_one(self) -> None:
        """Rank 0 computes chunk 2 from 7 on; transfers run from 7 to 11, 9 to 13 and 13 to 17."""
        schedule = with_programs(
            one_prompt([0, 1, 0], 3),
            [
                Forward(0, 0, None, 0),
                Send(0, 0, 1, 0, 0),
                Recv(0, 2, 1, 1, 3),
                Recv(1, 2, 1, 1, 4),
                Forward(1, 0, None, 1),
                Send(1, 0, 1, 0, 1),
                Forward(2, 0, None, 2),
            ],
            [
                Recv(0, 1, 0, 0, 0),
                Recv(1, 1, 0, 0, 1),
                Wait(0),
                Forward(0, 1, 0, 2),
                Send(0, 1, 0, 1, 2),
                Wait(1),
                Forward(1, 1, 1, 3),
                Send(1, 1, 0, 1, 3),
            ],
        )
        timing = simulate(schedule, costs([2, 2, 0, 3, 1, 0, 10, 0, 0], [4, 4, 4]), interference=1.0)
        there, back = timing.transfers
        assert (there.starts, there.ends) == ([2, 7], [6, 11])
        assert (back.starts, back.ends) == ([9, 13], [13, 17])
        assert timing.ends[1][3] == 9, "1 s at full speed to 7, then the second at half speed"
        assert timing.ends[0][6] == 22, "7 to 17 at half speed is 5 s of work, 5 more at full speed"

    @settings(max_examples=150)
    @given(RANDOMS)
    def test_without_interference_the_event_queue_gives_the_same_times(self, rng: Random) -> None:
        schedule = random_programs(rng, random_shape(rng))
        prices = random_costs(rng, schedule)
        assert simulate_interference(schedule, prices, 0.0) == simulate(schedule, prices)

    @settings(max_examples=100)
    @given(RANDOMS, st.sampled_from([0.25, 1.0, 3.0]))
    def test_every_forward_does_its_work_and_everything_else_follows(self, rng: Random, interference: float) -> None:
        schedule = random_programs(rng, random_shape(rng))
        prices = random_costs(rng, schedule)
        timing = simulate(schedule, prices, interference)
        assert times_of(timing) == pytest.approx(
            {k: t for k, t in timing_by_longest_paths(schedule, prices, timing).items() if k != "clock"}, abs=1e-9
        )
        for rank, program in enumerate(schedule.programs):
            for index, instruction in enumerate(program):
                if isinstance(instruction, Forward):
                    start, end = timing.starts[rank][index], timing.ends[rank][index]
                    slow = overlap(schedule, timing, rank, start, end)
                    work = (end - start - slow) + slow / (1 + interference)
                    op = instruction.chunk * len(schedule.stages) + instruction.stage
                    assert work == pytest.approx(prices.seconds[op], abs=1e-9)


def overlap(schedule: Schedule, timing: Timing, rank: int, start: float, end: float) -> float:
    """Seconds between start and end in which a transfer of the rank is under way."""
    transfers = [
        t
        for channel, moved in zip(schedule.channels, timing.transfers, strict=True)
        if rank in (channel.src, channel.dst)
        for t in zip(moved.starts, moved.ends, strict=True)
    ]
    cuts = sorted({start, end, *(min(max(edge, start), end) for t in transfers for edge in t)})
    return sum(
        high - low for low, high in pairwise(cuts) if any(begin <= low and high <= over for begin, over in transfers)
    )


@settings(max_examples=60)
@given(RANDOMS)
def test_the_random_programs_here_are_proven(rng: Random) -> None:
    assert check(random_programs(rng, random_shape(rng))) == ()


@settings(max_examples=150)
@given(RANDOMS)
def test_times_are_longest_paths_in_the_graph_of_events(rng: Random) -> None:
    schedule = random_programs(rng, random_shape(rng))
    prices = random_costs(rng, schedule)
    expected = {key: t for key, t in timing_by_longest_paths(schedule, prices).items() if key != "clock"}
    assert times_of(simulate(schedule, prices)) == expected


@pytest.mark.parametrize("interference", [0.0, 0.5])
def test_a_deadlock_is_an_error_that_says_where_it_stopped(interference: float) -> None:
    crossed = with_programs(
        shape([0, 1, 0], [[Part(0, 0, 1)]]),
        [Forward(0, 0, None, 0), Recv(0, 2, 1, 1, 1), Wait(1), Send(0, 0, 1, 0, 0)],
        [Recv(0, 1, 0, 0, 0), Wait(0)],
    )
    with pytest.raises(CheckFailed) as caught:
        simulate(crossed, costs([1, 1, 1], [1]), interference)
    assert str(caught.value).splitlines() == [
        "D1 rank 0: waits forever for the transfer of its instruction 1, "
        "Recv(chunk=0, stage=2, peer=1, channel=1, buffer=1)",
        "  hint: run `vppc verify` on the schedule: it names the cycle of waits, and what breaks it",
        "D1 rank 1: waits forever for the transfer of its instruction 0, "
        "Recv(chunk=0, stage=1, peer=0, channel=0, buffer=0)",
        "  hint: run `vppc verify` on the schedule: it names the cycle of waits, and what breaks it",
    ]
