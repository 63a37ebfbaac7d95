"""The incremental compiler: what it says is a proven stream, as good as one that was planned in advance."""

from __future__ import annotations

import gc
import tracemalloc
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving_streams import COST, LAYERS, Stream, compiled, header, stream
from vppc.analysis.breakdown import first_tokens, makespan
from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts, Prices
from vppc.errors import InputError
from vppc.ir.document import digest, parse_segment, schedule_text, segment_text
from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT, WIDTH
from vppc.ir.rules import check, check_stream
from vppc.ir.schedule import Model, Request, Schedule
from vppc.ir.segment import Segment
from vppc.passes.admission import Admission, default_in_flight
from vppc.passes.chunking import FixedChunks
from vppc.passes.list_schedule import list_schedule
from vppc.passes.strategies import STRATEGIES, Options
from vppc.serving.batching import Limits
from vppc.serving.policy import POLICIES


def sizes() -> st.SearchStrategy[Request]:
    """Requests without a name yet."""
    return st.integers(1, 60).flatmap(
        lambda tokens: st.integers(0, tokens - 1).map(lambda cached: Request("", tokens, cached))
    )


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    chunk_size = draw(st.sampled_from([5, 8, 16]))
    return Limits(
        chunk_size=chunk_size,
        max_in_flight=draw(st.none() | st.integers(1, 6)),
        max_buffers=draw(st.none() | st.integers(4, 8)),
        max_resident_tokens=draw(st.none() | st.integers(60, 120)),
        decode_tokens=draw(st.sampled_from([0, 0, 2])),
        share=draw(st.booleans()),
        fill=draw(st.booleans()),
    )


Event = tuple[str, object]


def events() -> st.SearchStrategy[list[Event]]:
    add = st.tuples(st.just("add"), sizes())
    cancel = st.tuples(st.just("cancel"), st.integers(0, 30))
    wait = st.tuples(st.just("wait"), st.floats(0.0, 2.0))
    report = st.tuples(st.just("report"), st.tuples(st.integers(0, 3), st.floats(0.5, 2.0)))
    return st.lists(st.one_of(add, add, cancel, wait, wait, report), max_size=40)


def played(each: Stream, story: list[Event]) -> tuple[dict[str, Request], set[str]]:
    """Let it all happen; the requests, and the ids of those that were cancelled in time."""
    now = 0.0
    requests: dict[str, Request] = {}
    cancelled: set[str] = set()
    for what, value in story:
        if what == "add":
            assert isinstance(value, Request)
            request = replace(value, id=f"r{len(requests)}", arrival=now)
            requests[request.id] = request
            each.compiler.add(request, now)
        elif what == "cancel":
            if each.compiler.cancel(f"r{value}", now):
                cancelled.add(f"r{value}")
        elif what == "wait":
            assert isinstance(value, float)
            now += value
            each.advance(now)
        else:
            rank, late = value  # type: ignore[misc]
            if rank < each.schedule.pp and len(each.schedule.programs[rank]):
                each.compiler.reached(rank, len(each.schedule.programs[rank]) - 1, now * late)
    return requests, cancelled


SHAPES = [(strategy, None, None) for strategy in STRATEGIES] + [
    ("vpp-packed", "zigzag", 3),
    ("vpp-packed", "zigzag", 4),
    ("vpp-async", "loop", 2),
]


FREE = (
    CostModel((LayerCost(LAYERS),)),
    CostModel((LayerCost(LAYERS),), transfer=Linear(0.005)),
    CostModel((LayerCost(LAYERS),), head=Linear(0.02)),
    CostModel((LayerCost(LAYERS // 2, fixed=0.01), LayerCost(LAYERS // 2)), embed=Linear(0.01)),
    CostModel((LayerCost(LAYERS // 2), LayerCost(LAYERS // 2, per_token=0.001)), transfer=Linear(0.0, 0.001)),
)
"""By these costs some operations take no time: a fit, say, finds nothing for one of two kinds of layers."""


@given(
    st.sampled_from(SHAPES),
    st.integers(1, 3),
    st.sampled_from(POLICIES),
    limits(),
    st.just(COST) | st.sampled_from(FREE),
    events(),
)
@settings(max_examples=200, deadline=None)
def test_whatever_comes_and_goes_makes_a_stream_that_is_proven_and_ends(
    shape: tuple[str, str | None, int | None],
    pp: int,
    queue: str,
    bounds: Limits,
    cost: CostModel,
    story: list[Event],
) -> None:
    strategy, placement, vp = shape
    each = stream(strategy, pp, bounds, queue, cost=cost, setup=header(strategy, pp, placement, vp))
    requests, cancelled = played(each, story)
    opening = each.compiler.opening()
    whole = each.close()
    assert check_stream(opening, each.segments, closed=True) == ()
    assert check(whole) == ()
    timing = simulate(whole, OpCosts.of(whole, COST))
    made = {
        request.id
        for request, ttft in zip(whole.requests, first_tokens(whole, timing), strict=True)
        if ttft is not None
    }
    assert made >= requests.keys() - cancelled
    assert {request.id for request in whole.requests} <= requests.keys()
    assert all(chunk.tokens <= bounds.prefill_tokens for chunk in whole.chunks)
    assert_within(whole, bounds)


def assert_within(whole: Schedule, bounds: Limits) -> None:
    """Chunks in flight and resident tokens, as rank 0 sees them in its list, where it holds the last stage."""
    if bounds.max_buffers is not None:
        assert all(program.buffers <= bounds.max_buffers for program in whole.programs)
    if whole.stage_ranks[-1] != 0:
        return
    last = {part.request: index for index, chunk in enumerate(whole.chunks) for part in chunk.parts}
    in_flight = 0
    resident: set[int] = set()
    for op, chunk, stage, *_ in whole.programs[0].rows():
        if op == FORWARD and stage == 0:
            in_flight += 1
            resident |= {part.request for part in whole.chunks[chunk].parts}
        assert bounds.max_in_flight is None or in_flight <= bounds.max_in_flight
        tokens = sum(whole.requests[request].prompt_tokens for request in resident)
        assert bounds.max_resident_tokens is None or tokens <= bounds.max_resident_tokens
        if op == FORWARD and stage == len(whole.stages) - 1:
            in_flight -= 1
            resident -= {part.request for part in whole.chunks[chunk].parts if last[part.request] == chunk}


@given(st.lists(sizes(), min_size=1, max_size=6), st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_whole_list_at_once_takes_as_long_as_the_list_schedule_of_it(
    prompts: list[Request], pp: int, packed: bool
) -> None:
    requests = tuple(replace(prompt, id=f"r{number}") for number, prompt in enumerate(prompts))
    strategy = "vpp-packed" if packed else "vpp-async"
    online = compiled(requests, strategy=strategy, pp=pp, limits=Limits(chunk_size=8, share=False))
    offline = FixedChunks(8)(replace(header(strategy, pp), requests=requests))
    assert (online.requests, online.chunks) == (offline.requests, offline.chunks)
    costs = OpCosts.of(offline, COST)
    admission = Admission(default_in_flight(offline.stage_ranks, packed), barrier=not packed)
    _, finish = list_schedule(offline, costs, admission.gates(offline))
    assert makespan(online, simulate(online, costs)) == pytest.approx(finish, rel=1e-12)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("strategy", ["vpp-packed", "vpp"])
def test_long_prompts_at_once_take_exactly_as_long_as_planned_offline(strategy: str, pp: int) -> None:
    requests = tuple(Request(f"r{number}", tokens) for number, tokens in enumerate([120, 16, 200, 9, 64, 150]))
    offline = compile_schedule(requests, Model("small", LAYERS), COST, Options(strategy=strategy, pp=pp, chunk_size=16))
    online = compiled(requests, strategy=strategy, pp=pp, limits=Limits(chunk_size=16, share=False))
    planned, streamed = (makespan(each, simulate(each, OpCosts.of(each, COST))) for each in (offline, online))
    assert streamed == pytest.approx(planned, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "horizon"), [("vpp-packed", 0.1), ("vpp-packed", 2.0), ("vpp-async", 0.1), ("cpp", 0.0)]
)
def test_a_program_in_pieces_runs_as_the_clock_says(strategy: str, horizon: float) -> None:
    """Whoever comes while it runs: what is posted ahead is posted in time, and no WAIT that frees a buffer blocks."""
    each = stream(strategy, 3, Limits(chunk_size=8), horizon=horizon)
    planned: dict[tuple[int, int], float] = {}
    take = each.compiler._pipeline.take_committed

    def noted() -> object:
        committed = take()
        planned.update(((op.chunk, op.stage), op.start) for op in committed.operations)
        return committed

    each.compiler._pipeline.take_committed = noted  # type: ignore[assignment, method-assign]
    story: list[Event] = []
    for tokens in (30, 5, 3, 60, 8, 2, 17):
        story += [("add", Request("", tokens)), ("wait", 0.4)]
    played(each, story)
    whole = each.close()
    timing = simulate(whole, OpCosts.of(whole, COST))
    late = [
        timing.starts[program.rank][index] - planned[chunk, stage]
        for program in whole.programs
        for index, (op, chunk, stage, *_) in enumerate(program.rows())
        if op == FORWARD
    ]
    assert len(late) == len(planned)
    assert max(late) < 1e-9


def test_programs_reach_as_far_beyond_the_present_as_the_horizon() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8), horizon=0.3)
    for number in range(6):
        each.compiler.add(Request(f"r{number}", 24), 0.0)
    now = 0.0
    while each.compiler.next_event() < inf:
        now = max(now, each.compiler.next_event())
        each.advance(now)
        sent = each.schedule
        timing = simulate_open(sent)
        behind = [ends[-1] if ends else 0.0 for ends in timing]
        unsent = min(each.compiler._emitter.next_start(), each.compiler._pipeline.next_event())
        assert unsent >= now + 0.3
        assert max(behind) > now


def simulate_open(schedule: Schedule) -> list[list[float]]:
    """The ends of the FORWARDs of an open stream, by rank; what waits for a later segment has none."""
    costs = OpCosts.of(schedule, COST)
    ends: list[list[float]] = []
    for program in schedule.programs:
        now, each = 0.0, []
        for op, chunk, stage, *_ in program.rows():
            if op == FORWARD:
                now += costs.seconds[chunk * len(schedule.stages) + stage]
                each.append(now)
        ends.append(each)
    return ends


def test_no_chunk_is_made_long_before_it_can_run() -> None:
    """100 prompts wait, and a shorter one that comes last is among the first."""
    each = stream("vpp-packed", 2, Limits(chunk_size=8), "srpf")
    for number in range(100):
        each.compiler.add(Request(f"r{number}", 16), 0.0)
    each.advance(0.0)
    each.compiler.add(Request("short", 2), 0.1)
    assert len(each.schedule.chunks) <= 6
    whole = each.close()
    assert [request.id for request in whole.requests].index("short") <= 3


def late_by(late: float, now: float, strategy: str = "vpp-packed") -> int:
    """How many chunks there are at a time, when the ranks have been reported so late from the start."""
    each = stream(strategy, 2, Limits(chunk_size=8), horizon=0.1)
    for number in range(50):
        each.compiler.add(Request(f"r{number}", 16), 0.0)
    each.advance(0.0)
    for rank, program in enumerate(each.schedule.programs):
        if len(program):
            index, planned = each.compiler._emitter._lanes[rank].plan[0]
            assert program.row(index)[0] in (FORWARD, WAIT)
            each.compiler.reached(rank, index, planned + late - rank)  # rank 1 is a second earlier
    each.advance(now)
    return len(each.schedule.chunks)


@pytest.mark.parametrize("strategy", ["vpp-packed", "cpp"])
def test_the_plan_waits_for_ranks_that_are_late_and_hurries_before_those_that_are_early(strategy: str) -> None:
    in_time = late_by(0.0, 5.01, strategy)
    assert late_by(2.0, 5.01, strategy) == late_by(0.0, 3.01, strategy) < in_time
    early = 2.0 if strategy == "vpp-packed" else 2.1  # a horizon (0.1 s) is no news where nothing holds ranks back
    assert late_by(-early, 5.01, strategy) == late_by(0.0, 7.01, strategy) > in_time


def test_other_costs_hold_for_chunks_that_are_to_come() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8))
    each.compiler.add(Request("a", 8), 0.0)
    each.compiler.replan(replace(COST, layers=(replace(COST.layers[0], fixed=1.0),)))
    each.advance(0.0)
    (_, end) = each.compiler._emitter._lanes[0].plan[0]
    assert end == pytest.approx(3 * (1.0 + 8 * 0.001 + 36 * 0.0001))


def test_one_that_is_cancelled_before_its_first_chunk_is_not_in_the_stream() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8, share=False))
    each.compiler.add(Request("a", 40), 0.0)
    each.compiler.add(Request("b", 8), 0.0)
    each.advance(0.0)
    assert each.compiler.cancel("b", 0.1)
    whole = each.close()
    assert [request.id for request in whole.requests] == ["a"]
    assert "cancelled" not in whole.extra


def test_one_that_is_cancelled_halfway_ends_where_it_is_and_makes_room() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8, max_resident_tokens=80))
    each.compiler.add(Request("a", 80), 0.0)
    each.compiler.add(Request("b", 8), 0.0)
    each.advance(0.0)
    made = len(each.schedule.chunks)
    assert each.compiler.cancel("a", 0.1)
    assert not each.compiler.cancel("a", 0.2)
    assert not each.compiler.cancel("nobody", 0.2)
    whole = each.close()
    assert whole.extra["cancelled"] == [0]
    assert [part.request for chunk in whole.chunks for part in chunk.parts] == [0] * made + [1]
    assert check(whole) == ()


def test_one_that_is_cancelled_between_its_chunks_makes_room_at_once() -> None:
    """Shorter prompts overtake a when its first chunk is through; without its 40 tokens c's fit."""
    limits = Limits(chunk_size=8, max_in_flight=1, max_resident_tokens=48, share=False)
    each = stream("cpp", 2, limits, "srpf", horizon=0.01)
    each.compiler.add(Request("a", 40), 0.0)
    each.advance(0.0)
    for number in range(4):
        each.compiler.add(Request(f"s{number}", 8), 0.01)
    for now in (0.2, 0.4, 0.6):
        each.advance(now)
    assert [part.request for chunk in each.schedule.chunks for part in chunk.parts] == [0, 1, 2]
    assert each.compiler.cancel("a", 0.61)
    each.compiler.add(Request("c", 40), 0.61)
    whole = each.close()
    assert whole.extra["cancelled"] == [0]
    assert [part.request for chunk in whole.chunks for part in chunk.parts] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert check(whole) == ()


def test_an_id_is_free_again_when_its_request_is_through_or_cancelled() -> None:
    each = stream("vpp-packed", 2)
    for now in (0.0, 50.0):
        each.compiler.add(Request("a", 8), now)
        each.advance(now + 40.0)
    each.compiler.add(Request("b", 8), 100.0)
    each.compiler.cancel("b", 100.0)
    each.compiler.add(Request("b", 8), 100.0)
    assert [request.id for request in each.close().requests] == ["a", "a", "b"]


def test_a_segment_names_the_very_file_before_it_and_reads_back() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8))
    for number in range(5):
        each.compiler.add(Request(f"r{number}", 16), 0.0)
        each.advance(number * 0.3)
    each.compiler.cancel("r4", 1.5)
    each.close()
    assert len(each.segments) > 3
    before = "".join(schedule_text(each.compiler.opening()))
    for segment in each.segments:
        text = "".join(segment_text(segment))
        assert segment.previous == digest(before.encode())
        assert parse_segment(text) == segment
        before = text


def test_with_nothing_to_do_there_is_no_segment() -> None:
    each = stream("vpp-packed", 2)
    assert each.compiler.advance(1.0) is None
    assert each.compiler.next_event() == inf
    assert each.compiler.close() is None


def test_the_blocking_scheme_needs_rank_0_to_see_an_end() -> None:
    with pytest.raises(InputError, match="rank 0 does not hold the last stage"):
        stream("vpp", 2, setup=header("vpp", 2, "loop", 2))


def test_memory_stays_flat_over_thousands_of_requests() -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=64), "srpf")
    random = Random(1)
    now = 0.0
    used = []
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1500):
            now += random.expovariate(0.5)
            each.compiler.add(Request(f"r{number}", random.randint(1, 90)), now)
            if random.random() < 0.05:
                each.compiler.cancel(f"r{number - random.randint(0, 3)}", now)
            each.compiler.advance(now)
            if number % 500 == 499:
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(used[1:]) < 1.3 * used[0] + 200_000


class Ranks:
    """Ranks that run what has come to them, from the moment in which it came, by costs of their own."""

    def __init__(self, opening: Schedule, cost: CostModel) -> None:
        self.prices = Prices(opening.stages, cost)
        self.seconds: list[list[float]] = []
        self.transfer: list[float] = []
        self.ends: dict[int, int] = {}
        self.came: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in range(opening.pp)]
        self.done: list[list[float]] = [[] for _ in range(opening.pp)]
        self.posts: dict[tuple[int, int], tuple[int, int]] = {}  # (rank, instruction) -> (channel, number)
        self.posted: dict[tuple[int, int], list[float]] = defaultdict(list)  # (channel, op) -> when
        self.over: dict[int, list[float]] = defaultdict(list)  # channel -> when its transfers end

    def deliver(self, segment: Segment, now: float) -> None:
        for request in segment.requests:
            self.ends[len(self.ends)] = request.prompt_tokens
        for chunk in segment.chunks:
            costs = self.prices.of((chunk,), self.ends)
            self.seconds.append(costs.seconds)
            self.transfer += costs.transfer
        for more in segment.programs:
            self.came[more.rank] += [(now, tuple(more.code[at : at + WIDTH])) for at in range(0, len(more.code), WIDTH)]
        while sum(self.step(rank) for rank in range(len(self.came))):
            pass

    def step(self, rank: int) -> bool:
        """Run a rank's next instruction; whether it could."""
        done = self.done[rank]
        if len(done) == len(self.came[rank]):
            return False
        came, (op, chunk, stage, x, _, channel) = self.came[rank][len(done)]
        now = max(came, done[-1] if done else 0.0)
        if op == FORWARD:
            now += self.seconds[chunk][stage]
        elif op in (SEND, RECV):
            self.posts[rank, len(done)] = channel, len(self.posted[channel, op])
            self.posted[channel, op].append(now)
            number = len(self.over[channel])
            if number < min(len(self.posted[channel, SEND]), len(self.posted[channel, RECV])):
                both = max(self.posted[channel, SEND][number], self.posted[channel, RECV][number])
                self.over[channel].append(max([both, *self.over[channel][-1:]]) + self.transfer[chunk])
        elif op == WAIT:
            channel, number = self.posts[rank, x]
            if number >= len(self.over[channel]):
                return False
            now = max(now, self.over[channel][number])
        done.append(now)
        return True


@pytest.mark.parametrize(
    ("slower", "strategy"),
    [*product((0.6, 1.0, 1.6), ("vpp-packed", "vpp-async", "vpp")), (1.6, "cpp")],
)
def test_ranks_do_not_run_dry_and_chunks_stay_unmade_at_whatever_speed_the_ranks_run(
    slower: float, strategy: str
) -> None:
    """A loop that looks every 20 ms, 5 ms away from ranks that take more or less than the plan says."""
    real = replace(COST, layers=tuple(replace(k, fixed=k.fixed * slower, per_token=k.per_token * slower,
                                              per_pair=k.per_pair * slower) for k in COST.layers))  # fmt: skip
    each = stream(strategy, 2, Limits(chunk_size=8), horizon=0.1)
    ranks = Ranks(each.compiler.opening(), real)
    for number in range(40):
        each.compiler.add(Request(f"r{number}", 5 + number % 20), 0.0)
    now, ahead = 0.0, 0
    while each.compiler.next_event() < inf:
        before = len(each.segments)
        each.advance(now)
        for segment in each.segments[before:]:
            ranks.deliver(segment, now + 0.005)
        started = sum(
            row[0] == FORWARD and row[2] == 0 and end - ranks.seconds[row[1]][0] <= now
            for (_, row), end in zip(ranks.came[0], ranks.done[0], strict=False)
        )
        ahead = max(ahead, len(each.schedule.chunks) - started)
        now += 0.02
        for rank, done in enumerate(ranks.done):
            reached = bisect_right(done, now - 0.005)
            if reached:
                each.compiler.reached(rank, reached - 1, done[reached - 1])
    whole = each.close()
    took = max(done[-1] for done in ranks.done)
    alone = makespan(whole, simulate(whole, OpCosts.of(whole, real)))
    assert took < 1.03 * alone
    assert ahead <= (4 if strategy == "vpp" else 3)
