"""What the example costs say of the paper's figures 3 and 5; bounds are what is claimed in docs/serving.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.paper.deepseek import costs, paper
from examples.paper.figures import Figure
from examples.paper.priors import by_roofline
from examples.paper.serving import SHORT, dcpp, entry, figure_3, figure_5, first_batch, over, vpp
from vppc.serving.workloads import suite

SHARED = Path(__file__).resolve().parents[2] / "shared" / "paper_numbers.json"


def ours(figures: list[Figure], what: str) -> float:
    (found,) = [figure for figure in figures if figure.what == what]
    return found.ours


class TestFigure5:
    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_over_cpp_it_is_within_1_5_points(self, share: float) -> None:
        (figure,) = [each for each in figure_5(costs(share)) if each.what == "VPP over CPP"]
        assert figure.paper == 0.138
        assert figure.error is not None
        assert abs(figure.error) < 0.015

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_over_dcpp_the_paper_lies_between_its_ways(self, share: float) -> None:
        gains = [each.ours for each in figure_5(costs(share)) if "DCPP" in each.what]
        assert 0.015 < min(gains) < 0.067 < max(gains) < 0.09

    def test_most_of_it_is_the_third_batch_in_flight(self) -> None:
        cost = costs(1.0)
        three = entry(cost, "mixed", "cpp", max_in_flight=3)
        base = entry(cost, "mixed", "cpp")
        whole = over(vpp(cost, "mixed"), base)
        assert over(three, base) > 0.85 * whole
        assert 0.0 < over(vpp(cost, "mixed"), three) < 0.02

    def test_with_one_request_at_a_time_it_is_the_v(self) -> None:
        cost, workload = costs(1.0), replace(suite("mixed"), concurrency=1)
        base = entry(cost, workload, "cpp")
        assert over(entry(cost, workload, "cpp", max_in_flight=3), base) == 0.0  # the same, not about the same
        assert over(vpp(cost, workload), base) == pytest.approx(0.058, abs=0.002)


class TestFigure3:
    @pytest.mark.parametrize(("share", "points"), [(0.0, 0.01), (1.0, 0.03)])
    def test_over_dcpp_at_4k_it_is_near_the_papers_and_less_at_longer_prompts(
        self, share: float, points: float
    ) -> None:
        figures = figure_3(costs(share))
        gains = [ours(figures, f"VPP over DCPP (wait, cold), {name}") for name in SHORT]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] == pytest.approx(0.108, abs=points)

    def test_the_plan_of_the_start_up_profile_is_as_quick_as_cpp(self) -> None:
        cost = costs(1.0)
        for name in SHORT:
            assert over(dcpp(cost, name, "offline"), entry(cost, name, "cpp")) == pytest.approx(0.0, abs=1e-9)

    def test_a_small_first_batch_is_the_reason(self) -> None:
        apart, at_once = first_batch(costs(1.0)).splitlines()[3::2]
        assert apart.split() == ["1", "ms", "apart", "wait,", "cold", "51", "26", "21", "20", "+7.9%"]
        assert at_once.split() == ["at", "once", "wait,", "cold", "50", "25", "17", "13", "+4.3%"]


class TestQwen:
    def gains(self, launch: float) -> dict[str, float]:
        cost = replace(by_roofline("qwen3-coder-30b-a3b"), launch=launch)
        return {name: over(vpp(cost, name), entry(cost, name, "cpp")) for name in (*SHORT, "mixed")}

    def test_without_launches_to_speak_of_it_loses_nothing(self) -> None:
        assert min(self.gains(0.001).values()) > 0

    def test_with_20_ms_a_forward_it_loses_on_short_prompts_what_the_paper_has_and_gains_on_mixed(self) -> None:
        gains = self.gains(0.020)
        printed = paper()
        worst = printed["figure_3"]["qwen"]["vpp_over_cpp_at_least"]
        assert min(gains[name] for name in SHORT) == pytest.approx(worst, abs=0.005)
        assert max(gains[name] for name in SHORT) < -0.05
        assert gains["mixed"] == pytest.approx(printed["figure_5"]["qwen"]["vpp_over_cpp"], abs=0.005)


class TestGlm:
    def test_with_a_fifth_of_the_indexer_it_is_as_in_the_paper(self) -> None:
        model = by_roofline("glm-5.2")
        layers = tuple(replace(kind, indexer_per_pair=0.2 * kind.indexer_per_pair) for kind in model.layers)
        cost = replace(model, layers=layers)
        low, high = paper()["figure_5"]["glm"]["vpp_over_cpp"]
        for other in (entry(cost, "mixed", "cpp"), dcpp(cost, "mixed", "wait")):
            assert low <= round(over(vpp(cost, "mixed"), other), 3) <= high
        for name in SHORT:
            assert abs(over(vpp(cost, name), entry(cost, name, "cpp"))) < 0.01


@pytest.mark.skipif(not SHARED.exists(), reason="needs the paper's figures beside the repository")
def test_the_papers_figures_are_as_read_off_it() -> None:
    read = json.loads(SHARED.read_text())["mixed_500_requests_concurrency_16_throughput_pct"]
    printed = paper()["figure_5"]
    for name in ("qwen", "deepseek"):
        assert 100 * printed[name]["vpp_over_cpp"] == pytest.approx(read["over_cpp"][name])
        assert 100 * printed[name]["vpp_over_dcpp"] == pytest.approx(read["over_dcpp"][name])
