"""One input, one result, on every Python: ``sum`` of floats is another since 3.12, and nothing may depend on it."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from functools import reduce
from math import fsum
from operator import add
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from vppc.cli import vppc
from vppc.sums import plain_sum

COST = "--cost examples/costs/deepseek-v3.1-910c-tp8.json"
COMMANDS = {
    "compile": f"compile {COST} --pp 3 --tokens 100000 --layer-split balanced",
    "dcpp": f"compile {COST} --pp 4 --tokens 200000 --strategy dcpp",
    "dcpp-sglang": f"compile {COST} --pp 4 --tokens 200000 --strategy dcpp-sglang",
    "compare": f"compare {COST} --pp 2 --tokens 64K --jobs 1 --json",
    "tune": f"tune {COST} --pp 2 --tokens 100000 --effort 0.1 --placement v -o -",
    "tune a queue": f"tune {COST} --pp 3 --tokens 40000 --tokens 9000 --effort 0.1 --placement zigzag --vp 2 -o -",
    "serve-sim": f"serve-sim {COST} --pp 2 --suite short-8k --json",
    "model": "model deepseek-v3.1 --tp 8 --device 910c -o -",
    "calibrate": "calibrate {measured} --layers 61 --json",
}
"""Whatever of the command line computes with many floats."""


def left_to_right(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    """What ``sum`` is on Python 3.11."""
    return reduce(add, numbers, start)


def compensated(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    """What ``sum`` is on Python 3.12, or closer yet to the exact one."""
    found = list(numbers)
    if found and all(isinstance(each, float | int) for each in (*found, start)) and float in map(type, found):
        return fsum((start, *found))
    return reduce(add, found, start)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Forwards that took about what a model has, with noise that is always the same."""
    rng = Random(1)
    lines = ["chunk_tokens,prefix_tokens,seconds,layers"]
    for size in (1000, 2000, 4000, 8000):
        for prefix in (0, 10_000, 20_000, 50_000):
            seconds = 1e-3 + 1e-6 * size + 1e-11 * size * (prefix + size / 2)
            lines.append(f"{size},{prefix},{seconds * rng.uniform(0.98, 1.02)!r},1")
    table = tmp_path / "measured.csv"
    table.write_text("\n".join(lines))
    return table


def test_the_two_differ() -> None:
    thirds = [0.1] * 10
    assert left_to_right(thirds) == plain_sum(thirds) != compensated(thirds) == 1.0
    assert plain_sum([]) == 0.0


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_every_python_computes_the_same(command: str, measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = []
    for way in (left_to_right, compensated):
        with monkeypatch.context() as patched:
            patched.setattr(builtins, "sum", way)
            result = CliRunner().invoke(vppc, command.format(measured=measured).split())
        assert result.exit_code == 0, result.output
        printed.append(result.stdout)
    assert printed[0] == printed[1] != ""
