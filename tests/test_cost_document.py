"""The cost file: what it means, what is refused, and that it comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.costs.document import check_layers, cost_json, cost_schema, parse_cost, read_cost
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError, VppcError
from vppc.json_text import loads

COSTS = Path(__file__).resolve().parents[1] / "examples" / "costs"
SCHEMA = jsonschema.Draft202012Validator(cost_schema())
FULL: dict[str, Any] = {
    "format": "vppc.cost",
    "version": 1,
    "unit": "s",
    "name": "all",
    "layers": [
        {"count": 3, "fixed": 1},
        {
            "count": 58,
            "fixed": 0.1,
            "per_token": 0.2,
            "per_pair": 0.3,
            "per_prefix_token": 0.4,
            "indexer_per_pair": 0.5,
            "topk": 2048,
            "collective_fixed": 0.6,
            "collective_per_token": 0.7,
        },
    ],
    "embed": {"fixed": 0.8},
    "head": {"fixed": 0.9, "per_token": 1.1},
    "transfer": {"latency": 1.2, "per_token": 1.3},
    "launch": 1.4,
    "interference": 0.5,
    "source": {"of": "the numbers"},
}
MODEL = CostModel(
    layers=(LayerCost(3, 1.0), LayerCost(58, 0.1, 0.2, 0.3, 0.4, 0.5, 2048, 0.6, 0.7)),
    embed=Linear(0.8),
    head=Linear(0.9, 1.1),
    transfer=Linear(1.2, 1.3),
    launch=1.4,
    interference=0.5,
    name="all",
)

seconds = st.floats(0, 1e12)
linears = st.builds(Linear, seconds, seconds)
counts, layers = st.integers(1, 2**31 - 1), st.integers(1, 2**16)
models = st.builds(
    CostModel,
    layers=st.lists(
        st.builds(
            LayerCost, layers, seconds, seconds, seconds, seconds, seconds, st.just(0) | counts, seconds, seconds
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    embed=linears,
    head=linears,
    transfer=linears,
    launch=seconds,
    interference=seconds,
    name=st.text(max_size=5),
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full document with the value at a path (keys and indices, dots between) put in, or (...) taken out."""
    document: dict[str, Any] = json.loads(json.dumps(FULL))
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    at: Any = document
    for step in steps:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


def test_every_key_has_its_place_in_the_model() -> None:
    assert parse_cost(FULL) == MODEL
    assert cost_json(MODEL) == {key: value for key, value in FULL.items() if key != "source"}


def test_missing_keys_are_zero() -> None:
    least = {"format": "vppc.cost", "version": 1, "layers": [{"count": 2}]}
    assert parse_cost(least) == CostModel((LayerCost(2),))
    assert cost_json(parse_cost(least)) == {**least, "unit": "s", "name": "", "embed": {}, "head": {}, "transfer": {}}


@given(models)
@settings(max_examples=60)
def test_a_cost_model_comes_back(model: CostModel) -> None:
    text = json.dumps(cost_json(model))
    assert parse_cost(json.loads(text)) == model
    SCHEMA.validate(json.loads(text))


def test_the_example_files_are_read_and_fit_their_schema() -> None:
    files = sorted(COSTS.glob("*.json"))
    assert files
    for file in files:
        assert read_cost(str(file)).layer_count == 61
        SCHEMA.validate(json.loads(file.read_text()))


def test_the_cost_file_of_the_paper() -> None:
    cost = read_cost(str(COSTS / "deepseek-v3.1-910c-tp8.json"))
    assert cost == CostModel(
        (LayerCost(61, 0.00234, 5.196e-07, 5.5e-11, 4.386e-08),),
        transfer=Linear(0.0005, 7.2e-08),
        name="deepseek-v3.1-910c-tp8",
    )


LAYER_KEYS = (
    "known keys: count, fixed, per_token, per_pair, per_prefix_token, indexer_per_pair, topk, collective_fixed, "
    "collective_per_token"
)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("layers.1.per_tokn", 1, 'layers[1]: the key "per_tokn" is unknown\n  hint: did you mean "per_token"?'),
        ("layers.0.xyz", 1, f'layers[0]: the key "xyz" is unknown\n  hint: {LAYER_KEYS}'),
        ("embed.latency", 1, 'embed: the key "latency" is unknown\n  hint: known keys: fixed, per_token'),
        ("head.per-token", 1, 'head: the key "per-token" is unknown\n  hint: did you mean "per_token"?'),
        ("transfer.latncy", 1, 'transfer: the key "latncy" is unknown\n  hint: did you mean "latency"?'),
        ("transfer.fixed", 1, 'transfer: the key "fixed" is unknown\n  hint: known keys: latency, per_token'),
        ("layers", ..., 'the key "layers" is missing'),
        ("layers", [], "layers: a list of 0 is too short\n  hint: at least 1"),
        ("layers", {}, "layers: an object is not a list\n  hint: a list in [ ]"),
        ("layers.0", 61, "layers[0]: 61 is not an object\n  hint: an object in { }"),
        ("layers.0.count", ..., 'layers[0]: the key "count" is missing'),
        ("layers.0.count", 0, "layers[0].count: 0 is too small\n  hint: at least 1"),
        (
            "layers.0.count",
            True,
            "layers[0].count: true is not an integer\n  hint: an integer, without quotes or a decimal point",
        ),
        ("layers.1.topk", 0, "layers[1].topk: 0 is too small\n  hint: at least 1"),
        ("layers.1.fixed", -1e-9, "layers[1].fixed: -1e-09 is too small\n  hint: at least 0"),
        ("layers.1.fixed", float("nan"), "layers[1].fixed: NaN is not a finite number\n  hint: a finite number"),
        ("launch", float("inf"), "launch: Infinity is not a finite number\n  hint: a finite number"),
        ("launch", 1e13, "launch: 10000000000000.0 is too large\n  hint: at most 1000000000000"),
        ("launch", 10**400, "launch: an integer of over 30 digits is too large\n  hint: a number that fits 64 bits"),
        ("launch", "1", 'launch: "1" is not a number\n  hint: a number, without quotes'),
        ("launch", None, "launch: null is not a number\n  hint: a number, without quotes"),
        ("name", 1, "name: 1 is not a string\n  hint: a string in quotes"),
        ("unit", "ms", 'unit: "ms" is not allowed\n  hint: "s"'),
        ("format", "vppc.costs", 'format: "vppc.costs" is not the format that is read here\n  hint: "vppc.cost"'),
        (
            "version",
            2,
            "version: version 2 is newer than this program\n"
            "  hint: it reads vppc.cost up to version 1; a newer vppc reads more",
        ),
    ],
)
def test_what_is_refused(path: str, value: Any, message: str) -> None:
    document = changed(path, value)
    with pytest.raises(InputError) as raised:
        parse_cost(document, "c.json")
    assert str(raised.value) == f"c.json: {message}"
    with pytest.raises(InputError) as raised:
        parse_cost(document, "s.json", "cost")
    assert str(raised.value) == f"s.json: cost{': ' if message.startswith('the key') else '.'}{message}"
    if not isinstance(value, float):  # JSON Schema knows neither NaN nor infinity
        assert not SCHEMA.is_valid(document)


@pytest.mark.parametrize("document", [None, 3, "cost", [FULL]])
def test_what_is_no_object(document: Any) -> None:
    with pytest.raises(InputError, match=r"is not a vppc\.cost document"):
        parse_cost(document)


def test_layers_must_be_the_models() -> None:
    check_layers(MODEL, 61)
    with pytest.raises(InputError) as raised:
        check_layers(MODEL, 60, file="c.json")
    assert str(raised.value) == (
        "c.json: layers: the counts add up to 61 layers, but the model has 60\n"
        "  hint: a cost file for this model, or counts that add up"
    )


@given(st.data())
@settings(max_examples=150)
def test_any_change_of_bytes_gives_costs_or_a_message(data: st.DataObject) -> None:
    text = json.dumps(FULL)
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.text('{}[]",:-0123456789.eE ntruNI\\\x00é\ud800', max_size=3))
    try:
        model = parse_cost(loads(text[:at] + new + text[at + data.draw(st.integers(0, 3)) :]))
    except VppcError:
        return
    assert parse_cost(cost_json(model)) == model
