"""No damaged file ends the runtime's readers in a traceback, a hang or all of the memory."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from runtime.program import load, proven
from tests.fuzz_runtime_targets import RUNTIME_TARGETS, safetensors, weights
from tests.fuzzing import attempt, damaged, limits
from tests.plans import deepseek
from vppc.errors import InputError
from vppc.ir.document import read_schedule, schedule_text

EXAMPLES = 120


@pytest.mark.parametrize("name", RUNTIME_TARGETS)
def test_every_seed_is_read(name: str, tmp_path: Path) -> None:
    for seed in RUNTIME_TARGETS[name].seeds:
        assert attempt(RUNTIME_TARGETS[name], seed, tmp_path)


@pytest.mark.parametrize("name", RUNTIME_TARGETS)
def test_damaged_files_are_accepted_or_refused_in_words(name: str, tmp_path: Path) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(damaged(RUNTIME_TARGETS[name].seeds))
    def refuse(data: bytes) -> None:
        attempt(RUNTIME_TARGETS[name], data, tmp_path)

    refuse()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("safetensors", struct.pack("<Q", 2**40) + b"{}", "its header is not complete"),
        (
            "safetensors",
            safetensors({"a": {"dtype": "F32", "shape": ["x", 10**12], "data_offsets": [0, 8]}}, b""),
            "has a damaged header",
        ),
        (
            "safetensors",
            safetensors({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, b"12"),
            "is cut off",
        ),
        (
            "runtime's schedule",
            re.sub(rb'"buffers": \d+', b'"buffers": 1000000000', RUNTIME_TARGETS["runtime's schedule"].seeds[0]),
            "programs[0].buffers: 1000000000 is too large",
        ),
        (
            "runtime's schedule",
            RUNTIME_TARGETS["runtime's schedule"].seeds[0].replace(b'"chunk": 1,', b'"chunk": -2,'),
            "-2",
        ),
    ],
    ids=["a header of a terabyte", "a shape of words", "data that is not there", "buffers", "a negative chunk"],
)
def test_a_file_cannot_claim_what_it_has_not(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / RUNTIME_TARGETS[name].name
    file.write_bytes(data)
    with limits(), pytest.raises(InputError, match=re.escape(message)):
        (weights(file) if name == "safetensors" else proven(data, str(file)))


@pytest.mark.parametrize("file", ["a\\ud800", "a\\u0000b", "../a", ""])
def test_an_index_names_files_that_can_be(file: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{file}"}}}}')
    with pytest.raises(InputError, match="is not the name of a file in the folder"):
        weights(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "the JSON text ends too early"),
        (lambda text: text.replace('"stages"', '"stager"', 1), 'the key "stages" is missing'),
        (lambda text: text.replace('"pp": 2', '"pp": "2"', 1), "pp: "),
        (lambda text: "[]", "a list is not a vppc.schedule document"),
        (lambda text: text.replace('"per_token"', '"per_tokne"', 1), "per_tokne"),
        (lambda text: text.replace('"per_token": ', '"per_token": -', 1), "per_token: "),
        (lambda text: text.replace('"fixed": ', '"fixed": "1", "x": ', 1), "fixed: "),
    ],
    ids=["cut off", "a key is missing", "a text for a number", "a list", "a cost's key", "a cost", "a cost's text"],
)
def test_the_runtime_says_what_verify_says(damage: Callable[[str], str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(damage("".join(schedule_text(deepseek("vpp", (40000,), 8192)))))
    with pytest.raises(InputError) as verified:
        read_schedule(str(file))
    with pytest.raises(InputError) as loaded:
        load(str(file))
    assert message in str(loaded.value)
    assert str(loaded.value) == str(verified.value)


def test_a_schedule_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as loaded:
        load(str(tmp_path / "none.json"))
    assert loaded.value.problem == "cannot be read: No such file or directory"
