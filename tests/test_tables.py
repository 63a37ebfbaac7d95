"""Numbers with units, and aligned tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vppc.render.tables import count, percent, seconds, signed_percent, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (-0.0, "0 s"),
        (36.0, "36 s"),
        (42252.0, "42252 s"),
        (1234.5, "1234 s"),
        (123.456, "123.5 s"),
        (12.3456, "12.35 s"),
        (1.23456, "1.235 s"),
        (9.99999, "10.00 s"),
        (0.99999, "1.000 s"),
        (0.0125, "12.50 ms"),
        (0.9, "900.0 ms"),
        (3.1e-6, "3.100 us"),
        (-3.1e-6, "-3.100 us"),
        (5e-9, "5.000 ns"),
        (2e-12, "0.002 ns"),
        (math.inf, "inf s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@given(st.floats(1e-9, 1e9))
def test_seconds_reads_back_to_four_digits(value: float) -> None:
    number, unit = seconds(value).split()
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=6e-4)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, "0.0%"), (0.086, "8.6%"), (0.0042, "0.42%"), (0.00999, "1.0%"), (1.0, "100.0%"), (-0.057, "-5.7%")],
)
def test_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.086, "+8.6%"), (-0.003, "-0.3%"), (0.0, "0.0%"), (-0.0004, "0.0%"), (0.0004, "0.0%"), (float("inf"), "+inf%")],
)
def test_signed_percent(ratio: float, text: str) -> None:
    assert signed_percent(ratio) == text


def test_count() -> None:
    assert count(24576) == "24,576"
    assert count(1, "chunk") == "1 chunk"
    assert count(0, "chunk") == "0 chunks"
    assert count(1024, "token") == "1,024 tokens"


def test_table_aligns_and_leaves_no_trailing_spaces() -> None:
    text = table(("rank", "compute", "note"), [("0", "36 s", "a"), ("1", "1234 s", "")], align="<><")
    assert text == "rank  compute  note\n----  -------  ----\n0        36 s  a\n1      1234 s"


def test_table_without_rows_or_alignment() -> None:
    assert table(("name", "n"), []) == "name  n\n----  -"
    assert table(("name", "n"), [("x", "10")]) == "name   n\n----  --\nx     10"


def test_table_refuses_ragged_rows() -> None:
    with pytest.raises(ValueError, match="zip"):
        table(("a", "b"), [("1",)])
