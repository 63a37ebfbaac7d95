"""A wrong command line: what was probably meant."""

import click
import pytest

from vppc.cli import main
from vppc.cli.number import MOMENT, Gibibytes

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


@pytest.mark.parametrize(
    ("text", "gib"),
    [("40", 40.0), ("40GiB", 40.0), ("80GB", 80e9 / 2**30), (" 1024 MiB", 1.0), ("512mb", 512e6 / 2**30)],
)
def test_memory_has_units(text: str, gib: float) -> None:
    assert Gibibytes(0.1, 2**20).convert(text, None, None) == gib


@pytest.mark.parametrize("text", ["", "GB", "80G", "many", "nan"])
def test_other_memory_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"such as 40|is not a number"):
        Gibibytes(0.1, 2**20).convert(text, None, None)


@pytest.mark.parametrize("text", ["10min", "1h", "", "s"])
def test_a_time_that_is_none_says_what_is(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match=r"is not a time, such as 1\.5 \(seconds\), 1\.5s, 20ms, 300us or 40ns"
    ):
        MOMENT.convert(text, None, None)
