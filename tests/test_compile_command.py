"""``vppc compile`` at the command line: units, notes, what is said of what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vppc.cli import vppc

COST = str(Path(__file__).parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")


def compile_with(*options: str) -> Result:
    return CliRunner().invoke(vppc, ["compile", "--pp", "2", *options])


@pytest.mark.parametrize(("said", "tokens"), [("4K", 4096), ("3k", 3072), ("1M", 2**20), ("5000", 5000)])
def test_tokens_can_be_counted_in_units_of_1024(said: str, tokens: int) -> None:
    compiled = compile_with("--tokens", said, "--chunk-size", "64K", "--cost", COST)
    assert json.loads(compiled.stdout)["requests"][0]["prompt_tokens"] == tokens


@pytest.mark.parametrize("said", ["K", "0K", "-1M", "2.5K", "4096M", "K4", ""])
def test_what_is_no_count(said: str) -> None:
    refused = compile_with("--tokens", said)
    assert refused.exit_code == 2
    assert "Invalid value for '--tokens'" in refused.output


def test_a_written_file_is_summed_up_on_stderr(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    written = compile_with("--chunks", "5", "--strategy", "vpp", "-o", plan)
    assert written.stdout == ""
    assert written.stderr == f"{plan}: 61 instructions on 2 ranks, proven\n"


def test_a_prompt_longer_than_the_models_context_is_noted() -> None:
    noted = compile_with("--tokens", "128K", "--model", "qwen3-235b-a22b", "--device", "h200", "--tp", "8", "--ep", "8")
    assert noted.stderr == (
        "note: a prompt has 131,072 tokens, but qwen3-235b-a22b is published for 40,960: it needs rotary scaling\n"
    )
