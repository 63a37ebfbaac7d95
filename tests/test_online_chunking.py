from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import DEEPSEEK, compiled, price
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, LayerCost, Linear, layer_seconds
from vppc.errors import InputError
from vppc.ir.schedule import Model, Part, Request, Schedule
from vppc.passes.dynamic_chunking import DcppChunks, DcppRule, Quadratic
from vppc.passes.layout import Layout
from vppc.passes.online_chunking import (
    SMALLEST_GROWTH,
    Calibration,
    HistoryModel,
    OnlineChunks,
    Sample,
    fit_history,
)

COST = read_cost(str(DEEPSEEK))
K = 1024


def sizes(
    *prompts: Request,
    budget: int,
    measured: str = "wait",
    warmups: int = 1,
    cost: CostModel = COST,
    pp: int = 2,
) -> list[int]:
    policy = OnlineChunks(DcppChunks(budget, cost), Layout("straight", 1), measured, warmups)
    served = policy(Schedule("dcpp", Model("m", cost.layer_count), pp, 1, requests=prompts))
    return [chunk.tokens for chunk in served.chunks]


class TestHistoryModel:
    def test_finds_exact_constants(self) -> None:
        a, b, c = 2.0**-30, 2.0**-20, 0.125
        chunks = [(4096, 0), (2048, 4096), (1024, 6144), (512, 7168)]
        samples = [Sample(((n, p),), a * n * (n + p) + b * (n + p) + c) for n, p in chunks]
        assert fit_history(samples) == HistoryModel(a, b, c)

    def test_a_negative_growth_is_lifted_and_the_rest_is_kept(self) -> None:
        samples = [Sample(((n, p),), 5.0 - 2.0**-30 * n * (n + p)) for n, p in [(100, 0), (50, 200), (30, 10), (7, 7)]]
        assert fit_history(samples) == HistoryModel(SMALLEST_GROWTH, 0.0, 5.0)

    def test_no_growth_at_all_is_kept(self) -> None:
        samples = [Sample(((n, p),), 5.0) for n, p in [(100, 0), (50, 200), (30, 10), (7, 7)]]
        assert fit_history(samples) == HistoryModel(0.0, 0.0, 5.0)

    @given(
        st.lists(
            st.tuples(st.integers(1, 400), st.integers(0, 2000), st.floats(0.001, 10.0)).map(
                lambda x: Sample(((x[0], x[1]),), x[2])
            ),
            min_size=1,
            max_size=12,
        )
    )
    def test_agrees_with_numpy(self, samples: list[Sample]) -> None:
        numpy = pytest.importorskip("numpy")
        rows = [[n * (n + p), n + p, 1] for s in samples for n, p in s.parts]
        matrix = numpy.array(rows, dtype=float)
        theirs = numpy.linalg.lstsq(matrix, [s.seconds for s in samples], rcond=None)[0]
        ours = fit_history(samples)
        if theirs[0] >= 0:
            at = matrix @ [ours.a, ours.b, ours.c]
            assert list(at) == pytest.approx(list(matrix @ theirs), rel=1e-5, abs=1e-5)

    @pytest.mark.parametrize(
        "samples",
        [
            [Sample(((64, 0),), 2.0)] * 5,  # one point: a line through it has no slope to find
            [Sample(((64, 64 * i),), 1.0 + i) for i in range(5)],  # equal chunks: a and b cannot be told apart
        ],
    )
    def test_of_many_fits_it_takes_numpys(self, samples: list[Sample]) -> None:
        numpy = pytest.importorskip("numpy")
        rows = [[n * (n + p), n + p, 1] for s in samples for n, p in s.parts]
        theirs = numpy.linalg.lstsq(numpy.array(rows, dtype=float), [s.seconds for s in samples], rcond=None)[0]
        ours = fit_history(samples)
        assert [ours.a, ours.b, ours.c] == pytest.approx(list(theirs), rel=1e-9)

    @given(st.floats(1e-12, 1e-6), st.floats(-1e-4, 1e-4), st.floats(-1, 1), st.integers(0, 10**6), st.floats(1e-3, 10))
    def test_solves_for_the_tokens_of_a_time(self, a: float, b: float, c: float, prefix: int, seconds: float) -> None:
        tokens = HistoryModel(a, b, c).tokens_within(seconds, prefix)
        if tokens is not None:
            assert tokens > 0
            terms = (a * tokens * (tokens + prefix), b * (tokens + prefix), c)
            assert sum(terms) == pytest.approx(seconds, abs=1e-9 * sum(map(abs, terms)) + 1e-12)

    @pytest.mark.parametrize(
        ("model", "prefix"),
        [
            (HistoryModel(0.0, 1.0, 0.0), 0),  # nothing grows
            (HistoryModel(1.0, 1.0, 5.0), 0),  # nothing is so quick
            (HistoryModel(1.0, -4.0, 9.0), 0),  # the parabola stays above
        ],
    )
    def test_says_when_it_cannot_say(self, model: HistoryModel, prefix: int) -> None:
        assert model.tokens_within(2.0, prefix) is None


class TestCalibration:
    """Chunks of pages of 64; the start-up model is t(n) = n^2, the target 100^2."""

    @pytest.fixture
    def learner(self) -> Calibration:
        return Calibration(DcppRule(Quadratic(1.0, 0.0, 0.0), 1e6, 1024, page=64, min_chunk=1))

    def test_a_prompt_starts_with_the_whole_budget_until_all_is_learnt(self, learner: Calibration) -> None:
        assert learner.next_chunk(0, 5000) == 1024
        for _ in range(31):
            assert learner.next_chunk(0, 5000) == 1024
            assert learner.next_chunk(0, 900) == 900
            learner.record(Sample(((512, 0),), 512.0**2))
        assert learner.done
        assert learner.next_chunk(0, 5000) == 512

    def test_three_batches_without_history_set_the_target(self, learner: Calibration) -> None:
        targets = []
        for seconds, prefix in [(7.0, 0), (8.0, 64), (9.0, 0), (10.0, 0), (11.0, 0)]:
            learner.record(Sample(((64, prefix),), seconds))
            targets.append(learner.rule.target)
        assert targets == [7.0, 7.0, 9.0, 10.0, 10.0]

    def test_the_fit_serves_from_five_samples_on_and_stays_after_thirty(self, learner: Calibration) -> None:
        def sample(i: int, c: float) -> Sample:
            n, p = 64 * (1 + i % 3), 64 * i
            return Sample(((n, p),), n * (n + p) + c)

        models = []
        for i in range(40):
            learner.record(sample(i, 2.0 if i < 30 else 1000.0))
            models.append(learner.rule.model)
        assert models[:4] == [learner.startup.model] * 4
        assert models[4:] == [HistoryModel(1.0, 0.0, 2.0)] * 36

    def test_each_sample_up_to_thirty_renews_the_fit(self, learner: Calibration) -> None:
        draw = random.Random(3)
        models = []
        for i in range(30):
            learner.record(Sample(((64, 64 * i * i),), draw.random()))
            models.append(learner.rule.model)
        assert all(before != after for before, after in pairwise(models[3:]))

    def test_a_batch_that_took_no_time_teaches_nothing(self, learner: Calibration) -> None:
        learner.record(Sample(((64, 0),), 0.0))
        assert (learner.samples, learner.targets, learner.rule) == ([], 0, learner.startup)


class TestEngine:
    """Whole prompts."""

    @pytest.mark.parametrize("measured", ["own", "wait"])
    def test_covers_prompts_in_order_of_arrival(self, measured: str) -> None:
        policy = OnlineChunks(DcppChunks(8192, COST), Layout("straight", 1), measured)
        prompts = (Request("late", 30_000, arrival=5.0), Request("r", 40_000, 20_000), Request("s", 1))
        chunks = policy(Schedule("dcpp", Model("m", 61), 2, 1, requests=prompts)).chunks
        parts = [part for chunk in chunks for part in chunk.parts]
        assert [p.request for p in parts] == sorted((p.request for p in parts), key=[2, 0, 1].__getitem__)
        for index, prompt in enumerate(prompts):
            mine = [p for p in parts if p.request == index]
            assert [p.start for p in mine] == [prompt.cached_tokens, *(p.end for p in mine[:-1])]
            assert mine[-1].end == prompt.prompt_tokens

    def test_the_first_updates_reach_the_third_chunk(self) -> None:
        """Two batches are in flight: before anything is measured, two chunks follow the start-up profile."""
        cold, offline = sizes(Request("r", 131072), budget=24576, warmups=0), DcppChunks(24576, COST)
        planned = offline(Schedule("dcpp", Model("m", 61), 2, 1, requests=(Request("r", 131072),))).chunks
        assert cold[:2] == [chunk.tokens for chunk in planned[:2]]
        assert cold[2] > planned[2].tokens

    def test_waiting_makes_the_target_two_stages_and_chunks_longer(self) -> None:
        counts = {
            measured: len(sizes(Request("r", 512 * K), budget=24 * K, measured=measured))
            for measured in ("own", "wait")
        }
        assert counts["wait"] < counts["own"]

    def test_on_one_rank_nothing_waits(self) -> None:
        prompt = Request("r", 65536)
        assert sizes(prompt, budget=8192, pp=1) == sizes(prompt, budget=8192, pp=1, measured="own")

    def test_an_idle_engine_does_not_count_the_time_between_prompts(self) -> None:
        """What waits is the batch, not the engine: a prompt an hour later is cut as one that comes at once."""
        first, idle = Request("a", 20_000), 1e4
        now = sizes(first, Request("b", 200_000, arrival=idle), budget=8192, warmups=0)
        hour = sizes(first, Request("b", 200_000, arrival=idle + 3600), budget=8192, warmups=0)
        assert now == hour

    def test_a_warm_up_is_an_earlier_prompt_of_the_same_length(self) -> None:
        once = Request("r", 262144)
        twice = sizes(once, replace(once, arrival=1e6), budget=32768, warmups=0)
        assert twice[len(sizes(once, budget=32768, warmups=0)) :] == sizes(once, budget=32768, warmups=1)

    def test_times_that_do_not_grow_leave_the_budget(self) -> None:
        cost = CostModel((LayerCost(4, fixed=1.0),))
        assert sizes(Request("r", 100_000), budget=16384, cost=cost) == [16384] * 6 + [1696]

    def test_no_requests(self) -> None:
        assert sizes(budget=8192) == []

    @pytest.mark.parametrize(("measured", "warmups", "named"), [("clock", 1, "clock"), ("wait", -1, "-1")])
    def test_bad_options(self, measured: str, warmups: int, named: str) -> None:
        with pytest.raises(InputError, match=named):
            sizes(Request("r", 9), budget=64, measured=measured, warmups=warmups)

    @pytest.mark.parametrize("measured", ["own", "wait"])
    @pytest.mark.parametrize("seed", range(6))
    def test_agrees_with_a_second_simulation(self, seed: int, measured: str) -> None:
        draw = random.Random(seed)
        layer = LayerCost(
            draw.randint(4, 61), draw.uniform(0, 5e-3), draw.uniform(1e-7, 1e-6), draw.uniform(1e-11, 1e-10),
            draw.uniform(0, 1e-7), collective_fixed=draw.uniform(0, 3e-3), collective_per_token=draw.uniform(0, 1e-6),
        )  # fmt: skip
        cost = CostModel((layer,), transfer=Linear(draw.uniform(0, 0.1), draw.uniform(0, 1e-6)))
        length, budget = draw.randint(40_000, 400_000), 1024 * draw.randint(4, 40)
        ours = sizes(Request("r", length), budget=budget, measured=measured, warmups=2, cost=cost)
        assert ours == second_simulation(cost, length, budget, measured, 2)


def second_simulation(cost: CostModel, length: int, budget: int, measured: str, warmups: int) -> list[int]:
    """The chunks of the last of ``warmups`` + 1 equal prompts on two ranks, written down again, on numpy's fits."""
    numpy = pytest.importorskip("numpy")
    cut = cost.layer_count // 2 + cost.layer_count % 2

    def stage(rank: int, n: int, p: int) -> float:
        return layer_seconds(cost, *((0, cut) if rank == 0 else (cut, cost.layer_count)), [Part(0, p, n)])

    grid = [budget * i / 64 for i in range(1, 65)]
    a, b, _ = numpy.polyfit(grid, [(stage(0, int(n), 0) + stage(1, int(n), 0)) / 2 for n in grid], 2)
    target, firsts = a * budget**2 + b * budget, 0
    rows: list[list[float]] = []
    fitted = None
    chunks: list[int] = []
    for _ in range(warmups + 1):
        chunks, left, right = [], [0.0], [0.0, 0.0]  # right[k + 2] is when chunk k has left rank 1
        known: list[tuple[int, int, float]] = []
        arrived = 0.0
        while sum(chunks) < length or known:
            if len(known) == 2 or sum(chunks) == length:
                n, p, took = known.pop(0)
                if p == 0 and firsts < 3:
                    target, firsts = took, firsts + 1
                rows.append([n * (n + p), n + p, 1.0, took])
                if 5 <= len(rows) <= 30:
                    table = numpy.array(rows)
                    scale = table[:, :3].max(axis=0)
                    fitted = numpy.linalg.lstsq(table[:, :3] / scale, table[:, 3], rcond=None)[0] / scale
                if sum(chunks) == length:
                    continue
            p = sum(chunks)
            if p == 0 and not (len(rows) > 30 and firsts >= 3):
                n = budget
            elif fitted is None or p == 0:
                n = (-(2 * a * p + b) + math.sqrt((2 * a * p + b) ** 2 + 4 * a * target)) / 2 / a
            else:
                x, y, z = fitted
                roots = numpy.roots([x, x * p + y, y * p + z - target])
                real = [root.real for root in roots if abs(root.imag) < 1e-12 and root.real > 0]
                n = max(real) if real and x > 0 else budget
            n = min(-(-max(int(n), 4096) // 128) * 128, budget, length - p)
            left.append(max(left[-1], right[-2]) + stage(0, n, p))
            arrived = max(arrived, left[-1]) + cost.transfer_seconds(n)
            begin = max(arrived, right[-1])
            known.append((n, p, stage(1, n, p) + (begin - right[-1] if measured == "wait" else 0.0)))
            right.append(begin + stage(1, n, p))
            chunks.append(n)
    return chunks


def test_the_strategy_takes_the_options() -> None:
    counts = {
        (measured, warmups): len(
            compiled("dcpp", (262144,), 2, COST, chunk_size=32768, measured_time=measured, warmups=warmups).chunks
        )
        for measured, warmups in (("offline", 1), ("own", 1), ("wait", 1), ("wait", 0))
    }
    assert counts == {("offline", 1): 41, ("own", 1): 43, ("wait", 1): 25, ("wait", 0): 22}


def test_of_very_many_prompts_before_those_that_teach_nothing_are_left_out() -> None:
    """Three prompts set the target, and are more batches than are fitted to."""
    learnt = [sizes(Request("r", 262144), budget=32768, warmups=warmups) for warmups in (0, 3, 100_000)]
    assert learnt[0] != learnt[1] == learnt[2]


def test_the_engines_limit_of_two_batches_in_flight_costs_little() -> None:
    """The simulated engine ends as the compiled program does, which may run further ahead, within a percent."""
    plan = compiled("dcpp", (512 * K,), 2, COST, chunk_size=24 * K, measured_time="wait")
    layers = {"rank 0": (0, 31), "rank 1": (31, 61)}
    ends = [0.0, 0.0]
    done: list[float] = []
    for index, chunk in enumerate(plan.chunks):
        begin = max(ends[0], done[index - 2] if index >= 2 else 0.0)
        ends[0] = begin + layer_seconds(COST, *layers["rank 0"], chunk.parts)
        ends[1] = max(ends[1], ends[0] + COST.transfer_seconds(chunk.tokens))
        ends[1] += layer_seconds(COST, *layers["rank 1"], chunk.parts)
        done.append(ends[1])
    assert price(plan).makespan == pytest.approx(ends[1], rel=0.01)
