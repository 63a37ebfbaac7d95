"""Replicas with experts in common run the same stages in the same order, whatever each has in its batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.vllm_plugin.order import batch_compiler
from runtime.vllm_plugin.settings import Fold, read_settings
from runtime.vllm_plugin.traffic import Traffic
from vppc.ir.instruction import FORWARD
from vppc.ir.rules import check
from vppc.ir.segment import Segment
from vppc.ir.stream import extend

LAYERS = 8
DEPTH = 3


def config(pp: int, replicas: int) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=pp, data_parallel_size=replicas),
        model_config=SimpleNamespace(model="tiny", get_total_num_hidden_layers=lambda: LAYERS),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=4096),
    )


def output(number: int, tokens: int | None) -> Any:
    """What vLLM's scheduler says of a batch that is a whole prompt, or nobody's."""
    new = SimpleNamespace(req_id=str(number), prompt_token_ids=[1] * (tokens or 0), num_computed_tokens=0)
    return SimpleNamespace(
        finished_req_ids={str(number - 1)} if tokens else set(),
        scheduled_new_reqs=[new] if tokens else [],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], num_output_tokens=[]),
        num_scheduled_tokens={str(number): tokens} if tokens else {},
        total_num_scheduled_tokens=tokens or 1,
    )


def forwards(pp: int, replicas: int, calls: list[bool], batches: list[int | None]) -> list[list[tuple[int, int]]]:
    """By rank the chunk and stage of each FORWARD, of an engine that enters a batch (true), or waits for the oldest."""
    settings = read_settings({"virtual_pipeline_parallel_size": 2, "vppc": {"max_in_flight": DEPTH}})
    assert isinstance(settings, Fold)
    compiler, traffic = batch_compiler(settings, config(pp, replicas)), Traffic()
    segments: list[Segment] = []
    entered = gone = 0
    for enters in calls:
        if enters and entered - gone < DEPTH:
            entry = traffic.entry(output(entered, batches[entered]))
            assert entry is not None
            legs = compiler.enter(entry)
            entered += 1
        elif gone < entered:
            legs = [compiler.leave()]
        else:
            continue
        gone += sum(leg.leaves is not None for leg in legs)
        segments += [leg.segment for leg in legs]
    last = compiler.close()
    segments += [last] if last is not None else []
    schedule = compiler.opening
    for segment in segments:
        schedule = extend(schedule, segment)
    assert check(schedule) == ()
    return [[(row[1], row[2]) for row in program.rows() if row[0] == FORWARD] for program in schedule.programs]


CALLS = st.lists(st.booleans(), min_size=1, max_size=24)
BATCHES = st.lists(st.none() | st.integers(1, 4096), min_size=24, max_size=24)


@pytest.mark.parametrize("pp", [2, 3])
@given(CALLS, BATCHES, BATCHES)
def test_the_same_calls_make_the_same_order(
    pp: int, calls: list[bool], one: list[int | None], other: list[int | None]
) -> None:
    """A dummy batch among them, which passes through all stages, as every chunk does."""
    ran = forwards(pp, 2, calls, one)
    assert ran == forwards(pp, 2, calls, other)
    chunks = {chunk for chunk, _ in ran[0]}
    for rank, order in enumerate(ran):
        assert sorted(order) == sorted((chunk, stage) for chunk in chunks for stage in (rank, 2 * pp - 1 - rank))


def test_without_replicas_the_order_goes_by_what_is_in_the_chunks() -> None:
    """Or the test above could not fail."""
    calls = [True] * 8
    small, mixed = [16] * 8, [4096, 16, 16, 4096, 16, 16, 4096, 16]
    assert forwards(2, 1, calls, [*small]) != forwards(2, 1, calls, [*mixed])


def test_nobodys_batch_is_one_request_that_ends_with_it() -> None:
    traffic = Traffic()
    first, second = (traffic.entry(output(0, None)) for _ in range(2))
    assert first is not None and second is not None
    assert [(request.id, request.prompt_tokens) for request in (*first.requests, *second.requests)] == [("", 1)] * 2
    assert [(part.request, part.tokens, part.decode) for part in second.chunk.parts] == [(1, 1, False)]
    assert (list(first.cancelled), list(second.cancelled)) == ([], [0])
