"""What is not for people to read is not poured into their terminal."""

import sys
from pathlib import Path

import pytest

from vppc.cli import main

COST = str(Path(__file__).parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = str(tmp_path / "plan.json")
    with pytest.raises(SystemExit):
        main(["compile", "--pp", "2", "--chunks", "3", "-o", file])
    return file


@pytest.mark.parametrize(
    ("command", "what"), [("plot", "a drawing"), ("report", "a page"), ("trace", "a trace")], ids=lambda text: text
)
def test_a_terminal_gets_it_only_when_it_is_asked_for(
    command: str, what: str, plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([command, plan])
    shown = capsys.readouterr()
    assert (stopped.value.code, shown.out) == (2, "")
    assert shown.err == f"vppc: -o: {what} is not for a terminal\n  hint: -o FILE, a pipe, or -o - to see it here\n"
    with pytest.raises(SystemExit) as stopped:
        main([command, plan, "-o", "-"])
    assert (stopped.value.code, len(capsys.readouterr().out) > 1000) == (0, True)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_long_work_tells_a_terminal_how_far_it_is(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--cost", COST, "--tokens", "8K", "--strategy", "cpp", "--chunk-size", "2K", "--jobs", "1"])
    shown = capsys.readouterr()
    assert stopped.value.code == 0
    assert ("compare" in shown.err and "1/1" in shown.err) == terminal
    assert "1/1" not in shown.out
