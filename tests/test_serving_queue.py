"""Who gets the next chunk, and what is in it: policies, the starvation bound, limits."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving_streams import COST, header
from vppc.costs.model import CostModel, LayerCost
from vppc.errors import InputError
from vppc.ir.schedule import Part, Request
from vppc.serving.batching import Batcher, Fixed, Limits
from vppc.serving.clock import Pipeline, QueueFull
from vppc.serving.policy import POLICIES, Policy, Queue, Waiting, policy

PER_TOKEN = CostModel((LayerCost(12, per_token=1 / 12),))
"""A prompt takes as many seconds as it has tokens, over the ranks."""


def queue_of(order: Policy, *prompts: tuple[int, float]) -> Queue:
    """A queue with requests of so many tokens that came then, in that order."""
    queue = Queue(order)
    for number, (tokens, came) in enumerate(prompts):
        queue.add(Waiting(Request(f"r{number}", tokens, arrival=came), number, came, 0))
    return queue


def drained(queue: Queue, now: float) -> list[int]:
    """The numbers of the requests as they are popped, each taken to its end."""
    numbers = []
    while (waiting := queue.pop(now)) is not None:
        numbers.append(waiting.number)
        queue.drop(waiting)
    return numbers


@pytest.mark.parametrize(
    ("name", "expected"), [("fcfs", [0, 1, 2, 3]), ("dual-queue", [0, 1, 2, 3]), ("srpf", [3, 1, 0, 2])]
)
def test_the_order_of_a_policy(name: str, expected: list[int]) -> None:
    queue = queue_of(policy(name, COST), (30, 0.0), (20, 1.0), (40, 2.0), (10, 3.0))
    assert drained(queue, 4.0) == expected


def test_deadlines_are_met_where_they_can_be() -> None:
    """At 50 s, with 60 s of target: r0 and r1 can begin until 50 + 10 - 0 and 52, r2 is late, r3 until 95."""
    order = policy("deadline", PER_TOKEN, ttft_target=60.0)
    queue = queue_of(order, (5, 5.0), (10, 2.0), (30, 10.0), (15, 50.0))
    assert drained(queue, 50.0) == [1, 0, 3, 2]


def test_a_request_may_bring_its_own_target() -> None:
    order = policy("deadline", PER_TOKEN, ttft_target=60.0)
    queue = Queue(order)
    queue.add(Waiting(Request("patient", 10), 0, 0.0, 0))
    queue.add(Waiting(Request("urgent", 10, extra={"ttft_target": 20}), 1, 0.0, 0))
    assert drained(queue, 0.0) == [1, 0]


def test_deadlines_are_told_by_the_newest_costs() -> None:
    """By 1 s a token r0 has to begin by 60 - 10 and r1 by 65 - 30, by a tenth of that by 60 - 1 and 65 - 3."""
    for replanned, expected in ((False, [1, 0]), (True, [0, 1])):
        queue = queue_of(policy("deadline", PER_TOKEN, ttft_target=60.0), (10, 0.0), (30, 5.0))
        if replanned:
            queue.reprice(CostModel((LayerCost(12, per_token=0.1 / 12),)))
        assert drained(queue, 6.0) == expected


@pytest.mark.parametrize("name", POLICIES)
def test_who_has_waited_as_long_as_the_bound_goes_first(name: str) -> None:
    order = policy(name, PER_TOKEN, patience=10.0, ttft_target=30.0)
    queue = queue_of(order, (90, 0.0), (80, 1.0), (2, 9.5), (1, 9.75))
    assert drained(queue, 11.0)[:2] == [0, 1]


def test_nobody_starves_under_a_stream_of_shorter_ones() -> None:
    """Shorter ones come faster than they are served; the long one starts when its patience ends, and goes on."""
    limits = Limits(chunk_size=8, share=False)
    for patience, first in ((2.0, True), (inf, False)):
        pipeline = Pipeline(
            header("vpp-packed", 2), COST, limits, policy("srpf", COST, patience=patience), "vpp-packed"
        )
        pipeline.submit(Request("long", 16), 0.0)
        for number in range(100):
            pipeline.submit(Request(f"s{number}", 4, arrival=number * 0.01), 0.0)
        pipeline.run()
        started = {token.id: token.started for token in pipeline.take_finished()}
        assert (started["long"] < 3.0) is first
        assert (sum(start < started["long"] for start in started.values()) < 100) is first


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["pop", "take", "back", "drop"])), max_size=60))
def test_a_queue_is_a_sorted_list(steps: list[tuple[int, str]]) -> None:
    """Beside a list that is searched: requests are popped, shortened and given back, or dropped."""
    queue = Queue(policy("srpf", COST, patience=inf))
    waiting: list[Waiting] = []
    for number, (tokens, what) in enumerate(steps):
        if what == "take":
            waiting.append(Waiting(Request(f"r{number}", tokens), number, float(number), 0))
            queue.add(waiting[-1])
        elif what == "drop" and waiting:
            queue.drop(waiting.pop(tokens % len(waiting)))
        else:
            popped = queue.pop(float(number))
            assert popped is min(waiting, key=lambda each: (each.left, each.number), default=None)
            if popped is not None and what == "back" and popped.left > 1:
                popped.covered += 1
                queue.give_back(popped, float(number))
            elif popped is not None:
                waiting.remove(popped)
                queue.drop(popped)
        assert len(queue) == len(waiting)


def test_what_is_of_no_use_does_not_pile_up_in_a_queue() -> None:
    queue = Queue(policy("srpf", COST, patience=inf))
    queue.add(Waiting(Request("long", 10**6), 0, 0.0, 0))
    for number in range(1, 5000):
        short = Waiting(Request(f"r{number}", 5), number, float(number), 0)
        queue.add(short)
        if number % 2:
            assert queue.pop(float(number)) is short
        queue.drop(short)
    assert max(len(queue._heap), len(queue._coming)) < 200


def test_what_is_swept_out_of_a_queue_leaves_its_order() -> None:
    """Prompts that go on out of turn: which of them has the fewest tokens left is not forgotten with old entries."""
    random, queue = Random(0), Queue(policy("srpf", COST, patience=inf))
    prompts = [Waiting(Request(f"r{number}", 1000 + 100 * number), number, 0.0, 0) for number in range(3)]
    for each in prompts:
        queue.add(each)
    for _ in range(300):
        each = queue.take_out(random.choice(prompts))
        each.covered += random.randint(1, 9)
        queue.give_back(each, 1.0)
        first = queue.pop(1.0)
        assert first is min(prompts, key=lambda each: (each.left, each.number))
        queue.give_back(first, 1.0)


def chunks(limits: Limits, *prompts: int, order: str = "fcfs", barrier: bool = False) -> list[list[tuple[int, int]]]:
    """Chunks made one after another, each as (request, tokens) of its parts."""
    batcher = Batcher(
        queue_of(policy(order, COST), *((tokens, 0.0) for tokens in prompts)), Fixed(limits.chunk_size), limits
    )
    made = []
    while shares := batcher.propose(0.0, inf, barrier=barrier, idle=True):
        batcher.take(shares, 0.0)
        made.append([(share.waiting.number, share.tokens) for share in shares])
    return made


def test_short_prompts_share_a_chunk_up_to_its_budget() -> None:
    assert chunks(Limits(chunk_size=8), 3, 4, 2, 8, 1) == [[(0, 3), (1, 4)], [(2, 2)], [(3, 8)], [(4, 1)]]
    assert chunks(Limits(chunk_size=8, share=False), 3, 4) == [[(0, 3)], [(1, 4)]]


def test_a_prompt_of_several_chunks_has_them_alone() -> None:
    assert chunks(Limits(chunk_size=8), 10, 2, 3) == [[(0, 8)], [(0, 2)], [(1, 2), (2, 3)]]


def test_or_others_fill_what_it_leaves() -> None:
    limits = Limits(chunk_size=8, fill=True)
    assert chunks(limits, 10, 2, 9) == [[(0, 8)], [(0, 2), (1, 2), (2, 4)], [(2, 5)]]


def test_decoding_requests_find_their_tokens_free() -> None:
    assert chunks(Limits(chunk_size=8, decode_tokens=3), 7, 2) == [[(0, 5)], [(0, 2)], [(1, 2)]]


def test_behind_a_barrier_a_prompt_is_made_to_its_end_before_a_shorter_one() -> None:
    limits = Limits(chunk_size=8)
    batcher = Batcher(queue_of(policy("srpf", COST), (20, 0.0)), Fixed(8), limits)
    batcher.take(batcher.propose(0.0, inf, barrier=True, idle=True), 0.0)
    batcher.queue.add(Waiting(Request("short", 1), 1, 1.0, 0))
    for left in (12, 4):
        (share,) = batcher.propose(1.0, inf, barrier=True, idle=False)
        assert (share.waiting.number, share.waiting.left) == (0, left)
        batcher.take([share], 1.0)
    assert batcher.propose(1.0, inf, barrier=True, idle=False) == []
    (share,) = batcher.propose(2.0, inf, barrier=True, idle=True)
    assert share.waiting.request.id == "short"


def test_a_resident_prompt_goes_on_where_the_first_in_the_queue_finds_no_room() -> None:
    """20 + 15 tokens are too many, so that the shorter one has to wait for the longer one's end."""
    limits = Limits(chunk_size=8, max_resident_tokens=30)
    pipeline = Pipeline(header("vpp-packed", 2), COST, limits, policy("srpf", COST), "vpp-packed")
    pipeline.submit(Request("long", 20), 0.0)
    pipeline.run(0.01)
    pipeline.submit(Request("short", 11), 0.01)
    pipeline.run()
    parts = [part for chunk in pipeline.take_committed().chunks for part in chunk.parts]
    assert parts == [Part(0, 0, 8), Part(0, 8, 8), Part(0, 16, 4), Part(1, 0, 8), Part(1, 8, 3)]


@pytest.mark.parametrize(
    ("strategy", "queue", "bounds", "expected"),
    [
        ("cpp", "fcfs", {}, (4, 7)),
        ("vpp-async", "fcfs", {}, (7, 10)),
        ("vpp-packed", "srpf", {}, (12, 15)),
        ("vpp-packed", "dual-queue", {}, (5, 8)),
        ("vpp-packed", "fcfs", {"max_in_flight": 6}, (6, 9)),
        ("vpp-packed", "fcfs", {"max_buffers": 9}, (8, 9)),
        ("vpp-packed", "fcfs", {"max_buffers": 9, "max_in_flight": 3}, (3, 9)),
        ("vpp", "fcfs", {}, (7, 4)),
        ("vpp", "fcfs", {"max_buffers": 6}, (7, 6)),
    ],
)
def test_how_many_chunks_are_in_flight_and_what_buffers_that_takes(
    strategy: str, queue: str, bounds: dict[str, int], expected: tuple[int, int]
) -> None:
    pipeline = Pipeline(header(strategy, 4), COST, Limits(**bounds), policy(queue, COST), strategy)
    assert (pipeline.in_flight, pipeline.buffers) == expected


def full() -> None:
    pipeline = Pipeline(header("vpp", 2), COST, Limits(max_queued=1), policy("fcfs", COST), "vpp")
    pipeline.submit(Request("a", 5), 0.0)
    pipeline.submit(Request("b", 5), 0.0)


def resubmitted(request: Request, limits: Limits | None = None) -> None:
    pipeline = Pipeline(header("vpp", 2), COST, limits or Limits(), policy("fcfs", COST), "vpp")
    pipeline.submit(Request("a", 5), 0.0)
    pipeline.submit(request, 0.0)


@pytest.mark.parametrize(
    ("wrong", "problem", "remedy"),
    [
        (lambda: policy("lifo", COST), "--policy: unknown queue policy 'lifo'",
         "choose one of fcfs, dual-queue, srpf, deadline"),
        (lambda: policy("fcfs", COST, patience=-1.0), "the starvation bound is -1.0 seconds",
         "give 0 or more"),
        (lambda: policy("deadline", COST, ttft_target=float("nan")), "the TTFT target is nan seconds",
         "give 0 or more"),
        (lambda: Limits(chunk_size=0), "--chunk-size: 0 is too few",
         "give at least 1"),
        (lambda: Limits(max_buffers=1), "--max-buffers: 1 is too few",
         "give at least 2"),
        (lambda: Limits(chunk_size=8, decode_tokens=8),
         "8 tokens for decoding leave nothing of a chunk of 8",
         "reserve fewer, or use larger chunks"),
        (lambda: Pipeline(header("vpp", 2), COST, Limits(max_buffers=3), policy("fcfs", COST), "vpp"),
         "--max-buffers: 3 buffers a rank are too few for the blocking scheme",
         "allow 4: in a step a rank holds 2 values and receives as many"),
        (full, "1 requests wait already",
         "try again later"),
        (lambda: resubmitted(Request("a", 5)), "the id 'a' is in use",
         "give each request an id of its own"),
        (lambda: resubmitted(Request("b", 5, 5)), "request b has 5 of 5 tokens cached",
         "leave at least the last token to compute: it makes the first new one"),
        (lambda: resubmitted(Request("b", 9), Limits(max_resident_tokens=8)),
         "request b has 9 tokens, of which 8 may be resident",
         "raise the limit on resident tokens"),
    ],
    ids=["policy", "bound", "target", "chunk", "buffers", "decode", "vpp", "full", "id", "cached", "resident"],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_a_remedy(wrong: object, problem: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        wrong()  # type: ignore[operator]
    assert str(caught.value) == f"{problem}\n  hint: {remedy}"
    assert isinstance(caught.value, QueueFull) is (remedy == "try again later")


def test_one_that_was_refused_leaves_nothing_behind() -> None:
    pipeline = Pipeline(header("vpp", 2), COST, Limits(max_queued=1), policy("fcfs", COST), "vpp")
    pipeline.submit(Request("a", 5), 0.0)
    with pytest.raises(QueueFull):
        pipeline.submit(Request("b", 5), 0.0)
    pipeline.run()
    pipeline.submit(Request("b", 5), 1.0)
    pipeline.run()
    assert [token.id for token in pipeline.take_finished()] == ["a", "b"]


def test_who_is_given_up_before_rank_0_looks_takes_no_place_in_the_queue() -> None:
    pipeline = Pipeline(header("vpp", 2), COST, Limits(max_queued=1), policy("fcfs", COST), "vpp")
    pipeline.submit(Request("a", 5), 0.0)
    assert pipeline.cancel("a", 0.0) and pipeline.queued == 0
    pipeline.submit(Request("b", 5), 0.0)
    with pytest.raises(QueueFull):
        pipeline.submit(Request("c", 5), 0.0)
    pipeline.run()
    assert pipeline.queued == 0
    assert [token.id for token in pipeline.take_finished()] == ["b"]
