"""The chunk rules of serving: how the parts of a chunk share what there is, and what a rule learns from."""

from __future__ import annotations

import pytest

from tests.plans import DEEPSEEK
from vppc.costs.document import read_cost
from vppc.errors import InputError
from vppc.passes.dynamic_chunking import DcppRule, Quadratic, SglangRule
from vppc.passes.online_chunking import Batch, Calibration
from vppc.passes.strategies import Options
from vppc.serving.batching import Fixed
from vppc.serving.chunk_rules import Learning, Planned, PlannedBySglang, chunk_rule

COST = read_cost(str(DEEPSEEK))
SQUARE = Quadratic(1.0, 0.0, 0.0)
"""t(n) = n^2: behind p tokens n more take n (2 p + n)."""


def rule(target: float, budget: int = 1024, min_chunk: int = 1) -> DcppRule:
    return DcppRule(SQUARE, target, budget, page=64, min_chunk=min_chunk)


class TestPlanned:
    """A target of 320^2 = 102,400 s."""

    @pytest.fixture
    def planned(self) -> Planned:
        return Planned(rule(320.0**2))

    def test_alone_a_part_has_the_whole_time(self, planned: Planned) -> None:
        assert planned.next_chunk(0, 5000) == 320

    def test_others_use_it_up(self, planned: Planned) -> None:
        # 256^2 = 65,536 s are spent, of 102,400; 192^2 = 36,864 are left
        assert planned.next_chunk(0, 5000, [(256, 0)]) == 192
        assert planned.next_chunk(0, 100, [(256, 0)]) == 100

    def test_a_part_behind_a_prefix_uses_up_more(self, planned: Planned) -> None:
        # 64 (2 x 768 + 64) = 102,400: all of it
        assert planned.next_chunk(0, 5000, [(64, 768)]) == 0

    def test_a_little_time_is_a_whole_smallest_chunk(self) -> None:
        assert Planned(rule(320.0**2, min_chunk=256)).next_chunk(0, 5000, [(319, 0)]) == 256

    def test_without_a_model_nothing_is_added(self) -> None:
        flat = Planned(DcppRule(Quadratic(0.0, 1.0, 0.0), 100.0, 1024, page=64, min_chunk=1))
        assert flat.next_chunk(0, 5000) == 1024
        assert flat.next_chunk(0, 5000, [(10, 0)]) == 0


class TestPlannedBySglang:
    def test_others_fill_what_the_first_part_would_have_alone(self) -> None:
        sglang = PlannedBySglang(SglangRule(SQUARE, 512.0**2, 1024, page=64, smooth=1.0))
        alone = sglang.next_chunk(0, 5000)
        assert alone == 512
        assert sglang.next_chunk(0, 5000, [(100, 0), (12, 0)]) == 400
        assert sglang.next_chunk(0, 300, [(100, 0), (12, 0)]) == 300
        assert sglang.next_chunk(0, 5000, [(512, 0)]) == 0


class TestLearning:
    @pytest.fixture
    def learning(self) -> Learning:
        return Learning(Calibration(rule(320.0**2)), "wait")

    def test_a_batch_without_prefix_sets_the_target_waiting_included(self, learning: Learning) -> None:
        learning.record(Batch(((64, 0), (64, 0)), own=5.0, wait=3.0, end=9.0))
        assert learning.calibration.rule.target == 8.0
        learning.record(Batch(((64, 0), (64, 64)), own=50.0, wait=30.0, end=90.0))
        assert learning.calibration.rule.target == 8.0  # one of its parts is behind a prefix

    def test_until_all_is_learnt_a_prompt_begins_with_the_budget_while_time_is_left(self, learning: Learning) -> None:
        assert learning.next_chunk(0, 5000) == 1024
        assert learning.next_chunk(0, 5000, [(319, 0)]) == 1024
        assert learning.next_chunk(0, 5000, [(320, 0)]) == 0

    def test_the_fit_is_of_all_parts(self, learning: Learning) -> None:
        for first, second in [
            ((64, 0), (10, 0)),
            ((32, 64), (7, 0)),
            ((16, 8), (9, 5)),
            ((5, 5), (1, 0)),
            ((40, 1), (3, 3)),
        ]:
            seconds = sum(2.0 * n * (n + p) + 3.0 * (n + p) + 4.0 for n, p in (first, second))
            learning.record(Batch((first, second), own=seconds, wait=0.0, end=0.0))
        model = learning.calibration.rule.model
        assert model.growth(10, 20) == pytest.approx(2.0 * 10 * 30 + 3.0 * 30 + 4.0)
        spent = model.growth(10, 20)
        target = learning.calibration.rule.target
        assert learning.next_chunk(64, 5000, [(10, 20)]) == learning.calibration.rule.next_chunk(64, 5000, spent)
        assert spent < target


class TestStrategies:
    @pytest.mark.parametrize(
        ("options", "kind"),
        [
            (Options(strategy="cpp"), Fixed),
            (Options(strategy="vpp-packed"), Fixed),
            (Options(strategy="dcpp"), Planned),
            (Options(strategy="dcpp", measured_time="own"), Learning),
            (Options(strategy="dcpp-sglang"), PlannedBySglang),
        ],
        ids=lambda value: value.contestant if isinstance(value, Options) else value.__name__,
    )
    def test_each_has_its_rule(self, options: Options, kind: type) -> None:
        made = chunk_rule(options, COST)
        assert type(made) is kind
        assert made.next_chunk(0, 100_000) == 8192

    def test_options_that_do_not_go_together_are_refused(self) -> None:
        with pytest.raises(InputError, match="too small"):
            chunk_rule(Options(strategy="dcpp-sglang", chunk_size=50), COST)
