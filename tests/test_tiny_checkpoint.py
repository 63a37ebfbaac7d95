"""The checkpoint that documents try things with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="weights are torch's")

from safetensors.torch import load_file

from examples.tiny_checkpoint import LLAMA, main, tensors


def test_the_same_seed_writes_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tiny"
    for _ in range(2):  # its own folder is written anew
        assert CliRunner().invoke(main, [str(folder), "--layers", "2", "--seed", "3"]).exit_code == 0
    document = json.loads((folder / "config.json").read_text())
    assert document == {**LLAMA, "num_hidden_layers": 2}
    written, expected = load_file(folder / "model.safetensors"), tensors(document, seed=3)
    assert written.keys() == expected.keys()
    assert all(written[name].equal(expected[name]) for name in expected)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(document["vocab_size"]))
    assert vocabulary["A"] == ord("A")


@pytest.mark.parametrize("name", ["config.json", "notes"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    result = CliRunner().invoke(main, [str(tmp_path)])
    assert result.exit_code == 2
    assert "holds something else: name a folder that is new or empty" in " ".join(result.output.split())
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {name: "{}"}


def test_what_is_not_installed_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    result = CliRunner().invoke(main, [str(tmp_path / "new")])
    assert result.exit_code == 1
    assert "safetensors, in whose format checkpoints are, is not installed: pip install" in result.output
    assert not (tmp_path / "new").exists()
