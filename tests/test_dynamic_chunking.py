from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.costs.model import CostModel, LayerCost, layer_seconds
from vppc.errors import InputError
from vppc.ir.schedule import Model, Part, Request, Schedule
from vppc.passes.dynamic_chunking import DcppChunks, DcppRule, Quadratic, SglangChunks, SglangRule, fit

SHARED_COST = Path(__file__).resolve().parents[2] / "shared" / "costs" / "deepseek-v3.1-910c-tp8.json"

# DeepSeek-V3.1 on Ascend 910C, TP 8, as in the cost file of that name.
DEEPSEEK = CostModel(
    (LayerCost(61, fixed=0.00234, per_token=5.196e-07, per_pair=5.50e-11, per_prefix_token=4.386e-08),)
)
LINEAR = CostModel((LayerCost(8, fixed=0.001, per_token=3e-7),), launch=0.0002)
FREE = CostModel((LayerCost(8),))
SPARSE = CostModel((LayerCost(4, 1e-3, 5e-7, 6e-11), LayerCost(40, 1e-3, 5e-7, 6e-11, 0.0, 7e-12, 2048)), launch=1e-3)


def schedule(*requests: Request, pp: int = 2) -> Schedule:
    return Schedule("dcpp", Model("m", 61), pp=pp, vp=1, requests=requests)


def sizes(policy: DcppChunks | SglangChunks, prompt: int, cached: int = 0, pp: int = 2) -> list[int]:
    return [chunk.tokens for chunk in policy(schedule(Request("r", prompt, cached), pp=pp)).chunks]


def started(policy: DcppChunks | SglangChunks) -> DcppRule | SglangRule:
    return policy.rule(policy.profile(2))


class TestFit:
    def test_finds_an_exact_quadratic(self) -> None:
        lengths = [1, 2, 5, 9]
        assert fit(lengths, [0.5 * n * n - 3.0 * n + 2.0 for n in lengths]) == Quadratic(0.5, -3.0, 2.0)

    def test_least_squares_by_hand(self) -> None:
        # of the values 0 0 0 1 at 0 1 2 3 the residuals are 1/20 times -1 3 -3 1
        model = fit([0, 1, 2, 3], [0.0, 0.0, 0.0, 1.0])
        assert (model.a, model.b, model.c) == pytest.approx((0.25, -0.45, 0.05), rel=1e-15)

    @settings(max_examples=50)
    @given(st.lists(st.floats(0, 10), min_size=5, max_size=30), st.integers(0, 40), st.integers(1, 800))
    def test_agrees_with_numpy(self, seconds: list[float], first: int, step: int) -> None:
        numpy = pytest.importorskip("numpy")
        lengths = [step * (first + i) for i in range(len(seconds))]
        ours = fit(lengths, seconds)
        scaled = numpy.array(lengths) / max(lengths)
        theirs = numpy.linalg.lstsq(numpy.vander(scaled, 3), numpy.array(seconds), rcond=None)[0]
        at = numpy.vander(scaled, 3) @ theirs
        assert [ours.growth(n) + ours.c for n in lengths] == pytest.approx(list(at), abs=1e-6)

    @pytest.mark.parametrize("lengths", [[4], [4, 4, 4], [3, 8, 8, 3]])
    def test_fewer_than_three_lengths_show_no_growth(self, lengths: list[int]) -> None:
        assert fit(lengths, [float(n) for n in lengths]) == Quadratic(0.0, 0.0, sum(lengths) / len(lengths))

    @given(st.floats(0, 1), st.floats(0, 1e-3), st.integers(3, 40_000))
    def test_a_line_has_no_quadratic_part_however_it_is_rounded(self, fixed: float, slope: float, budget: int) -> None:
        lengths = [budget * step // 64 for step in range(64, 0, -1)]
        assert fit(lengths, [fixed + slope * n for n in lengths]).a == 0

    @given(st.floats(1e-12, 1e-6), st.floats(-1e-3, 1e-3), st.integers(0, 10**6), st.floats(1e-3, 10))
    def test_solves_for_the_tokens_of_a_time(self, a: float, b: float, prefix: int, seconds: float) -> None:
        tokens = Quadratic(a, b, 0.3).tokens_within(seconds, prefix)
        assert tokens is not None
        assert tokens > 0
        terms = (a * tokens * tokens, 2 * a * prefix * tokens, abs(b) * tokens)
        assert sum(terms[:2]) + b * tokens == pytest.approx(seconds, abs=1e-9 * sum(terms))


class TestDcpp:
    @pytest.mark.parametrize(
        ("prompt", "budget", "count"), [(524288, 24576, 115), (262144, 32768, 41), (24576, 24576, 1), (24577, 24576, 2)]
    )
    def test_counts_of_the_published_rule(self, prompt: int, budget: int, count: int) -> None:
        assert len(sizes(DcppChunks(budget, DEEPSEEK), prompt)) == count

    @pytest.mark.skipif(not SHARED_COST.exists(), reason="needs the cost file beside the repository")
    def test_the_costs_here_are_the_shared_file(self) -> None:
        layers = [LayerCost(**kind) for kind in json.loads(SHARED_COST.read_text())["layers"]]
        assert DEEPSEEK.layers == tuple(layers)

    def test_exact_sizes(self) -> None:
        shrinking = [24576, 13184, 10240, 8704, 7680, 6912, 6400, 6016, 5632, 5376, 5120, 4864]
        assert sizes(DcppChunks(24576, DEEPSEEK), 131072) == [*shrinking, 4608, 4480, 4352, 4224, 4096, 4096, 512]

    def test_sparse_attention_which_no_parabola_fits(self) -> None:
        planned = sizes(DcppChunks(8192, SPARSE, page=64, min_chunk=1), 60_000)
        assert planned == [8192, 6912, 6016, 5440, 4992, 4672, 4352, 4096, 3904, 3776, 3584, 3456, 608]

    @pytest.mark.parametrize(("budget", "prefix"), [(24576, 24576), (24576, 37760), (32768, 100_000), (8192, 1_000)])
    def test_takes_as_long_as_the_budget_does_without_prefix(self, budget: int, prefix: int) -> None:
        def grown(tokens: int) -> float:  # straight from the costs, which are exactly quadratic
            whole, before = [Part(0, 0, prefix + tokens)], [Part(0, 0, prefix)]
            return layer_seconds(DEEPSEEK, 0, 61, whole) - layer_seconds(DEEPSEEK, 0, 61, before)

        fixed = 61 * 0.00234
        target = layer_seconds(DEEPSEEK, 0, 61, [Part(0, 0, budget)]) - fixed
        longest = max(n for n in range(1, budget + 1) if grown(n) <= target)
        expected = min(-(-longest // 64) * 64, budget)
        rule = started(DcppChunks(budget, DEEPSEEK, page=1, min_chunk=1))
        assert rule.next_chunk(prefix, 10**6) == expected

    def test_the_rule_starts_from_what_is_cached(self) -> None:
        policy = DcppChunks(24576, DEEPSEEK)
        assert sizes(policy, 60000, cached=24576)[:2] == [13184, 10240]
        assert sizes(policy, 60000, cached=59999) == [1]

    def test_neither_launches_nor_the_number_of_ranks_change_the_sizes(self) -> None:
        plain = sizes(DcppChunks(24576, DEEPSEEK), 200_000)
        assert sizes(DcppChunks(24576, replace(DEEPSEEK, launch=0.5)), 200_000) == plain
        assert sizes(DcppChunks(24576, DEEPSEEK), 200_000, pp=16) == plain

    def test_the_model_is_of_the_mean_stage(self) -> None:
        model = DcppChunks(24576, replace(DEEPSEEK, launch=0.01)).profile(4)
        expected = (61 / 4 * 5.5e-11 / 2, 61 / 4 * (5.196e-7 + 5.5e-11 / 2), 61 / 4 * 0.00234 + 0.01)
        assert (model.a, model.b, model.c) == pytest.approx(expected, rel=1e-9)

    def test_the_profile_has_64_lengths(self) -> None:
        lengths = [8192 - 128 * i for i in range(64)]
        seconds = [layer_seconds(SPARSE, 0, 44, [Part(0, 0, n)]) / 2 + SPARSE.launch for n in lengths]
        assert DcppChunks(8192, SPARSE).profile(2) == fit(lengths, seconds)

    def test_smoothing(self) -> None:
        full, half = (
            started(DcppChunks(24576, DEEPSEEK, page=64, smooth=s)).next_chunk(24576, 10**6) for s in (1.0, 0.5)
        )
        assert (full, half) == (13184, 18880)  # of 13156.45 and 18866.23
        assert set(sizes(DcppChunks(24576, DEEPSEEK, smooth=0.0), 10 * 24576)) == {24576}

    def test_the_smallest_chunk_is_rounded_up_too(self) -> None:
        planned = sizes(DcppChunks(24576, DEEPSEEK, min_chunk=5000), 524288)
        assert min(planned[:-1]) == 5120
        assert planned[-1] <= 5120

    @pytest.mark.parametrize("budget", [1, 2, 3, 63, 64, 100, 128, 4096])
    def test_a_budget_of_one_page_or_the_smallest_chunk_is_a_fixed_chunk(self, budget: int) -> None:
        full, rest = divmod(5000, budget)
        assert sizes(DcppChunks(budget, DEEPSEEK), 5000) == [budget] * full + [rest] * (rest > 0)

    @pytest.mark.parametrize("cost", [LINEAR, FREE], ids=["linear", "free"])
    def test_costs_without_quadratic_growth_keep_the_budget(self, cost: CostModel) -> None:
        assert sizes(DcppChunks(8192, cost), 30000) == [8192, 8192, 8192, 5424]

    @pytest.mark.parametrize("model", [Quadratic(0.0, 0.0, 1.0), Quadratic(1e-9, -1e-4, 1.0)])
    def test_a_target_that_is_not_positive_becomes_a_millisecond(self, model: Quadratic) -> None:
        rule = DcppChunks(8192, FREE).rule(model)
        assert rule.target == 1e-3
        assert rule.next_chunk(0, 30_000) == 8192

    @settings(max_examples=60)
    @given(
        st.integers(1, 40_000),
        st.integers(1, 300_000),
        st.integers(0, 100_000),
        st.sampled_from([1, 64, 100, 128, 512]),
        st.sampled_from([0.3, 0.75, 1.0]),
        st.integers(512, 9000),
        st.sampled_from([DEEPSEEK, SPARSE, LINEAR]),
    )
    def test_any_sizes(
        self, budget: int, new: int, cached: int, page: int, smooth: float, least: int, cost: CostModel
    ) -> None:
        budget = max(budget, new // 500)  # keeps the plan short
        planned = sizes(DcppChunks(budget, cost, page, smooth, least), cached + new, cached)
        page = max(page, 64)
        assert sum(planned) == new
        assert all(0 < n <= budget for n in planned)
        assert all(n % page == 0 or n == budget for n in planned[:-1])
        assert all(n >= min(least, budget) for n in planned[:-1])
        assert all(n >= after for n, after in pairwise(planned)), "chunks of a convex cost shrink"


class TestSglang:
    @pytest.mark.parametrize(("prompt", "budget", "count"), [(524288, 24576, 64), (262144, 32768, 19)])
    def test_counts(self, prompt: int, budget: int, count: int) -> None:
        assert len(sizes(SglangChunks(budget, DEEPSEEK), prompt)) == count

    def test_exact_sizes(self) -> None:
        # 24576 - 0.75 (24576 - 13156.45) = 16011.34, in pages of 128
        rule = started(SglangChunks(24576, DEEPSEEK))
        assert rule.model.tokens_within(rule.target, 24576) == pytest.approx(13156.45, abs=0.01)
        assert sizes(SglangChunks(24576, DEEPSEEK), 100_000)[:5] == [24576, 16000, 13440, 12032, 11136]

    def test_not_below_a_quarter_of_the_budget(self) -> None:
        planned = sizes(SglangChunks(24576, DEEPSEEK, smooth=1.0), 2**20)
        assert min(planned[:-1]) == 24576 // 4

    def test_rounds_down_to_pages_but_not_to_none(self) -> None:
        assert sizes(SglangChunks(1000, DEEPSEEK, page=128), 2000)[:2] == [896, 896]
        assert sizes(SglangChunks(200, DEEPSEEK, page=128), 300) == [128, 128, 44]
        assert sizes(SglangChunks(103, DEEPSEEK, page=128), 300) == [103, 103, 94]

    def test_stays_a_margin_short_of_the_context(self) -> None:
        rule = started(SglangChunks(24576, DEEPSEEK, context=32768))
        assert rule.next_chunk(24576, 8192) == (32768 - 24576 - 100) // 128 * 128
        assert rule.next_chunk(32768 - 227, 227) == 227, "no page is left: the budget"
        planned = sizes(SglangChunks(24576, DEEPSEEK, context=32768), 32768)
        assert planned == [24576, 8064, 128]

    def test_a_negative_linear_part_counts_as_none(self) -> None:
        policy = SglangChunks(8192, DEEPSEEK)
        assert policy.rule(Quadratic(1e-9, -1e-6, 0.1)) == policy.rule(Quadratic(1e-9, 0.0, 0.1))
        assert policy.rule(Quadratic(1e-9, -1e-6, 0.1)).target == pytest.approx(8192**2 * 1e-9)

    def test_a_whole_prompt(self) -> None:
        tail = [13056, 12672, 12288, 12032, 11776, 11520, 11264, 11136, 11008, 10880, 10752, 10624, 8576]
        assert sizes(SglangChunks(32768, DEEPSEEK), 262144) == [32768, 20736, 17280, 15616, 14464, 13696, *tail]

    def test_sparse_attention_which_no_parabola_fits(self) -> None:
        planned = sizes(SglangChunks(8192, SPARSE, page=64, smooth=1.0), 100_000)
        assert planned[:12] == [8192, 6976, 6144, 5568, 5184, 4800, 4544, 4288, 4096, 3904, 3712, 3584]

    @pytest.mark.parametrize("budget", [384, 1664, 2432, 8192, 24576])
    def test_rounding_costs_the_first_chunk_no_page(self, budget: int) -> None:
        assert sizes(SglangChunks(budget, DEEPSEEK), 3 * budget)[0] == budget

    @pytest.mark.parametrize("cost", [LINEAR, FREE], ids=["linear", "free"])
    def test_refuses_costs_without_quadratic_growth(self, cost: CostModel) -> None:
        with pytest.raises(InputError) as error:
            sizes(SglangChunks(8192, cost), 30000)
        assert str(error.value) == (
            "the time of a chunk does not grow quadratically (a = 0 s per token squared), "
            "so SGLang's dynamic chunks have no solution\n"
            "  hint: use a cost file with per_pair or indexer_per_pair above 0, or fixed chunks (strategy cpp)"
        )

    @pytest.mark.parametrize("budget", [1, 64, 102])
    def test_refuses_a_budget_without_128_lengths(self, budget: int) -> None:
        with pytest.raises(InputError) as error:
            sizes(SglangChunks(budget, DEEPSEEK), 30000)
        assert str(error.value) == (
            f"a chunk budget of {budget} tokens is too small for SGLang's 128 profiled lengths\n"
            "  hint: give at least 103 tokens"
        )

    def test_the_least_budget_works(self) -> None:
        assert sum(sizes(SglangChunks(103, DEEPSEEK), 1000)) == 1000

    def test_refuses_a_prompt_over_the_context(self) -> None:
        with pytest.raises(InputError) as error:
            sizes(SglangChunks(8192, DEEPSEEK, context=4096), 4097)
        assert str(error.value) == (
            "request r has 4097 tokens, more than the context of 4096\n  hint: give a longer context, or leave it out"
        )

    @settings(max_examples=60)
    @given(
        st.integers(103, 40_000),
        st.integers(1, 300_000),
        st.integers(0, 100_000),
        st.sampled_from([1, 64, 100, 128, 512]),
        st.sampled_from([0.0, 0.3, 0.75, 1.0]),
        st.sampled_from([DEEPSEEK, SPARSE]),
    )
    def test_any_sizes(self, budget: int, new: int, cached: int, page: int, smooth: float, cost: CostModel) -> None:
        budget = max(budget, new // 200)  # keeps the plan short
        planned = sizes(SglangChunks(budget, cost, page, smooth), cached + new, cached)
        page = max(page, 64)
        assert sum(planned) == new
        assert all(n % page == 0 or n == budget < page for n in planned[:-1])
        assert all(budget // 4 // page * page <= n <= budget for n in planned[:-1])
        assert all(n >= after for n, after in pairwise(planned)), "chunks of a convex cost shrink"


class TestRules:
    """What an engine measures while it serves: another model and another target in the same rules."""

    @dataclass(frozen=True)
    class Says:
        tokens: float | None

        def tokens_within(self, seconds: float, prefix: int) -> float | None:
            return None if self.tokens is None else self.tokens * seconds

    @pytest.mark.parametrize("rule", [DcppRule, SglangRule])
    def test_without_an_answer_the_budget(self, rule: type[DcppRule | SglangRule]) -> None:
        assert rule(self.Says(None), 1.0, 10_000).next_chunk(5, 30_000) == 10_000
        assert rule(self.Says(None), 1.0, 10_000).next_chunk(5, 300) == 300

    def test_the_target_is_asked_for(self) -> None:
        assert DcppRule(self.Says(1000), 7.0, 10_000).next_chunk(0, 30_000) == 7040
        assert SglangRule(self.Says(1000), 7.0, 10_000, smooth=1.0).next_chunk(0, 30_000) == 6912

    def test_a_chunk_never_exceeds_the_budget(self) -> None:
        assert DcppRule(self.Says(1000), 99.0, 10_000).next_chunk(0, 30_000) == 10_000
        assert SglangRule(self.Says(1000), 99.0, 10_000).next_chunk(0, 30_000) == 10_000
        assert SglangRule(self.Says(1000), 99.0, 10_000, context=90_000).next_chunk(0, 30_000) == 10_000

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"budget": 0}, "chunk budget is 0 tokens\n  hint: give at least 1"),
            ({"page": 0}, "page is 0 tokens\n  hint: give at least 1"),
            ({"min_chunk": 0}, "smallest chunk is 0 tokens\n  hint: give at least 1"),
            (
                {"smooth": 1.5},
                "smoothing factor 1.5 is not between 0 and 1\n  hint: 1 smooths nothing, 0 fixes the size",
            ),
            (
                {"smooth": float("nan")},
                "smoothing factor nan is not between 0 and 1\n  hint: 1 smooths nothing, 0 fixes the size",
            ),
        ],
    )
    def test_refuses(self, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            replace(DcppChunks(8192, DEEPSEEK), **wrong)(schedule(Request("r", 9)))
        assert str(error.value) == message

    def test_refuses_a_context_below_one(self) -> None:
        with pytest.raises(InputError, match="context is 0 tokens"):
            SglangChunks(8192, DEEPSEEK, context=0)(schedule())
