"""A wrong command line: what was probably meant."""

import pytest

from vppc.cli import main

HINTS = {
    "command": (["compil"], "did you mean compile?"),
    "no command is like it": (["xyz"], None),
    "choice": (["compile", "--pp", "2", "--chunks", "4", "--strategy", "vpp-asinc"], "did you mean vpp-async?"),
    "choice behind =": (["compile", "--pp", "2", "--chunks", "4", "--placement=zigzak"], "did you mean zigzag?"),
    "choice of several": (["serve-sim", "--suite", "short-4k", "--suite", "short_8k"], "did you mean short-8k?"),
    "argument": (["schema", "schedul"], "did you mean schedule?"),
    "no choice is like it": (["compile", "--pp", "2", "--chunks", "4", "--strategy", "gpipe"], None),
    "option to repeat": (
        ["compile", "--pp", "2", "--tokens", "32K", "128K"],
        "an option takes one value; repeat it: --tokens 32K --tokens 128K",
    ),
    "word too many": (["compile", "--pp", "2", "3"], None),
    "no number": (["compile", "--pp", "two"], None),
}


@pytest.mark.parametrize(("arguments", "hint"), HINTS.values(), ids=list(HINTS))
def test_hints(arguments: list[str], hint: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"  hint: {hint}" if hint else last.startswith("Error: ")
