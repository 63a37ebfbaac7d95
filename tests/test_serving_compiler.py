"""The incremental compiler: what it says is a proven stream, as good as one that was planned in advance."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving_streams import COST, LAYERS, Stream, compiled, header, stream
from vppc.analysis.breakdown import first_tokens, makespan
from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule
from vppc.costs.model import OpCosts
from vppc.errors import InputError
from vppc.ir.document import digest, parse_segment, schedule_text, segment_text
from vppc.ir.instruction import FORWARD, WAIT
from vppc.ir.rules import check, check_stream
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import STRATEGIES, Options
from vppc.serving.batching import Limits
from vppc.serving.policy import POLICIES

LISTED = [strategy for strategy in STRATEGIES if strategy != "vpp"]


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


@given(st.sampled_from(STRATEGIES), st.integers(1, 3), st.sampled_from(POLICIES), limits(), events())
@settings(max_examples=300, deadline=None)
def test_whatever_comes_and_goes_makes_a_stream_that_is_proven_and_ends(
    strategy: str, pp: int, queue: str, bounds: Limits, story: list[Event]
) -> None:
    each = stream(strategy, pp, bounds, queue)
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
