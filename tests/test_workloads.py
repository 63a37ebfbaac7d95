"""Workloads: the paper's suites, and how requests come."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vppc.errors import InputError
from vppc.ir.schedule import Request
from vppc.serving.workloads import SUITES, Workload, mixed_lengths, suite

K = 1024


def workload(*arrivals: float, concurrency: int | None = None) -> Workload:
    requests = (Request(f"r{index}", 10, arrival=arrival) for index, arrival in enumerate(arrivals))
    return Workload("some", tuple(requests), concurrency)


class TestSuites:
    @pytest.mark.parametrize(
        ("name", "count", "tokens", "concurrency"),
        [
            ("short-4k", 100, 4 * K, 100),
            ("short-8k", 100, 8 * K, 100),
            ("short-16k", 100, 16 * K, 100),
            ("long-64k", 4, 64 * K, 1),
            ("long-1m", 4, 1024 * K, 1),
        ],
    )
    def test_equal_lengths(self, name: str, count: int, tokens: int, concurrency: int) -> None:
        made = suite(name)
        assert [request.prompt_tokens for request in made.requests] == [tokens] * count
        assert made.concurrency == concurrency
        assert made.tokens == count * tokens

    def test_mixed_has_what_the_paper_says(self) -> None:
        made = suite("mixed")
        lengths = sorted(request.prompt_tokens for request in made.requests)
        assert (len(lengths), made.concurrency) == (500, 16)
        assert (lengths[0], lengths[-1]) == (7, 122_710)
        assert round(fmean(lengths), -2) == 22_500
        assert median(lengths) == pytest.approx(10_000, rel=0.005)
        assert lengths[449] == pytest.approx(64_000, rel=0.015)

    def test_the_seed_orders_mixed_and_nothing_else(self) -> None:
        one, other = suite("mixed", 1), suite("mixed", 2)
        assert suite("mixed", 1) == one
        assert [r.prompt_tokens for r in one.requests] != [r.prompt_tokens for r in other.requests]
        assert sorted(r.prompt_tokens for r in one.requests) == sorted(r.prompt_tokens for r in other.requests)
        assert suite("short-4k", 1) == suite("short-4k", 2)

    @pytest.mark.parametrize("name", SUITES)
    def test_ids_differ(self, name: str) -> None:
        requests = suite(name).requests
        assert len({request.id for request in requests}) == len(requests)

    def test_an_unknown_suite_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"unknown suite 'long'") as error:
            suite("long")
        assert "long-64k" in error.value.remedy


@given(st.integers(2, 3000))
def test_mixed_lengths_ascend_between_the_ends(count: int) -> None:
    lengths = mixed_lengths(count)
    assert len(lengths) == count
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (7, 122_710)


def test_one_length_has_no_ends() -> None:
    with pytest.raises(InputError, match="1 requests"):
        mixed_lengths(1)


class TestPace:
    def test_a_trace_keeps_its_pattern(self) -> None:
        paced = workload(3.0, 4.0, 7.0).paced(0.5, seed=0)
        assert [request.arrival for request in paced.requests] == [0.0, 1.0, 4.0]

    def test_what_would_come_at_once_comes_at_random(self) -> None:
        paced = workload(*[0.0] * 4000).paced(2.0, seed=3)
        arrivals = [request.arrival for request in paced.requests]
        gaps = [after - before for before, after in pairwise(arrivals)]
        assert arrivals[0] == 0.0
        assert min(gaps) >= 0.0
        assert fmean(gaps) == pytest.approx(0.5, rel=0.05)
        assert fmean(gap * gap for gap in gaps) == pytest.approx(2 * 0.5**2, rel=0.1)  # exponential

    def test_a_closed_loop_opens(self) -> None:
        paced = workload(0.0, 5.0, 9.0, concurrency=2).paced(1.0, seed=0)
        assert paced.concurrency is None
        assert [request.arrival for request in paced.requests] != [0.0, 5.0, 9.0]

    def test_the_seed_decides(self) -> None:
        base = workload(0.0, 0.0, 0.0)
        assert base.paced(1.0, seed=1) == base.paced(1.0, seed=1) != base.paced(1.0, seed=2)

    @pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
    def test_a_rate_is_positive(self, rate: float) -> None:
        with pytest.raises(InputError, match="requests a second"):
            workload(0.0).paced(rate, seed=0)


def test_there_are_requests_and_users() -> None:
    with pytest.raises(InputError, match="no requests"):
        Workload("none", ())
    with pytest.raises(InputError, match="concurrency of 0"):
        workload(0.0, concurrency=0)
