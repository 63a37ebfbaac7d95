"""Where commands write: every option that names a file is checked before any work, and nothing is created by that."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from vppc.cli import COMMANDS, vppc
from vppc.cli.output import GRAPHS, JSON, LINES, NOTATIONS, PAGES, PICTURES
from vppc.errors import InputError
from vppc.files import check_writable, write_text

NOTHING = "nothing.json"
"""An input that is not there: a command that began its work would complain of it."""
LEAST = {
    "compile": ("--pp", "2", "--requests", NOTHING),
    "serve-sim": ("--suite", "mixed", "--cost", NOTHING),
    "serve": ("--pp", "2", "--cost", NOTHING),
    "tune": ("--pp", "2", "--tokens", "9", "--cost", NOTHING),
    "compare": ("--cost", NOTHING),
    "diff": (NOTHING, NOTHING),
    "doctor": ("--cost", NOTHING, "--bytes-per-token", "2"),
    "schema": ("cost",),
}
WRITTEN = {
    **dict.fromkeys(("compile", "verify", "tune", "calibrate", "model", "doctor", "trace", "schema"), JSON),
    **dict.fromkeys(("explain", "diff", "shadow"), JSON),
    **dict.fromkeys(("compare", "serve-sim"), (*PICTURES, *JSON)),
    "plot": PICTURES,
    "report": PAGES,
    "graph": GRAPHS,
    "convert": NOTATIONS,
    "serve": LINES,
}
"""What each command's -o can be written in."""


def call(command: str, *options: str) -> Result:
    return CliRunner().invoke(vppc, [command, *LEAST.get(command, (NOTHING,)), *options])


def outputs() -> dict[str, tuple[str, str]]:
    """Every option that, as its help has it, names a file to be written."""
    found = {}
    for name in COMMANDS:
        command = vppc.get_command(click.Context(vppc), name)
        assert command is not None
        for option in command.params:
            said = getattr(option, "help", None) or ""
            if option.metavar == "FILE" and ("write" in said.lower() or "Where" in said):
                found[f"{name} {option.opts[0]}"] = (name, option.opts[0])
    return found


OUTPUTS = outputs()


def test_these_are_all() -> None:
    assert {name for name, option in OUTPUTS.values() if option == "-o"} == WRITTEN.keys()
    assert sorted(each for each in OUTPUTS if not each.endswith(" -o")) == ["serve --refitted", "shadow --costs"]


@pytest.mark.parametrize(("command", "option"), OUTPUTS.values(), ids=list(OUTPUTS))
def test_a_file_that_cannot_be_written_is_found_before_the_work(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suffix = WRITTEN[command][0] if option == "-o" else ".json"
    wrong = call(command, option, f"none/x{suffix}")
    assert str(wrong.exception) == f"none/x{suffix}: cannot be written: {tmp_path.resolve()}/none is not a folder"
    assert str(call(command, option, ".").exception) == ".: cannot be written: Is a directory"
    right = call(command, option, f"x{suffix}")
    assert command in ("schema", "doctor") or NOTHING in str(right.exception)  # so the check was the first of all
    assert command == "schema" or list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "option"), OUTPUTS.values(), ids=list(OUTPUTS))
def test_a_name_that_says_another_format_is_refused(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = WRITTEN[command] if option == "-o" else JSON
    for suffix in sorted({*PICTURES, *GRAPHS, *NOTATIONS, *LINES, ".pdf", ".gz"}):
        error = call(command, option, f"x{suffix.upper()}").exception
        refused = isinstance(error, InputError) and "is no format of" in error.problem
        assert refused == (suffix not in written)
    assert command == "schema" or list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plot", "graph"])
def test_where_the_name_alone_says_the_format_it_has_to(command: str) -> None:
    assert "is no format of" in str(call(command, "-o", "x.y").exception)


def test_two_options_do_not_write_one_file(tmp_path: Path) -> None:
    file = str(tmp_path / "x.json")
    again = os.path.join(tmp_path, ".", "x.json")
    assert str(call("shadow", "-o", file, "--costs", again).exception).startswith(
        f"{again}: --costs: is what -o writes"
    )
    assert str(call("shadow", "-o", "-", "--costs", "-").exception).startswith("-: --costs: is what -o writes, too\n")
    assert NOTHING in str(call("shadow", "-o", os.devnull, "--costs", os.devnull).exception)


def test_a_server_does_not_write_over_its_requests(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text("{}\n")
    refused = call("serve", str(requests), "-o", str(requests))
    assert str(refused.exception).startswith(f"{requests}: -o: is where the requests are\n")
    assert requests.read_text() == "{}\n"


def test_json_to_a_file_that_is_named_so(tmp_path: Path) -> None:
    plan, shown = str(tmp_path / "plan.json"), tmp_path / "shown.json"
    assert CliRunner().invoke(vppc, ["compile", "--pp", "2", "--chunks", "4", "-o", plan]).exit_code == 0
    asked = CliRunner().invoke(vppc, ["explain", plan, "--no-try", "--json"]).stdout
    assert CliRunner().invoke(vppc, ["explain", plan, "--no-try", "-o", str(shown)]).exit_code == 0
    assert shown.read_text() == asked


@pytest.mark.parametrize("name", ["folder", "none/out", "text/out", "x" * 300, "loop", "folder/"])
def test_a_check_beforehand_says_what_writing_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("x")
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError) as before:
        check_writable(name)
    with pytest.raises(InputError) as then:
        write_text(name, "y")
    assert str(before.value) == str(then.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot be written: .* is not writable"):
        check_writable(str(tmp_path / "out"))
