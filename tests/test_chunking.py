from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Model, Part, Request, Schedule
from vppc.passes.chunking import FixedChunks
from vppc.passes.prompt_batching import BatchPrompts


def schedule(*requests: Request) -> Schedule:
    return Schedule("cpp", Model("m", 8), pp=2, vp=1, requests=requests)


def prompts(*tokens: int) -> Schedule:
    return schedule(*(Request(f"r{i}", n) for i, n in enumerate(tokens)))


def parts(planned: Schedule) -> list[list[tuple[int, int, int]]]:
    return [[(part.request, part.start, part.tokens) for part in chunk.parts] for chunk in planned.chunks]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    new = draw(st.integers(1, 40))
    cached = draw(st.integers(0, 30))
    return Request("r", cached + new, cached, draw(st.sampled_from([0.0, 0.5, 1.0])))


class TestFixedChunks:
    @pytest.mark.parametrize(
        ("request_", "size", "expected"),
        [
            (Request("r", 40960), 24576, [(0, 0, 24576), (0, 24576, 16384)]),
            (Request("even", 64), 32, [(0, 0, 32), (0, 32, 32)]),
            (Request("one token", 1), 8192, [(0, 0, 1)]),
            (Request("shorter than a chunk", 7), 8, [(0, 0, 7)]),
            (Request("token by token", 3), 1, [(0, 0, 1), (0, 1, 1), (0, 2, 1)]),
            (Request("behind a prefix hit", 100, cached_tokens=30), 40, [(0, 30, 40), (0, 70, 30)]),
            (Request("all but the last token cached", 100, cached_tokens=99), 40, [(0, 99, 1)]),
        ],
        ids=lambda value: value.id if isinstance(value, Request) else None,
    )
    def test_exact(self, request_: Request, size: int, expected: list[tuple[int, int, int]]) -> None:
        assert parts(FixedChunks(size)(schedule(request_))) == [[part] for part in expected]

    def test_requests_are_planned_by_arrival_then_by_index(self) -> None:
        late, first, second = Request("late", 3, arrival=2.0), Request("first", 3), Request("second", 1)
        planned = FixedChunks(2)(schedule(late, first, second))
        assert parts(planned) == [[(1, 0, 2)], [(1, 2, 1)], [(2, 0, 1)], [(0, 0, 2)], [(0, 2, 1)]]

    def test_no_request_makes_no_chunk(self) -> None:
        assert FixedChunks(8)(schedule()).chunks == ()

    def test_changes_nothing_but_the_chunks(self) -> None:
        before = prompts(5, 9)
        after = FixedChunks(4)(before)
        assert before.chunks == ()
        assert (after.requests, after.model, after.stages) == (before.requests, before.model, before.stages)

    @given(st.lists(requests(), max_size=5), st.integers(1, 50))
    def test_parts_cover_every_prompt_in_order_in_full_chunks(self, asked: list[Request], size: int) -> None:
        planned = FixedChunks(size)(schedule(*asked))
        for index, request in enumerate(asked):
            mine = [part for chunk in planned.chunks for part in chunk.parts if part.request == index]
            assert mine[0].start == request.cached_tokens
            assert mine[-1].end == request.prompt_tokens
            assert all(part.tokens == size and part.end == after.start for part, after in pairwise(mine))
            assert 1 <= mine[-1].tokens <= size
        assert list(planned.chunk_arrivals) == sorted(planned.chunk_arrivals)

    @pytest.mark.parametrize("size", [0, -8])
    def test_a_chunk_needs_a_token(self, size: int) -> None:
        with pytest.raises(InputError) as error:
            FixedChunks(size)
        assert str(error.value) == f"chunk size is {size} tokens\n  hint: give at least 1"


class TestBatchPrompts:
    def test_merges_short_prompts_up_to_the_budget(self) -> None:
        planned = BatchPrompts(10)(FixedChunks(10)(prompts(4, 5, 1, 1, 9, 1)))
        assert parts(planned) == [[(0, 0, 4), (1, 0, 5), (2, 0, 1)], [(3, 0, 1), (4, 0, 9)], [(5, 0, 1)]]

    def test_leaves_the_chunks_of_a_longer_prompt_alone(self) -> None:
        planned = BatchPrompts(10)(FixedChunks(4)(prompts(2, 5, 2, 2)))
        assert parts(planned) == [[(0, 0, 2)], [(1, 0, 4)], [(1, 4, 1)], [(2, 0, 2), (3, 0, 2)]]

    def test_leaves_a_prompt_over_the_budget_alone(self) -> None:
        planned = BatchPrompts(3)(FixedChunks(8)(prompts(1, 8, 1, 2)))
        assert parts(planned) == [[(0, 0, 1)], [(1, 0, 8)], [(2, 0, 1), (3, 0, 2)]]

    def test_keeps_the_start_behind_a_prefix_hit(self) -> None:
        planned = BatchPrompts(8)(FixedChunks(8)(schedule(Request("a", 20, cached_tokens=17), Request("b", 5))))
        assert parts(planned) == [[(0, 17, 3), (1, 0, 5)]]

    def test_makes_no_request_wait_for_a_later_one(self) -> None:
        asked = schedule(
            Request("late", 1, arrival=0.5), Request("a", 1), Request("b", 1), Request("late too", 1, 0, 0.5)
        )
        planned = BatchPrompts(10)(FixedChunks(10)(asked))
        assert parts(planned) == [[(1, 0, 1), (2, 0, 1)], [(0, 0, 1), (3, 0, 1)]]
        assert planned.chunk_arrivals == (0.0, 0.5)

    def test_batching_twice_is_batching_once(self) -> None:
        once = BatchPrompts(10)(FixedChunks(10)(prompts(4, 5, 2, 30, 3, 3)))
        assert BatchPrompts(10)(once) == once

    @given(st.lists(requests(), max_size=8), st.integers(1, 50), st.integers(1, 90))
    def test_any_prompts(self, asked: list[Request], size: int, budget: int) -> None:
        before = FixedChunks(size)(schedule(*asked))
        after = BatchPrompts(budget)(before)
        assert [part for chunk in after.chunks for part in chunk.parts] == [p for c in before.chunks for p in c.parts]
        for chunk, arrival in zip(after.chunks, after.chunk_arrivals, strict=True):
            assert len(chunk.parts) == 1 or chunk.tokens <= budget
            assert all(asked[part.request].arrival == arrival for part in chunk.parts)
            assert len(chunk.parts) == 1 or all(whole(part, asked) for part in chunk.parts)
        for (chunk, arrival), (other, next_arrival) in pairwise(zip(after.chunks, after.chunk_arrivals, strict=True)):
            could = all(whole(part, asked) for part in (*chunk.parts, *other.parts)) and arrival == next_arrival
            first = Chunk(other.parts[:1])
            assert not could or chunk.tokens + first.tokens > budget, "two chunks could still be merged"

    def test_a_budget_needs_a_token(self) -> None:
        with pytest.raises(InputError, match="token budget is 0 tokens"):
            BatchPrompts(0)


def whole(part: Part, asked: list[Request]) -> bool:
    request = asked[part.request]
    return (part.start, part.end) == (request.cached_tokens, request.prompt_tokens)
