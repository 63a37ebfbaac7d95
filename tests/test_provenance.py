"""A schedule says which command made it, and keeps saying so wherever it goes."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from plans import paper

from vppc import __version__
from vppc.cli import vppc
from vppc.ir.document import schedule_text

COMPILE = ("compile", "--pp", "2", "--chunks", "4", "--layer-ranges", "[[0,2],[2,4]]", "--strategy", "cpp")


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(vppc, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def provenance(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["provenance"]
    return found


def test_a_compiled_schedule_has_its_command() -> None:
    command = "vppc compile --pp 2 --chunks 4 --layer-ranges '[[0,2],[2,4]]' --strategy cpp"
    made = run(*COMPILE)
    assert provenance(made) == {"command": command, "compiler": f"vppc {__version__}"}
    assert run(*shlex.split(command)[1:]) == made


def test_where_it_is_written_changes_nothing_of_it(tmp_path: Path) -> None:
    plans = [tmp_path / f"{number}.json" for number in range(5)]
    run(*COMPILE, "-o", plans[0])
    run(*COMPILE, f"-o{plans[1]}")
    run(*COMPILE[:3], "--output", plans[2], *COMPILE[3:])
    run("compile", f"--output={plans[3]}", *COMPILE[1:])
    plans[4].write_text(run(*COMPILE, "-o", "-"))
    assert {plan.read_text() for plan in plans} == {run(*COMPILE)}


def test_what_looks_like_an_output_but_is_a_value_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-o").write_text('{"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_token": 0.1}]}')
    for words in (("--cost", "-o"), ("--cost=-o",)):
        made = run("compile", "--pp", "2", "--tokens", "100", *words, "-o", "-")
        assert provenance(made)["command"] == shlex.join(["vppc", "compile", "--pp", "2", "--tokens", "100", *words])


def test_behind_two_dashes_nothing_is_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads("".join(schedule_text(paper("cpp", 2))))
    Path("-o").write_text(json.dumps({**document, "provenance": {}}))
    run("verify", "-o", "proven.json", "--", "-o")
    assert provenance(Path("proven.json").read_text()) == {"command": "vppc verify -- -o"}


def test_paths_are_as_they_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd = os.fsdecode(b"a queue\xff.json")
    Path(odd).write_text('[{"prompt_tokens": 100}]')
    Path("cost.json").write_text('{"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_token": 0.1}]}')
    made = run("compile", "--pp", "2", "--requests", f"./{odd}", "--cost", "../" + tmp_path.name + "/cost.json")
    command = f"vppc compile --pp 2 --requests './a queue\\xff.json' --cost ../{tmp_path.name}/cost.json"
    assert provenance(made)["command"] == command


def test_a_tuned_schedule_and_what_studies_print_have_theirs(tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text(
        '{"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_token": 1}]}'
    )
    cost = ("--cost", tmp_path / "cost.json")
    tuning = ("tune", "--pp", "2", "--tokens", "500", *cost, "--placement", "straight", "--effort", "0.1", "--json")
    printed = run(*tuning, "-o", tmp_path / "plan.json")
    command = shlex.join(["vppc", *map(str, tuning)])
    assert provenance(printed)["command"] == provenance((tmp_path / "plan.json").read_text())["command"] == command
    comparing = ("compare", "--pp", "2", "--tokens", "500", *cost, "--strategy", "cpp", "--chunk-size", "100", "--json")
    assert provenance(run(*comparing))["command"] == shlex.join(["vppc", *map(str, comparing)])


def test_what_is_rewritten_keeps_the_command_that_made_it(tmp_path: Path) -> None:
    first, asm, last, proven = (tmp_path / name for name in ("a.json", "a.asm", "b.json", "c.json"))
    run(*COMPILE, "-o", first)
    run("convert", first, "-o", asm)
    run("convert", asm, "-o", last)
    run("verify", last, "-o", proven)
    assert first.read_bytes() == last.read_bytes() == proven.read_bytes()


def test_what_came_without_a_command_has_that_which_wrote_it(tmp_path: Path) -> None:
    foreign, proven = tmp_path / "foreign.json", tmp_path / "proven.json"
    document = json.loads("".join(schedule_text(paper("cpp", 2))))
    document["provenance"] = {"when": "12:00"}
    foreign.write_text(json.dumps(document))
    run("verify", foreign, "-o", proven)
    command = shlex.join(["vppc", "verify", str(foreign)])
    assert provenance(proven.read_text()) == {"command": command, "when": "12:00"}
    run("convert", proven, "--to", "torch-csv", "-o", tmp_path / "a.csv")
    made = provenance(run("convert", tmp_path / "a.csv", "--to", "json"))
    assert made == {"command": shlex.join(["vppc", "convert", f"{tmp_path}/a.csv", "--to", "json"])}


def test_a_library_s_caller_has_no_command() -> None:
    assert paper("cpp", 2).extra["provenance"] == {"compiler": f"vppc {__version__}"}
