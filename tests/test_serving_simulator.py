"""The serving simulator, held against two others: the compiler with the timing of its programs, and a brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.plans import DEEPSEEK
from vppc.analysis.order_timeline import timeline
from vppc.analysis.report import predict
from vppc.compiler import compile_schedule, run_passes
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts, layer_seconds
from vppc.errors import InputError
from vppc.ir.schedule import Model, Part, Request, Schedule
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.dynamic_chunking import DcppChunks
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.layout import Layout
from vppc.passes.online_chunking import OnlineChunks
from vppc.passes.planned import PlannedOrder
from vppc.passes.strategies import Options, layout_of
from vppc.serving.simulate import ServedRun, Setting, serve
from vppc.serving.workloads import STAGGER, Workload, mixed_lengths, suite

K = 1024
COST = read_cost(str(DEEPSEEK))
MIXED = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(mixed_lengths(24)[::-5]))


def run(
    workload: Workload | Sequence[Request], cost: CostModel = COST, *, fill: bool = True, **options: object
) -> ServedRun:
    if not isinstance(workload, Workload):
        workload = Workload("some", tuple(workload))
    return serve(workload, Setting(cost, Options(**options), fill=fill))  # type: ignore[arg-type]


def first_tokens(served: ServedRun) -> dict[str, float]:
    """When each request has its first token, by its id."""
    stages = len(served.schedule.stages)
    return {
        served.schedule.requests[part.request].id: served.timeline.ends[(chunk + 1) * stages - 1]
        for chunk, each in enumerate(served.schedule.chunks)
        for part in each.parts
        if part.end == served.schedule.requests[part.request].prompt_tokens
    }


class TestBesideTheCompiler:
    """All that was there from the start, compiled, proven, and timed instruction by instruction."""

    @pytest.mark.parametrize("pp", [2, 3, 4])
    @pytest.mark.parametrize("strategy", ["cpp", "dcpp", "dcpp-sglang", "vpp", "vpp-async", "vpp-packed"])
    def test_a_list_at_time_0(self, strategy: str, pp: int) -> None:
        options = Options(strategy=strategy, pp=pp, chunk_size=8 * K, token_budget=8 * K)
        planned = compile_schedule(MIXED, Model("m", COST.layer_count), COST, options)
        room = 1000 if strategy in ("cpp", "dcpp", "dcpp-sglang") else None  # a compiled straight pipeline has no limit
        served = run(MIXED, strategy=strategy, pp=pp, chunk_size=8 * K, max_in_flight=room, fill=False)
        assert [chunk.tokens for chunk in served.schedule.chunks] == [chunk.tokens for chunk in planned.chunks]
        theirs = predict(planned, COST)
        assert served.report(COST).makespan == pytest.approx(theirs.makespan, rel=1e-9)
        assert sorted(first_tokens(served).values()) == pytest.approx(sorted(t or 0.0 for t in theirs.ttft), rel=1e-9)

    @pytest.mark.parametrize("pp", [2, 4])
    def test_one_prompt_with_as_many_chunks_in_flight(self, pp: int) -> None:
        """By default 3 pp for vpp-packed, here and there: with 2 pp - 1 it takes longer, in both."""
        prompt = (Request("a", 512 * K),)
        for limit in (None, 3 * pp, 2 * pp - 1):
            options = Options(strategy="vpp-packed", pp=pp, chunk_size=8 * K, max_in_flight=limit)
            planned = predict(compile_schedule(prompt, Model("m", COST.layer_count), COST, options), COST).makespan
            served = run(prompt, strategy="vpp-packed", pp=pp, chunk_size=8 * K, max_in_flight=limit)
            assert served.report(COST).makespan == pytest.approx(planned, rel=1e-12)

    @pytest.mark.parametrize("strategy", ["cpp", "vpp-packed"])
    def test_balanced_layers_are_those_of_the_compiler(self, strategy: str) -> None:
        options = Options(strategy=strategy, pp=4, chunk_size=8 * K, split="balanced")
        planned = compile_schedule(MIXED, Model("m", COST.layer_count), COST, options)
        served = run(MIXED, strategy=strategy, pp=4, chunk_size=8 * K, split="balanced")
        assert served.schedule.stages == planned.stages
        assert served.schedule.stages != run(MIXED, strategy=strategy, pp=4, chunk_size=8 * K).schedule.stages

    @pytest.mark.parametrize("strategy", ["cpp", "vpp-packed"])
    def test_its_order_as_programs_takes_as_long(self, strategy: str) -> None:
        requests = [replace(request, arrival=0.7 * index) for index, request in enumerate(MIXED)]
        served = run(
            requests, strategy=strategy, pp=2, chunk_size=8 * K, max_in_flight=1000 if strategy == "cpp" else 5
        )
        bare = replace(served.schedule, order=None)
        steps = (PlannedOrder(served.order), InsertTransfers(COST), AllocateBuffers(COST))
        theirs = predict(run_passes(bare, steps, COST), COST)
        assert served.report(COST).makespan == pytest.approx(theirs.makespan, rel=1e-9)
        mine = first_tokens(served)
        ttft = [mine[request.id] - request.arrival for request in served.schedule.requests]
        assert ttft == pytest.approx([t or 0.0 for t in theirs.ttft], rel=1e-9)

    def test_its_times_are_those_of_its_order(self) -> None:
        served = run(suite("mixed").paced(0.3, 1), strategy="vpp-packed", pp=2, chunk_size=16 * K)
        again = timeline(served.schedule, OpCosts.of(served.schedule, COST), served.order)
        assert served.timeline.starts == again.starts
        assert served.timeline.ends == again.ends
        assert served.timeline.arrivals == again.arrivals

    @pytest.mark.parametrize("warmups", [0, 1, 2])
    @pytest.mark.parametrize("measured", ["own", "wait"])
    def test_one_prompt_is_cut_as_the_online_pass_cuts_it(self, measured: str, warmups: int) -> None:
        prompt = Request("r0", 256 * K)
        policy = OnlineChunks(DcppChunks(24 * K, COST), Layout("straight", 1), measured, warmups)
        planned = policy(Schedule("dcpp", Model("m", COST.layer_count), 2, 1, requests=(prompt,)))
        served = run(
            [prompt], strategy="dcpp", pp=2, chunk_size=24 * K, measured_time=measured, warmups=warmups
        )  # one prompt leaves nothing to fill with
        assert [chunk.tokens for chunk in served.schedule.chunks] == [chunk.tokens for chunk in planned.chunks]


# Brute force: at every moment at which something may happen, every rank looks at everything.

EXACT = CostModel(
    (LayerCost(12, fixed=0.25, per_token=0.125, per_pair=2.0**-5, per_prefix_token=2.0**-4),),
    transfer=Linear(0.125, 0.125),
    launch=0.25,
)
"""Costs that floats add exactly."""


def by_force(
    requests: Sequence[Request], header: Schedule, size: int, limit: int, *, fill: bool
) -> tuple[list[list[tuple[str, int, int]]], dict[tuple[int, int], float]]:
    """First come, first served, early stages first: the parts of every chunk, and when each (chunk, stage) starts."""
    ranks = header.stage_ranks
    queue = sorted(([request, request.cached_tokens] for request in requests), key=lambda each: each[0].arrival)
    chunks: list[list[tuple[str, int, int]]] = []
    starts: dict[tuple[int, int], float] = {}
    ready: dict[tuple[int, int], float] = {}
    left_at: dict[int, float] = {}
    free = dict.fromkeys(range(header.pp), 0.0)
    channel: dict[tuple[int, int], float] = {}
    moments = {request.arrival for request in requests}
    for _ in count():
        if not moments:
            return chunks, starts
        now = min(moments)
        moments.remove(now)
        for rank in range(header.pp):
            if free[rank] > now:
                continue
            for stage in header.rank_stages[rank]:
                if stage == 0:
                    inside = sum(left_at.get(chunk, now + 1) > now for chunk in range(len(chunks)))
                    parts = _next_parts(queue, now, size, fill) if inside < limit else []
                    if not parts:
                        continue
                    chunk = len(chunks)
                    chunks.append(parts)
                else:
                    chunk = sum(done == stage for _, done in starts)
                    if ready.get((chunk, stage), now + 1) > now:
                        continue
                tokens = [Part(0, start, n) for _, start, n in chunks[chunk]]
                starts[chunk, stage] = now
                seconds = layer_seconds(EXACT, *header.stages[stage].layers, tokens) + EXACT.launch
                end = free[rank] = now + seconds
                moments.add(end)
                if stage + 1 == len(ranks):
                    left_at[chunk] = end
                elif ranks[stage + 1] == rank:
                    ready[chunk, stage + 1] = end
                else:
                    way = rank, ranks[stage + 1]
                    there = max(end, channel.get(way, 0.0)) + EXACT.transfer_seconds(sum(p.tokens for p in tokens))
                    ready[chunk, stage + 1] = channel[way] = there
                    moments.add(there)
                break
    raise AssertionError


def _next_parts(queue: list[list[Request | int]], now: float, size: int, fill: bool) -> list[tuple[str, int, int]]:
    parts: list[tuple[str, int, int]] = []
    for waiting in queue:
        request, covered = waiting
        assert isinstance(request, Request) and isinstance(covered, int)
        left = request.prompt_tokens - covered
        room = size - sum(n for _, _, n in parts)
        if not left:
            continue
        if request.arrival > now or not room:
            break
        whole = covered == request.cached_tokens and left <= room
        if not fill and parts and not whole:
            break
        parts.append((request.id, covered, min(left, room)))
        waiting[1] = covered + min(left, room)
        if not fill and not whole:
            break
    return parts


@given(
    prompts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(0, 160)), min_size=1, max_size=8),
    placement=st.sampled_from(["straight", "v", "zigzag", "loop"]),
    pp=st.integers(1, 3),
    size=st.integers(1, 6),
    limit=st.integers(1, 5),
    fill=st.booleans(),
)
@example(prompts=[(5, 0, 0), (3, 0, 0), (9, 2, 8)], placement="v", pp=2, size=4, limit=3, fill=True)
def test_brute_force_runs_the_same(
    prompts: list[tuple[int, int, int]], placement: str, pp: int, size: int, limit: int, fill: bool
) -> None:
    requests = [
        Request(f"r{index}", cached + tokens, cached, eighths / 8)
        for index, (tokens, cached, eighths) in enumerate(prompts)
    ]
    strategy = "cpp" if placement == "straight" else "vpp-packed"
    options = Options(strategy=strategy, pp=pp, placement=placement, chunk_size=size, max_in_flight=limit)
    setting = Setting(EXACT, options, "dual-queue", fill=fill)  # it finishes nobody out of turn
    served = serve(Workload("some", tuple(requests)), setting)
    _, vp, _ = layout_of(options)
    header = Layout(placement, vp)(Schedule(strategy, Model("m", 12), pp, 1))
    chunks, starts = by_force(requests, header, size, limit, fill=fill)
    ids = [request.id for request in served.schedule.requests]
    assert [[(ids[p.request], p.start, p.tokens) for p in c.parts] for c in served.schedule.chunks] == chunks
    stages = len(header.stages)
    assert {divmod(op, stages): start for op, start in enumerate(served.timeline.starts)} == starts


@pytest.fixture(scope="module")
def served() -> ServedRun:
    return run(suite("mixed"), strategy="vpp-packed", pp=2, chunk_size=16 * K)


class TestClosedLoop:
    def test_the_users_start_one_after_another(self, served: ServedRun) -> None:
        arrivals = sorted(request.arrival for request in served.schedule.requests)
        assert arrivals[:16] == [user * STAGGER for user in range(16)]

    def test_every_later_request_comes_with_a_first_token(self, served: ServedRun) -> None:
        arrivals = sorted(request.arrival for request in served.schedule.requests)
        made = sorted(first_tokens(served).values())
        assert arrivals[16:] == made[: 500 - 16]

    def test_so_there_are_never_more_than_users(self, served: ServedRun) -> None:
        report = served.report(COST)
        assert 15.5 < report.depth <= 16.0
        assert report.requests == 500

    def test_of_one_user_the_next_request_waits_for_the_last(self) -> None:
        served = run(replace(suite("short-4k"), concurrency=1), strategy="vpp-packed", pp=2, chunk_size=4 * K)
        report = served.report(COST)
        assert report.depth == pytest.approx(1.0)
        assert report.queueing.longest == 0.0
        alone = run([Request("r", 4 * K)], strategy="vpp-packed", pp=2, chunk_size=4 * K).report(COST).makespan
        assert report.makespan == pytest.approx(100 * alone)


class TestTraces:
    def test_everybody_is_served_once(self) -> None:
        served = run(suite("mixed").paced(0.4, 2), strategy="dcpp", measured_time="wait", pp=2, chunk_size=8 * K)
        covered = dict.fromkeys((request.id for request in served.schedule.requests), 0)
        for chunk in served.schedule.chunks:
            assert chunk.tokens <= 8 * K
            for part in chunk.parts:
                request = served.schedule.requests[part.request]
                assert part.start == covered[request.id]
                covered[request.id] = part.end
        assert covered == {request.id: request.prompt_tokens for request in served.schedule.requests}
        assert len(covered) == 500

    def test_nobody_starts_before_it_comes(self) -> None:
        served = run(suite("mixed").paced(0.4, 2), strategy="vpp-packed", pp=2, chunk_size=8 * K)
        stages = len(served.schedule.stages)
        for chunk, arrival in enumerate(served.schedule.chunk_arrivals):
            assert served.timeline.starts[chunk * stages] >= arrival

    def test_the_shortest_first_is_quicker_on_average(self) -> None:
        workload = suite("mixed").paced(0.45, 2)
        options = Options(strategy="cpp", pp=2, chunk_size=8 * K)
        mean = {name: serve(workload, Setting(COST, options, name)).report(COST).ttft.mean for name in ("fcfs", "srpf")}
        assert mean["srpf"] < 0.8 * mean["fcfs"]

    def test_resident_tokens_stay_within_their_limit(self) -> None:
        limit = 150_000
        served = run(suite("mixed"), strategy="vpp-packed", pp=2, chunk_size=8 * K, max_resident_tokens=limit)
        stages, requests = len(served.schedule.stages), served.schedule.requests
        changes = []
        for chunk, each in enumerate(served.schedule.chunks):
            for part in each.parts:
                tokens = requests[part.request].prompt_tokens
                if part.start == 0:
                    changes.append((served.timeline.starts[chunk * stages], tokens))
                if part.end == tokens:
                    changes.append((served.timeline.ends[(chunk + 1) * stages - 1], -tokens))
        resident = peak = 0
        for _, change in sorted(changes):
            resident += change
            peak = max(peak, resident)
        assert 100_000 < peak <= limit

    def test_a_prompt_that_can_never_be_resident_is_refused(self) -> None:
        with pytest.raises(InputError, match="100000 may be resident"):
            run(suite("mixed"), strategy="vpp-packed", pp=2, chunk_size=8 * K, max_resident_tokens=100_000)


class TestFilling:
    def test_a_chunk_holds_the_end_of_one_prompt_and_the_start_of_the_next(self) -> None:
        prompts = [Request("a", 10), Request("b", 7)]
        served = run(prompts, EXACT, strategy="cpp", pp=2, chunk_size=6)
        parts = [[(p.request, p.start, p.tokens) for p in chunk.parts] for chunk in served.schedule.chunks]
        assert parts == [[(0, 0, 6)], [(0, 6, 4), (1, 0, 2)], [(1, 2, 5)]]

    def test_without_it_only_whole_prompts_share(self) -> None:
        prompts = [Request("a", 10), Request("b", 2), Request("c", 3), Request("d", 2)]
        served = run(prompts, EXACT, strategy="cpp", pp=2, chunk_size=6, fill=False)
        parts = [[(p.request, p.start, p.tokens) for p in chunk.parts] for chunk in served.schedule.chunks]
        assert parts == [[(0, 0, 6)], [(0, 6, 4)], [(1, 0, 2), (2, 0, 3)], [(3, 0, 2)]]

    def test_a_barrier_lets_no_next_prompt_in(self) -> None:
        served = run([Request("a", 10), Request("b", 7)], EXACT, strategy="vpp-async", pp=2, chunk_size=6)
        assert [len(chunk.parts) for chunk in served.schedule.chunks] == [1, 1, 1, 1]


def test_what_a_small_first_batch_teaches_stays() -> None:
    """Of requests that come one by one the first is alone; its time becomes the target, and batches stay small."""
    at_once = Workload("at once", suite("short-4k").requests)
    sizes = {}
    for name, workload in (("at once", at_once), ("one by one", suite("short-4k"))):
        served = run(workload, strategy="dcpp", measured_time="wait", warmups=0, pp=2, chunk_size=32 * K)
        sizes[name] = fmean(chunk.tokens for chunk in served.schedule.chunks)
    assert sizes["at once"] > 30 * K
    assert sizes["one by one"] < 22 * K
