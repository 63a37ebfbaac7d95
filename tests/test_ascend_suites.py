"""The paper's suites for AISBench: prompts are as long as they should be, and configurations say what is measured."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from examples.ascend.results import compared, durations, paper_gains
from examples.ascend.suites import Writer, single_words, write_suite
from vppc.errors import InputError
from vppc.serving.workloads import SUITES, mixed_lengths, suite

SERVER = {"model": "/models/it's", "served": "deepseek", "host": "node", "port": 8000}
WORDS = [a + b + c for a in "bdgk" for b in "aeiou" for c in "lmnr"]


def count(text: str) -> int:
    """A tokenizer that puts a token before each text, and makes two of a word that ends in n before one with b."""
    return 1 + len(text.split()) + len(re.findall(r"n (?=b)", text))


def run(config: str) -> dict[str, Any]:
    """A configuration's variables; what it imports of AISBench are names."""
    tree = ast.parse(config)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {str(node.module).split(".")[0] for node in imported} == {"ais_bench"}
    found: dict[str, Any] = {alias.name: f"{node.module}.{alias.name}" for node in imported for alias in node.names}
    tree.body = [node for node in tree.body if node not in imported]
    exec(compile(tree, "config", "exec"), found)
    return found


@pytest.mark.parametrize("tokens", [7, 8, 100, 4096])
def test_a_text_has_as_many_tokens_as_asked_for(tokens: int) -> None:
    texts = [Writer(count, WORDS).text(tokens, Random(seed)) for seed in range(8)]
    assert [count(text) for text in texts] == [tokens] * 8
    assert len(set(texts)) == 8


def test_words_are_those_of_one_token() -> None:
    decoded = [" bal", "bar", " Dal", " ban", " bal", " 17", " gin", "  "]
    # before a word with b, one that ends in n is two tokens
    assert single_words(iter(decoded), count) == ["bal", "gin"]


def test_what_no_text_has_is_refused() -> None:
    with pytest.raises(InputError, match="no text has 1 tokens"):
        Writer(count, WORDS).text(1, Random(0))
    with pytest.raises(InputError, match="no word of the tokenizer is one token"):
        Writer(count, [])


@pytest.mark.parametrize(
    ("name", "lengths", "users"),
    [("short-4k", [4096] * 100, 100), ("long-128k", [131072] * 4, 1), ("mixed", mixed_lengths(500), 16)],
)
def test_a_suite(name: str, lengths: list[int], users: int, tmp_path: Path) -> None:
    """``count`` is one more than the words: nothing longer is needed where lengths are what is tested."""
    written = write_suite(name, tmp_path, Writer(lambda text: 1 + text.count(" ") + 1, ["word"]), 3, **SERVER)
    assert sorted(written) == lengths
    lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert [2 + line["question"].count(" ") for line in lines] == written
    assert {(line["answer"], line["max_tokens"]) for line in lines} == {("", 1)}
    assert written == [request.prompt_tokens for request in suite(name, 3).requests]
    config = SimpleNamespace(**run((tmp_path / f"{name}.py").read_text()))
    (dataset,), (model,) = config.datasets, config.models
    assert dataset["path"] == str(tmp_path / f"{name}.jsonl")
    assert dataset["type"] == "ais_bench.benchmark.datasets.CustomDataset"
    assert model["type"] == "ais_bench.benchmark.models.VLLMCustomAPI"
    asked = {"path": "/models/it's", "model": "deepseek", "host_ip": "node", "host_port": 8000}
    assert {key: model[key] for key in asked} == asked
    assert (model["batch_size"], model["max_out_len"], model["request_rate"]) == (users, 1, 0)
    assert model["retry"] == 1  # none would send nothing
    assert config.summarizer["attr"] == "performance"


def test_all_suites_of_the_paper_are_there() -> None:
    lengths = {name: suite(name).requests[0].prompt_tokens // 1024 for name in SUITES if name != "mixed"}
    short, long = [4, 8, 16], [64, 128, 256, 512, 1024]
    assert list(lengths.values()) == short + long


def measured(folder: Path, suite: str, milliseconds: float, failed: int = 0, run: str = "20261130_101010") -> None:
    """What AISBench writes of a run."""
    written = folder / "results" / suite / run / "performances" / suite / f"{suite}.json"
    written.parent.mkdir(parents=True)
    said = {"Benchmark Duration": {"total": f"{milliseconds} ms"}, "Failed Requests": {"total": failed}}
    written.write_text(json.dumps(said))


def test_results_beside_the_paper(tmp_path: Path) -> None:
    """The last run of each suite counts; the paper's gains are where it gives them."""
    measured(tmp_path / "vpp", "mixed", 1e6, run="20261129_101010")
    for name, seconds in (("vpp", 100.0), ("cpp", 112.5), ("dcpp", 105.0)):
        measured(tmp_path / name, "mixed", seconds * 1e3)
    measured(tmp_path / "vpp", "long-1m", 8e3)
    measured(tmp_path / "cpp", "long-1m", 9e3)
    shown = compared({name: durations(tmp_path / name) for name in ("vpp", "cpp", "dcpp")}).splitlines()
    assert " ".join(shown[0].split()) == "suite vpp cpp vpp over cpp paper dcpp vpp over dcpp paper"
    assert shown[2].split() == ["long-1m", "8.0", "s", "9.0", "s", "+12.5%"]
    assert shown[3].split() == ["mixed", "100.0", "s", "112.5", "s", "+12.5%", "+13.8%", "105.0", "s", "+5.0%", "+6.7%"]
    assert paper_gains()["long-512k", "dcpp"] == 0.131


def test_results_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results of AISBench"):
        durations(tmp_path)
    measured(tmp_path / "failed", "mixed", 1.0, failed=3)
    with pytest.raises(InputError, match="3 requests failed"):
        durations(tmp_path / "failed")
    (tmp_path / "results" / "mixed" / "run" / "performances" / "m").mkdir(parents=True)
    for text in ("{}", "[]", '{"Failed'):
        (tmp_path / "results" / "mixed" / "run" / "performances" / "m" / "m.json").write_text(text)
        with pytest.raises(InputError, match="is no result of AISBench's"):
            durations(tmp_path)
