"""What is not for people to read is not poured into their terminal."""

import sys
from pathlib import Path

import pytest

from vppc.cli import main


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
