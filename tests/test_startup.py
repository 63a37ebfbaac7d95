"""The command line as a whole: help that says everything, and one message with the right status for every error."""

import io
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import vppc
from vppc.cli import COMMANDS, main
from vppc.cli import vppc as vppc_group

ROOT = Path(__file__).resolve().parents[1]
COST = str(ROOT / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")
DOCUMENTED = {
    "compile": (
        "--pp --chunks --tokens --requests --strategy --placement --vp --layers --model --chunk-size --layer-ranges "
        "--max-in-flight --max-buffers --cost --prefix-hits --print-after --t --transfer -o"
    ),
    "verify": "FILE",
    "show": "FILE --from --to --width --json",
    "plot": "FILE... --view --width --rows --theme --cost -o",
    "trace": "FILE... --cost -o",
    "graph": "FILE -o",
    "simulate": "FILE --cost --json",
    "explain": "FILE --at --instruction --try --cost --json -o",
    "diff": "A B --listed --cost --json -o",
    "report": "FILE|JOURNAL --title --try --cost -o",
    "compare": "--pp --cost --model --tokens --requests --layer-ranges --strategy --chunk-size --measured-time "
    "--jobs --theme --json -o",
    "serve-sim": (
        "--suite --requests --limit --prefix-hits --concurrency --rate --pp --cost --model --launch --strategy "
        "--measured-time --chunk-size --policy --ttft-target --jobs --json -o"
    ),
    "serve": (
        "REQUESTS --pp --cost --model --strategy --chunk-size --policy --max-queued --max-resident-tokens --runner "
        "--checkpoint --tp --attach --timeout --drift --refitted -o"
    ),
    "shadow": "FOLDER --pp --strategy --chunk-size --base --costs --json -o",
    "tune": (
        "--pp --tokens --requests --cost --layers --max-chunk --min-chunk --align --placement --layer-ranges "
        "--objective --json -o"
    ),
    "model": "NAME|CONFIG --tp --ep --device --json -o",
    "calibrate": "MEASUREMENTS --layers --topk --select --bytes-per-token --schedule --rank --base --name --json -o",
    "profile": "DIR|FILE --step --cost --listed --json",
    "convert": "FILE -o",
    "doctor": "--pp --device --timeout --max-bytes --bytes-per-token --cost --json -o",
    "schema": "-o",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``vppc ARGUMENTS`` as a process of its own."""
    command = [sys.executable, "-m", "vppc", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def command(name: str) -> click.Command:
    """A command's object, through the group as a user reaches it."""
    found = vppc_group.get_command(click.Context(vppc_group), name)
    assert found is not None
    return found


def test_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"vppc, version {vppc.__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command_with_what_it_does(flag: str) -> None:
    shown = CliRunner().invoke(vppc_group, [flag])
    assert shown.exit_code == 0
    listed = shown.output.partition("Commands:\n")[2].split("\n\n")[0]
    assert [tuple(line.split(maxsplit=1)) for line in listed.splitlines()] == list(COMMANDS.items())


def test_every_command_is_in_the_table_of_documented_options_and_in_the_readme() -> None:
    assert DOCUMENTED.keys() == COMMANDS.keys()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"| `vppc {name}` |" not in readme] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_names_its_options(name: str) -> None:
    shown = run(name, "-h")
    assert shown.returncode == 0
    words = set(shown.stdout.replace(",", " ").replace("[", " ").replace("]", " ").split())
    assert set(DOCUMENTED[name].split()) <= words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    options = [parameter for parameter in command(name).params if isinstance(parameter, click.Option)]
    assert [option.opts for option in options if not option.help] == []
    assert command(name).help


def test_no_command_shows_the_help() -> None:
    shown = run()
    assert shown.returncode == 2
    assert "Commands:" in shown.stdout + shown.stderr


MISSING = "no/such/file.json"
BAD = {
    "unknown command": (["compil"], "compil"),
    "unknown option": (["compile", "--pq", "2"], "--pq"),
    "no prompt": (["compile", "--pp", "2"], "--chunks"),
    "no ranks": (["compile", "--pp", "0", "--chunks", "4"], "--pp"),
    "not a number": (["compile", "--pp", "two", "--chunks", "4"], "two"),
    "unknown strategy": (["compile", "--pp", "2", "--chunks", "4", "--strategy", "gpipe"], "vpp-packed"),
    "missing cost file": (["compile", "--pp", "2", "--tokens", "9", "--cost", MISSING], MISSING),
    "missing requests": (["compile", "--pp", "2", "--requests", MISSING, "--cost", COST], MISSING),
    "nowhere to write": (["compile", "--pp", "2", "--chunks", "4", "-o", "no/such/folder/plan.json"], "no/such/folder"),
    **{
        f"{name} of a missing file": ([name, MISSING], MISSING)
        for name in ("verify", "show", "plot", "trace", "graph", "simulate", "explain", "report")
    },
    "standard input is not JSON": (["verify", "-"], "JSON"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=list(BAD))
def test_bad_usage_is_one_message_and_status_2(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"not JSON")))
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert shown.out == ""
    assert named in shown.err
    assert len([line for line in shown.err.splitlines() if line.startswith(("vppc: ", "Error: "))]) == 1


def test_the_process_ends_with_the_status_and_without_a_traceback() -> None:
    shown = run("verify", MISSING)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"vppc: {MISSING}: ")
    assert "Traceback" not in shown.stderr


def test_a_reader_that_stops_early_is_no_error() -> None:
    writer = f"{sys.executable} -m vppc compile --pp 2 --chunks 2000"
    shown = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {writer} | head -c 10"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in shown.stderr
    assert "BrokenPipe" not in shown.stderr
