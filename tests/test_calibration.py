"""Costs from measurements: known constants come back, what data cannot tell is said, what is no cost is refused."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vppc.cli import vppc
from vppc.costs.calibration import Calibration, Constant, Fit, calibrate
from vppc.costs.document import cost_json, read_cost
from vppc.costs.least_squares import independent, inverse_diagonal, nonnegative, normal_equations, solve
from vppc.costs.measurements import Reading, read_tables
from vppc.costs.model import CostModel, LayerCost, Linear, layer_seconds, pairs
from vppc.costs.robust import median, robust_fit
from vppc.costs.samples import Forward, Head, Layers, Measurements, Transfer, forward
from vppc.errors import CheckFailed, InputError, VppcError
from vppc.ir.schedule import Part
from vppc.render.calibration import calibration_text

SHARED = Path(__file__).resolve().parents[2] / "shared"
MEASURED = SHARED / "measurements"
needs_measurements = pytest.mark.skipif(not MEASURED.is_dir(), reason="shared/measurements is not here")
needs_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")

TRUE = LayerCost(1, fixed=2.4e-3, per_token=5.2e-7, per_pair=5.5e-11, per_prefix_token=4.4e-8)
SIZES = (2048, 4096, 8192, 12288, 16384, 24576, 32768)
PREFIXES = (0, 4096, 16384, 49152, 98304, 196608, 393216)


# Least squares


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    """Columns and values in small whole numbers, where ties and dependent columns are common."""
    rows, unknowns = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    number = st.integers(-3, 3).map(float)
    vector = st.lists(number, min_size=rows, max_size=rows)
    return draw(st.lists(vector, min_size=unknowns, max_size=unknowns)), draw(vector)


def squares(columns: Sequence[Sequence[float]], x: Sequence[float], values: Sequence[float]) -> float:
    return sum(
        (sum(c * a for c, a in zip(row, x, strict=True)) - b) ** 2
        for row, b in zip(zip(*columns, strict=True), values, strict=True)
    )


@given(problems())
def test_nonnegative_solutions_meet_the_conditions_of_karush_kuhn_and_tucker(
    problem: tuple[list[list[float]], list[float]],
) -> None:
    columns, values = problem
    equations = normal_equations(columns, values)
    assume(len(independent(equations.gram)) == len(columns))
    x = equations.unscaled(nonnegative(equations.gram, equations.moments))
    rest = [
        b - sum(c * a for c, a in zip(row, x, strict=True))
        for row, b in zip(zip(*columns, strict=True), values, strict=True)
    ]
    for column, value in zip(columns, x, strict=True):
        slope = sum(c * r for c, r in zip(column, rest, strict=True))
        assert value >= 0.0
        assert slope <= 1e-7
        assert value == 0.0 or abs(slope) <= 1e-7


@needs_numpy
@given(problems())
@settings(max_examples=60)
def test_no_set_of_active_constraints_is_better(problem: tuple[list[list[float]], list[float]]) -> None:
    import numpy as np

    columns, values = problem
    equations = normal_equations(columns, values)
    assume(len(independent(equations.gram)) == len(columns))
    found = squares(columns, equations.unscaled(nonnegative(equations.gram, equations.moments)), values)
    matrix, best = np.array(columns).T, sum(b * b for b in values)
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(range(len(columns)), size):
            x = np.linalg.lstsq(matrix[:, chosen], np.array(values), rcond=None)[0]
            if (x >= 0.0).all():
                best = min(best, float(((matrix[:, chosen] @ x - np.array(values)) ** 2).sum()))
    assert found == pytest.approx(best, abs=1e-8)


@needs_numpy
@given(problems())
@settings(max_examples=60)
def test_free_solutions_and_variances_are_numpys(problem: tuple[list[list[float]], list[float]]) -> None:
    import numpy as np

    columns, values = problem
    equations = normal_equations(columns, values)
    known = independent(equations.gram)
    matrix = np.array(columns).T
    assert len(known) == np.linalg.matrix_rank(matrix)
    assume(known)
    x = [0.0] * len(columns)
    for place, value in zip(known, solve(equations.gram, equations.moments, known), strict=True):
        x[place] = value
    best = np.linalg.lstsq(matrix, np.array(values), rcond=None)[0]
    assert squares(columns, equations.unscaled(x), values) == pytest.approx(squares(columns, best, values), abs=1e-8)
    inverse = np.linalg.inv(matrix[:, known].T @ matrix[:, known]).diagonal()
    ours = inverse_diagonal(equations.gram, known)
    assert [v / equations.norms[k] ** 2 for v, k in zip(ours, known, strict=True)] == pytest.approx(list(inverse))


def test_ties_at_zero_end() -> None:
    """Two columns that leave together: the step to them is 0 / 0 where one is at 0 already."""
    equations = normal_equations([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [1.0, 1.0, -2.0])
    x = equations.unscaled(nonnegative(equations.gram, equations.moments))
    assert x == pytest.approx([1.0, 0.0, 0.0])


# Robust fits


def lines(count: int, noise: float, seed: int) -> tuple[list[list[float]], list[float]]:
    """seconds = 2 + 3 n for n = 1, 2, .. with relative noise."""
    draw = random.Random(seed)
    sizes = [float(n) for n in range(1, count + 1)]
    return [[1.0] * count, sizes], [(2.0 + 3.0 * n) * draw.gauss(1.0, noise) for n in sizes]


def test_a_minority_of_outliers_changes_nothing() -> None:
    columns, seconds = lines(40, 0.0, 0)
    for place, factor in ((0, 30.0), (7, 0.1), (15, 4.0), (22, 0.5), (23, 9.0), (31, 0.01), (38, 2.0), (39, 0.3)):
        seconds[place] *= factor
    fit = robust_fit(columns, seconds)
    assert fit.values == pytest.approx([2.0, 3.0], rel=1e-9)
    assert [place for place, weight in enumerate(fit.weights) if weight == 0.0] == [0, 7, 15, 22, 23, 31, 38, 39]


def test_errors_are_of_the_size_of_the_noise() -> None:
    """Of 200 fits some 95% must be within two standard errors of the truth."""
    within = 0
    for seed in range(200):
        fit = robust_fit(*lines(40, 0.05, seed))
        error = fit.errors[1]
        assert error is not None
        within += abs(fit.values[1] - 3.0) < 2.0 * error
        assert 0.02 < fit.spread < 0.1
    assert 180 <= within <= 200


def test_as_many_measurements_as_unknowns_have_no_errors() -> None:
    fit = robust_fit([[1.0, 1.0], [1.0, 2.0]], [5.0, 8.0])
    assert fit.values == pytest.approx([2.0, 3.0])
    assert fit.errors == [None, None]


def test_nothing_is_negative_unless_asked_for() -> None:
    columns, seconds = [[1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]], [9.0, 8.0, 7.0, 6.0, 5.0]
    assert robust_fit(columns, seconds).values[1] == 0.0
    assert robust_fit(columns, seconds, signed=True).values == pytest.approx([10.0, -1.0])


@pytest.mark.parametrize(("values", "middle"), [([], 0.0), ([3.0], 3.0), ([1.0, 9.0, 2.0], 2.0), ([4.0, 1.0], 2.5)])
def test_the_median(values: list[float], middle: float) -> None:
    assert median(values) == middle


# Constants that come back


def measured(
    cost: LayerCost = TRUE,
    repeats: int = 12,
    noise: Callable[[int], float] = lambda _: 1.0,
    layers: Sequence[int] = (30,),
    launch: float = 0.0,
) -> Measurements:
    """Every size behind every prefix, ``repeats`` times."""
    model = CostModel((cost,))
    found = []
    for n, p, count, _ in itertools.product(SIZES, PREFIXES, layers, range(repeats)):
        seconds = launch + count * layer_seconds(model, 0, 1, [Part(0, p, n)])
        found.append(forward("", seconds * noise(len(found)), [(n, p)], (count,), (cost.topk,)))
    return Measurements(Layers.alike(61, cost.topk), tuple(found))


def values(calibration: Calibration) -> dict[str, float]:
    return {each.name: each.value for fit in calibration.fits for each in fit.constants}


def test_clean_times_give_the_constants_exactly() -> None:
    calibration = calibrate(measured(repeats=1, layers=(10, 20), launch=3e-3))
    kind = calibration.cost.layers[0]
    assert kind.count == 61
    for name in ("fixed", "per_token", "per_pair", "per_prefix_token"):
        assert getattr(kind, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert calibration.cost.launch == pytest.approx(3e-3, rel=1e-6)
    assert calibration.fits[0].median_error < 1e-9
    assert calibration.fits[0].held_out == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_five_percent_and_outliers_leave_the_constants_within_five_percent(seed: int) -> None:
    draw = random.Random(seed)

    def noise(place: int) -> float:
        if place == 0:
            return 20.0  # the first one is cold
        return draw.gauss(1.0, 0.05) * (draw.choice((0.2, 2.0, 3.0, 8.0)) if draw.random() < 0.05 else 1.0)

    calibration = calibrate(measured(repeats=24, noise=noise))
    for name in ("fixed", "per_token", "per_pair", "per_prefix_token"):
        assert values(calibration)[name] == pytest.approx(getattr(TRUE, name), rel=0.05)
    assert len(calibration.fits[0].set_aside) > 10
    assert calibration.fits[0].held_out == pytest.approx(0.034, abs=0.01)  # the median of |noise|


def test_sparse_attention_and_its_indexer_are_told_apart() -> None:
    cost = LayerCost(1, fixed=1e-4, per_token=5e-7, per_pair=2e-10, indexer_per_pair=1.6e-11, topk=2048)
    found = calibrate(measured(cost, repeats=1))
    kind = found.cost.layers[0]
    assert kind.topk == 2048
    assert kind.indexer_per_pair == pytest.approx(1.6e-11, rel=1e-5)
    assert [kind.per_token, kind.per_pair] == pytest.approx([5e-7, 2e-10], rel=1e-4)


def two_kinds(stages: Sequence[tuple[int, int]]) -> Measurements:
    """Three dense layers and 58 with experts, which cost more; each stage has some of both."""
    dense, sparse = TRUE, LayerCost(1, 5e-3, 9e-7, TRUE.per_pair, TRUE.per_prefix_token)
    model = CostModel((dense, sparse))
    found = []
    for n, p, (some, more) in itertools.product(SIZES, PREFIXES, stages):
        part = [Part(0, p, n)]
        seconds = some * layer_seconds(model, 0, 1, part) + more * layer_seconds(model, 1, 2, part)
        found.append(forward("", seconds, [(n, p)], (some, more), (0, 0)))
    return Measurements(Layers(("dense", "moe"), (0, 0), ((0, 3), (1, 58))), tuple(found))


def test_kinds_of_layers_have_their_own_constants_where_stages_differ() -> None:
    dense, moe = calibrate(two_kinds([(3, 13), (0, 15)])).cost.layers
    assert (dense.count, moe.count) == (3, 58)
    assert [dense.fixed, moe.fixed] == pytest.approx([2.4e-3, 5e-3], rel=1e-5)
    assert [dense.per_token, moe.per_token] == pytest.approx([5.2e-7, 9e-7], rel=1e-5)


def test_kinds_of_layers_share_constants_where_stages_are_alike() -> None:
    calibration = calibrate(two_kinds([(1, 14)]))
    dense, moe = calibration.cost.layers
    assert dense.per_token == moe.per_token == pytest.approx((5.2e-7 + 14 * 9e-7) / 15)
    assert {each.kinds for each in calibration.fits[0].constants} == {(0, 1)}


def test_embedding_head_and_transfers() -> None:
    model = CostModel((TRUE,))
    forwards = []
    for n, p, embeds in itertools.product(SIZES, PREFIXES, (True, False)):
        seconds = 4 * layer_seconds(model, 0, 1, [Part(0, p, n)]) + embeds * (1e-2 + 4e-7 * n)
        forwards.append(forward("", seconds, [(n, p)], (4,), (0,), embeds=embeds))
    transfers = tuple(Transfer("", 2e-4 + 7e-8 * n, n) for n in SIZES)
    heads = tuple(Head("", 1e-3 + 2e-4 * rows, rows) for rows in (1, 2, 3))
    cost = calibrate(Measurements(Layers.alike(8), tuple(forwards), transfers, heads)).cost
    assert [cost.embed.fixed, cost.embed.per_token] == pytest.approx([1e-2, 4e-7], rel=1e-6)
    assert [cost.transfer.fixed, cost.transfer.per_token] == pytest.approx([2e-4, 7e-8], rel=1e-6)
    assert [cost.head.fixed, cost.head.per_token] == pytest.approx([1e-3, 2e-4], rel=1e-6)


def test_collectives_that_were_measured_apart() -> None:
    forwards = [forward("", TRUE.per_token * n, [(n, 0)], (1,), (0,), collective=2e-3 + 9e-7 * n) for n in SIZES * 2]
    kind = calibrate(Measurements(Layers.alike(2), tuple(forwards))).cost.layers[0]
    assert [kind.collective_fixed, kind.collective_per_token] == pytest.approx([2e-3, 9e-7], rel=1e-6)


def test_what_was_not_measured_comes_from_the_base() -> None:
    base = CostModel((LayerCost(4, 1.0),), Linear(2.0), Linear(3.0), Linear(4.0), 5.0, 0.5, "base")
    found = calibrate(measured(repeats=1), base=base).cost
    assert (found.embed, found.head, found.transfer, found.interference) == (Linear(2.0), Linear(3.0), Linear(4.0), 0.5)
    assert (found.name, found.launch, found.layer_count) == ("base", 0.0, 61)
    links = calibrate(
        Measurements(Layers.of(base.layers), transfers=(Transfer("", 1.0, 1), Transfer("", 2.0, 2))), base=base
    )
    assert links.cost.layers == base.layers
    assert links.cost.transfer == Linear(0.0, pytest.approx(1.0))


# What data cannot tell


def some_forwards(points: Sequence[tuple[int, int]], layers: Sequence[int] = (10,)) -> tuple[Forward, ...]:
    model = CostModel((TRUE,))
    return tuple(
        forward("", count * layer_seconds(model, 0, 1, [Part(0, p, n)]), [(n, p)], (count,), (0,))
        for (n, p), count in itertools.product(points, layers)
    )


@pytest.mark.parametrize(
    ("points", "unknown"),
    [
        ([(n, 0) for n in SIZES], {"per_prefix_token": "no measured chunk has a prefix"}),
        (
            [(8192, p) for p in PREFIXES],
            {
                "fixed": "cannot be told from per_token; measure chunks of several sizes",
                "per_prefix_token": "cannot be told from per_token and per_pair; measure chunks of several sizes",
            },
        ),
        (
            [(8192, 0)] * 5,
            {
                "per_pair": "cannot be told from per_token; measure chunks of several sizes, behind short prefixes too",
                "fixed": "cannot be told from per_token; measure chunks of several sizes",
                "per_prefix_token": "no measured chunk has a prefix",
            },
        ),
    ],
)
def test_what_the_measurements_do_not_tell_is_said(points: list[tuple[int, int]], unknown: dict[str, str]) -> None:
    calibration = calibrate(Measurements(Layers.alike(10), some_forwards(points)))
    said = {each.name: each.reason for each in calibration.fits[0].unknown}
    assert {name: said[name] for name in said if not name.startswith(("embed", "launch"))} == unknown
    for each in calibration.fits[0].constants:
        assert each.name not in unknown
    assert calibration.fits[0].median_error < 1e-9


def test_launches_need_forwards_of_clearly_different_lengths() -> None:
    points = list(itertools.product(SIZES, PREFIXES))
    alike = calibrate(Measurements(Layers.alike(61), some_forwards(points, (30, 31))))
    said = {each.name: each.reason for each in alike.fits[0].unknown}
    assert said["launch"] == "cannot be told from fixed; measure forwards through fewer and more layers"
    different = calibrate(Measurements(Layers.alike(61), some_forwards(points, (10, 31))))
    assert "launch" in {each.name for each in different.fits[0].constants}


def test_a_constant_that_noise_hides_is_weak() -> None:
    draw = random.Random(3)
    found = calibrate(measured(LayerCost(1, per_token=5e-7, fixed=1e-7), 1, lambda _: draw.gauss(1.0, 0.05)))
    weak = {each.name for each in found.fits[0].constants if each.weak or not each.value}
    assert "fixed" in weak
    assert "per_token" not in weak


# What is refused


def test_times_that_fall_with_the_work_are_refused() -> None:
    draw = random.Random(4)
    points = [(n, p) for n in SIZES for p in PREFIXES]
    times = [(1.0 - 2e-5 * n) * draw.gauss(1.0, 0.01) for n, _ in points]
    forwards = tuple(forward("", s, [part], (1,), (0,)) for part, s in zip(points, times, strict=True))
    with pytest.raises(CheckFailed, match=r"F2 forwards: only a negative per_token \(-2e-05 s\) would fit"):
        calibrate(Measurements(Layers.alike(1), forwards))


def test_times_that_follow_nothing_are_refused() -> None:
    draw = random.Random(1)
    forwards = tuple(forward("", 10.0 ** draw.uniform(-3, 0), [(n, p)], (1,), (0,)) for n in SIZES for p in PREFIXES)
    with pytest.raises(CheckFailed, match=r"F1 forwards: half of the 49 times are off by more than \d\d%"):
        calibrate(Measurements(Layers.alike(1), forwards))


def test_doubtful_transfers_are_refused_unless_they_are_a_by_product() -> None:
    transfers = tuple(Transfer("", seconds, 4096) for seconds in (1e-4, 1e-3, 1e-2, 1e-1, 1.0))
    measured = Measurements(Layers.alike(10), some_forwards([(n, 0) for n in SIZES]), transfers)
    with pytest.raises(CheckFailed, match="F1 transfers"):
        calibrate(measured)
    forwards, other = calibrate(replace(measured, by_products=frozenset(("transfers",)))).fits
    assert forwards.doubt is None
    assert other.doubt is not None
    assert "half of the 5 times are off" in other.doubt.problem


def test_a_kind_of_layers_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no measured forward has layers of the kind dense"):
        calibrate(two_kinds([(0, 15)]))
    with pytest.raises(InputError, match="nothing was measured"):
        calibrate(Measurements(Layers.alike(1)))


# Tables


def table(tmp_path: Path, text: str, name: str = "times.csv") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def csv_text(forwards: Sequence[tuple[int, int, float]]) -> str:
    return "chunk_tokens,prefix_tokens,seconds\n" + "".join(f"{n},{p},{s!r}\n" for n, p, s in forwards)


def test_columns_may_come_in_any_order_with_others_beside(tmp_path: Path) -> None:
    text = "run,seconds , layers,prefix_tokens,chunk_tokens\na,0.5\t,4, 100,8\n\n"
    found = read_tables([table(tmp_path, text)], Reading())
    assert found.layers == Layers.alike(4)
    (only,) = found.forwards
    assert (only.seconds, only.layers, only.tokens, only.prefix, only.dense) == (0.5, (4,), 8, 100, 836)
    assert only.place.endswith("times.csv: line 2")


def test_kinds_and_transfers_in_tables(tmp_path: Path) -> None:
    layers = Layers(("dense", "moe"), (0, 0), ((0, 3), (1, 58)))
    times = table(tmp_path, "chunk_tokens,prefix_tokens,seconds,kind,layers\n8,0,1,moe,2\n8,0,1,dense,1\n")
    by_token = table(tmp_path, "tokens,seconds\n8,0.5\n", "links.csv")
    by_byte = table(tmp_path, "bytes,seconds\n3584,0.5\n", "more.csv")
    found = read_tables([times, by_token, by_byte], Reading(layers, bytes_per_token=1792.0))
    assert [each.layers for each in found.forwards] == [(0, 2), (1, 0)]
    assert [each.tokens for each in found.transfers] == [8, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "times.csv: is empty"),
        ("a,b\n1,2\n", "times.csv: line 1: the columns a, b are none of a table that is known"),
        ("chunk_tokens,seconds\n1,2\n", "line 1: the columns chunk_tokens, seconds are none"),
        ("chunk_tokens,prefix_tokens,seconds\n", "times.csv: has no measurements"),
        (csv_text([(8, 0, 1.0)]) + "8,0\n", "line 3: has 2 values for 3 columns"),
        (csv_text([(8, 0, 1.0)]) + "8,0,1,2\n", "line 3: has 4 values for 3 columns"),
        (csv_text([(8, 0, 1.0)]) + "\n8,0,1\n", "line 3: is blank"),
        (csv_text([(8, 0, 1.0)]) + '8,0,"1', "line 3: not CSV: unexpected end of data"),
        (csv_text([(8, 0, float("nan"))]), 'line 2, seconds: "nan" is not a number'),
        (csv_text([(8, 0, float("inf"))]), 'line 2, seconds: "inf" is not a number'),
        (csv_text([(8, 0, -1.0)]), 'line 2, seconds: "-1.0" is negative'),
        (csv_text([(8, 0, 0.0)]), "line 2, seconds: 0 is too small"),
        (csv_text([(8, 0, 1.0), (0, 0, 1.0)]), 'line 3, chunk_tokens: "0" is too small\n  hint: at least 1'),
        ("chunk_tokens,prefix_tokens,seconds\n8.5,0,1\n", 'chunk_tokens: "8.5" is not a whole number'),
        ("chunk_tokens,prefix_tokens,seconds\n8,1_0,1\n", 'prefix_tokens: "1_0" is not a number'),
        ("chunk_tokens,prefix_tokens,seconds\n8,0,1e999\n", 'seconds: "1e999" is too large'),
        ("chunk_tokens,seconds,prefix_tokens,seconds\n8,1,0,1\n", 'line 1: the column "seconds" appears twice'),
        ("bytes,seconds\n8,1\n", "times.csv: counts bytes; how many a token has to carry is not known"),
    ],
)
def test_broken_tables_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_tables([table(tmp_path, text)], Reading())
    assert message in str(error.value)


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_bytes(b"chunk_tokens,prefix_tokens,seconds\n8,0,1\n8,0,\xff\n")
    with pytest.raises(InputError, match="line 3: byte 0xff is not UTF-8"):
        read_tables([str(tmp_path / "times.csv")], Reading())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mlp", 'line 2, kind: "mlp" is none of the kinds of layers dense, moe'),
        (None, "line 2: does not say of which kind of layers it is: dense, moe"),
    ],
)
def test_kinds_must_be_known(tmp_path: Path, kind: str | None, message: str) -> None:
    layers = Layers(("dense", "moe"), (0, 0), ((0, 3), (1, 58)))
    more = ("", "") if kind is None else (",kind", f",{kind}")
    text = f"chunk_tokens,prefix_tokens,seconds{more[0]}\n8,0,1{more[1]}\n"
    with pytest.raises(InputError) as error:
        read_tables([table(tmp_path, text)], Reading(layers))
    assert message in str(error.value)


CONTEXT = "tp_size,batch_size,isl,step,latency,kernel_source\n1,1,1024,0,2.0,a\n1,2,1024,64,3.0,b\n2,1,1024,0,1.0,a\n"


def test_other_configurations_in_a_table_are_refused_until_one_is_picked(tmp_path: Path) -> None:
    file = table(tmp_path, CONTEXT)
    with pytest.raises(InputError) as error:
        read_tables([file], Reading())
    assert 'line 4, tp_size: is "2", but "1" in line 2: another configuration' in str(error.value)
    found = read_tables([file], Reading(topk=100, select={"tp_size": "1"}))
    assert [each.seconds for each in found.forwards] == [2e-3, 3e-3]
    assert [each.tokens for each in found.forwards] == [1024, 2048]
    assert [each.seen for each in found.forwards] == [(pairs(1024, 0, 100),), (2 * pairs(1024, 64, 100),)]
    with pytest.raises(InputError, match="has no measurements of what --select picks"):
        read_tables([file], Reading(select={"tp_size": "3"}))
    with pytest.raises(InputError, match='--select: no table has a column "tp"'):
        read_tables([file], Reading(select={"tp_size": "2", "tp": "3"}))


# Real measurements


DSA = MEASURED / "dsa_context_h200_deepseek-v3.2.csv"
LINKS = MEASURED / "h100_dgx_send_recv.csv"


def sparse_attention(tp: str, cache: str) -> list[tuple[int, int, float]]:
    """(tokens, prefix, seconds) of one configuration."""
    with DSA.open(newline="") as stream:
        return [
            (int(row["isl"]), int(row["step"]), float(row["latency"]) / 1e3)
            for row in csv.DictReader(stream)
            if row["tp_size"] == tp and row["kv_cache_dtype"] == cache
        ]


def median_error(tmp_path: Path, seen: list[tuple[int, int, float]], unseen: list[tuple[int, int, float]]) -> float:
    """Of a fit to ``seen``, on ``unseen``."""
    cost = calibrate(read_tables([table(tmp_path, csv_text(seen))], Reading(topk=2048))).cost
    return median([abs(layer_seconds(cost, 0, 1, [Part(0, p, n)]) / s - 1.0) for n, p, s in unseen])


@needs_measurements
@pytest.mark.parametrize("tp", ["1", "2", "4", "8"])
@pytest.mark.parametrize("cache", ["bfloat16", "fp8"])
def test_sparse_attention_on_an_h200_behind_prefixes_that_were_not_fitted(tmp_path: Path, tp: str, cache: str) -> None:
    """8% is what is asked for: between fitted prefixes, and at twice as long ones."""
    rows = sparse_attention(tp, cache)
    prefixes = sorted({p for _, p, _ in rows})
    odd = {p for place, p in enumerate(prefixes) if place % 2}
    assert len(rows) == 100
    assert median_error(tmp_path, [r for r in rows if r[1] not in odd], [r for r in rows if r[1] in odd]) < 0.045
    assert median_error(tmp_path, [r for r in rows if r[1] < 70000], [r for r in rows if r[1] > 70000]) < 0.07


@needs_measurements
@pytest.mark.parametrize("devices", ["1", "2"])
def test_links_of_an_h100_machine(devices: str) -> None:
    found = calibrate(read_tables([str(LINKS)], Reading(select={"devices_per_node": devices}, bytes_per_token=3584.0)))
    assert found.fits[0].count == 994
    assert found.fits[0].median_error < 0.015
    with LINKS.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["devices_per_node"] == devices]
    largest = rows[-1]
    predicted = found.cost.transfer_seconds(1) + found.cost.transfer.per_token * (int(largest["size"]) / 3584 - 1)
    assert predicted == pytest.approx(float(largest["time_stats.send_recv.median"]) / 1e3, rel=0.1)


@needs_measurements
def test_the_published_tables_hold_several_configurations() -> None:
    with pytest.raises(InputError, match="num_heads: is"):
        read_tables([str(DSA)], Reading(topk=2048))
    with pytest.raises(InputError, match="line 996, devices_per_node: is"):
        read_tables([str(LINKS)], Reading(bytes_per_token=1.0))


# The command


def run(*arguments: str) -> Any:
    return CliRunner().invoke(vppc, ["calibrate", *arguments])


def synthetic(tmp_path: Path) -> str:
    model = CostModel((TRUE,))
    points = [(n, p, layer_seconds(model, 0, 1, [Part(0, p, n)])) for n in SIZES for p in PREFIXES]
    points = [(n, p, s * (1.0 + 0.01 * (-1) ** place)) for place, (n, p, s) in enumerate(points)]
    points[0] = (*points[0][:2], 1.0)
    return table(tmp_path, csv_text(points))


def test_the_command_writes_a_cost_file_and_says_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    result = run(synthetic(tmp_path), "--layers", "61", "--name", "toy", "-o", str(out))
    assert result.exit_code == 0
    cost = read_cost(str(out))
    assert (cost.name, cost.layer_count) == ("toy", 61)
    assert cost.layers[0].per_pair == pytest.approx(TRUE.per_pair, rel=0.01)
    assert result.output.replace(str(tmp_path), "..") == GOLDEN


GOLDEN = """\
toy: costs for 61 layers

49 forwards: median error 1.0%, nine of ten under 1.1%
behind prefixes that a fit did not see: median error 1.0%
constant           seconds  standard error
----------------  --------  --------------
per_token         522.4 ns        6.602 ns
per_pair          54.97 ps       0.2009 ps
fixed             2.377 ms        38.58 us
per_prefix_token  44.40 ns        1.160 ns
unknown: launch: cannot be told from fixed; measure forwards through fewer and more layers
unknown: embed.fixed: no measured forward has the embedding in it
unknown: embed.per_token: no measured forward has the embedding in it
set aside: 1 of 49
  ../times.csv: line 2: took 281 times the fit
"""


def test_json_and_dash(tmp_path: Path) -> None:
    file = synthetic(tmp_path)
    shown = json.loads(run(file, "--json").output)
    assert shown["fits"][0]["what"] == "forwards"
    assert {each["name"] for each in shown["fits"][0]["constants"]} == {
        "per_token",
        "per_pair",
        "fixed",
        "per_prefix_token",
    }
    assert shown["fits"][0]["set_aside"][0]["place"] == f"{file}: line 2"
    assert json.loads(run(file, "-o", "-").output) == shown["cost"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--layers", "dense:3,58"], 2, "--layers: '58' is not understood"),
        (["--layers", "0"], 2, "--layers: '0' is not understood"),
        (["--layers", "dense:3,moe:58"], 2, "does not say of which kind of layers it is"),
        (["--select", "chunk_tokens"], 2, "--select: 'chunk_tokens' is not understood"),
        (["--select", "seconds=7"], 2, "has no measurements of what --select picks"),
        (["--base", "nowhere.json"], 2, "nowhere.json: cannot be read"),
    ],
)
def test_bad_usage(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    out = tmp_path / "cost.json"
    result = run(synthetic(tmp_path), *arguments, "-o", str(out))
    assert isinstance(result.exception, VppcError)
    assert result.exception.exit_status == status
    assert message in str(result.exception)
    assert not out.exists()


def test_a_refused_fit_has_status_one_and_writes_nothing(tmp_path: Path) -> None:
    file = table(tmp_path, csv_text([(n, 0, 1.0 / n) for n in range(1, 40)]))
    out = tmp_path / "cost.json"
    result = run(file, "-o", str(out))
    assert isinstance(result.exception, CheckFailed)
    assert result.exception.exit_status == 1
    assert not out.exists()


def test_layers_by_kind_in_the_order_of_the_model(tmp_path: Path) -> None:
    text = "chunk_tokens,prefix_tokens,seconds,kind\n" + "".join(
        f"{n},{p},{(1 if kind == 'dense' else 3) * 1e-6 * n},{kind}\n"
        for n in SIZES
        for p in PREFIXES
        for kind in ("dense", "moe")
    )
    shown = json.loads(run(table(tmp_path, text), "--layers", "dense:1,moe:4,dense:1", "--json").output)
    assert [(kind["count"], round(kind["per_token"] * 1e9)) for kind in shown["cost"]["layers"]] == [
        (1, 1000),
        (4, 3000),
        (1, 1000),
    ]


def test_the_kinds_of_a_cost_model() -> None:
    layers = Layers.of([LayerCost(3, 1.0), LayerCost(2, 2.0, topk=4), LayerCost(1, 1.0)])
    assert layers.names == ("kind 0", "kind 1")
    assert layers.topks == (0, 4)
    assert layers.runs == ((0, 3), (1, 2), (0, 1))
    assert layers.between(2, 6) == (2, 2)
    assert cost_json(CostModel((LayerCost(1),)))["layers"] == [{"count": 1}]


def test_times_that_fit_nothing_well_are_called_noisy() -> None:
    constant = Constant("fixed", (), 1.0, 0.9)
    sure = replace(constant, error=0.1)
    fit = Fit("forwards", 20, (sure,), (), 0.1, 0.19, ())
    calibration = Calibration(CostModel((LayerCost(1),)), Layers.alike(1), (fit,))

    def said(**changes: Any) -> list[str]:
        text = calibration_text(replace(calibration, fits=(replace(fit, **changes),)))
        return [line for line in text.splitlines() if line.startswith("noisy: ")]

    advice = (
        ". Was the machine busy with something else? Measure again when it is idle, with several runs and chunk sizes"
    )
    assert said() == []
    assert said(constants=(sure, constant)) == []
    assert said(most=0.25) == ["noisy: one in ten is off by 25.0% or more" + advice]
    assert said(constants=(sure, constant, constant)) == ["noisy: 2 of 3 constants are weak" + advice]
