"""Every option of every command: given, it changes what comes out, or is refused with a message that names it.

Each command is run in situations of a few options, and in each with every further option that it has, alone. The values
are such that they matter where they can. What comes out is all that a user sees: both streams, status and files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import pytest
from click.testing import CliRunner

from runtime.arguments import parse
from runtime.selftest.command import Options, read_base
from tests.plans import DEEPSEEK
from vppc.cli import COMMANDS, vppc
from vppc.errors import InputError
from vppc.passes.strategies import LAYER_SPLITS

COST = ("--cost", str(DEEPSEEK))
QUEUE = ("--requests", "queue.json")
MODEL = ("--model", "deepseek-v3.1", "--tp", "16", "--ep", "16")
PROMPTS = (20000, 3000, 2000, 17000)

COMMON = {
    "--requests": "trace.jsonl",
    "--layers": "60",
    "--device": "h100",
    "--tp": "4",
    "--ep": "4",
    "--weight-dtype": "fp8",
    "--token-budget": "9000",
    "--layer-ranges": "[[0,20],[20,61]]",
    "--layer-split": "balanced",
    "--max-in-flight": "1",
    "--max-resident-tokens": "4",
    "--max-buffers": "2",
    "--page-size": "1000",
    "--min-chunk": "6000",
    "--smooth": "0.3",
    "--context-length": "9000",
    "--measured-time": "own",
    "--warmups": "3",
    "--placement": "zigzag",
    "--vp": "4",
    "--chunk-size": "3000",
    "--pp": "4",
    "--cost": "other.json",
    "--model": "llama-3.1-70b",
    "--theme": "dark",
    "--jobs": "2",
}
VALUES = {
    "compile": {
        **COMMON,
        "--chunks": "3",
        "--tokens": "9000",
        "--strategy": "vpp",
        "--t": "2",
        "--transfer": "0.5",
        "--print-after": "layout",
        "--output": "o.json",
    },
    "tune": {
        **COMMON,
        "--tokens": "9000",
        "--max-chunk": "4096",
        "--min-chunk": "5000",
        "--align": "777",
        "--memory": "20",
        "--objective": "ttft",
        "--exact": "0.1",
        "--effort": "0.2",
        "--output": "o.json",
    },
    "compare": {
        **COMMON,
        "--tokens": "9000",
        "--queue": "9000+50",
        "--prompts": "3",
        "--strategy": "vpp",
        "--output": "o.json",
    },
    "serve-sim": {
        **COMMON,
        "--suite": "short-4k",
        "--limit": "2",
        "--concurrency": "2",
        "--rate": "0.01",
        "--seed": "3",
        "--launch": "0.5",
        "--strategy": "vpp",
        "--policy": "srpf",
        "--patience": "0.001",
        "--ttft-target": "3",
        "--output": "o.json",
    },
    "show": {
        "--rank": "1",
        "--request": "r3",
        "--cost": "other.json",
        "--width": "77",
        "--from": "1",
        "--to": "2",
        "--color": "always",
    },
    "plot": {"--view": "timeline", "--width": "700", "--rows": "3", "--theme": "dark", "--output": "o.svg"},
    "trace": {"--output": "o.json"},
    "graph": {"--format": "json", "--level": "instruction", "--output": "o.graphml"},
    "simulate": {},
    "explain": {"--at": "1", "--instruction": "1:2", "--output": "o.json"},
    "diff": {"--listed": "0", "--output": "o.json"},
    "report": {"--title": "T", "--output": "o.html"},
    "model": {
        "--tp": "4",
        "--ep": "4",
        "--weight-dtype": "fp8",
        "--device": "h100",
        "--efficiency": "matmul=0.1",
        "--output": "o.json",
    },
    "calibrate": {
        "--layers": "7",
        "--topk": "100",
        "--select": "site=a",
        "--bytes-per-token": "5",
        "--schedule": "plan.json",
        "--rank": "1",
        "--step": "1",
        "--base": str(DEEPSEEK),
        "--name": "N",
        "--output": "o.json",
    },
    "convert": {"--to": "asm", "--transfers": "blocking", "--output": "o.csv"},
    "verify": {},
    "schema": {"--output": "o.json"},
    "profile": {"--step": "7", "--cost": "other.json", "--listed": "1"},
}
SITUATIONS: dict[str, Sequence[tuple[str, ...]]] = {
    "compile": [
        ("--pp", "2", "--chunks", "6", "--layers", "9"),
        ("--pp", "2", *QUEUE, *COST),
        ("--pp", "2", *QUEUE, *COST, "--model", "deepseek-v3.1"),
        ("--pp", "2", *QUEUE, *COST, "--strategy", "cpp"),
        ("--pp", "2", *QUEUE, *COST, "--strategy", "dcpp"),
        ("--pp", "2", *QUEUE, *COST, "--strategy", "dcpp-sglang"),
        ("--pp", "2", *QUEUE, *MODEL, "--strategy", "cpp"),
    ],
    "compare": [
        (*QUEUE, *COST, "--strategy", "cpp", "--chunk-size", "8192"),
        (*QUEUE, *COST, "--strategy", "cpp", "--chunk-size", "8192", "--layer-ranges", "31,30"),
        (*QUEUE, *MODEL, "--strategy", "dcpp", "--chunk-size", "8192"),
        (*QUEUE, *COST, "--strategy", "vpp-packed", "--chunk-size", "8192", "-o", "x.svg"),
    ],
    "serve-sim": [
        (*QUEUE, *COST, "--strategy", "cpp"),
        (*QUEUE, *COST, "--model", "deepseek-v3.1", "--strategy", "dcpp"),
        (*QUEUE, *MODEL, "--pp", "4", "--strategy", "vpp-packed", "-o", "x.svg"),
    ],
    "tune": [
        ("--pp", "2", "--tokens", "20000", *COST, "--placement", "straight", "--effort", "0.1"),
    ],
    "show": [
        ("queue-plan.json", *more)
        for more in ((), ("--json",), ("--programs",), ("--no-programs",), ("--no-timeline",))
    ],
    "plot": [("plan.json",), ("plan.json", "-o", "x.html")],
    "graph": [("plan.json",)],
    "trace": [("plan.json",)],
    "explain": [("plan.json", "--no-try"), ("plan.json", "--at", "0.5"), ("plan.json", "--instruction", "1:1")],
    "diff": [("plan.json", "other-plan.json")],
    "model": [("deepseek-v3.1",), *(("deepseek-v3.1", "--device", "910c", *more) for more in ((), ("-o", "-")))],
    "calibrate": [("times.csv", *more) for more in ((), ("--base", "base.json"), ("-o", "-"))],
    "convert": [("plan.json", "--to", "torch-csv")],
    "schema": [("cost",)],
    "profile": [("step_trace_time.csv",)],
}
NOTHING_TO_SEE = {
    "--jobs": "how many processes do the work is not what comes out of it",
    "--no-try": "as it is by itself",
    "--robust": "it prefers another schedule where there is one",
    "--bytes-per-token": "tables with bytes need it",
}
"""Options that may change nothing, by why."""

REPEATED = re.compile(rb'"command": "vppc [^\n]*')
"""Where a result says by which command it is made."""


class Seen(NamedTuple):
    """What a user sees of a command."""

    status: int
    out: str
    err: str
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the situations name."""
    folder = tmp_path_factory.mktemp("options")
    requests = [{"id": f"r{index}", "prompt_tokens": tokens} for index, tokens in enumerate(PROMPTS)]
    (folder / "queue.json").write_text(json.dumps({"requests": requests}))
    trace = ({"timestamp": index * 100, "input_length": 1500, "hash_ids": [0, 1, 2 + index]} for index in range(4))
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trace))
    cost = json.loads(DEEPSEEK.read_text())
    (folder / "base.json").write_text(json.dumps(cost))
    (folder / "other.json").write_text(json.dumps({**cost, "name": "other", "launch": 0.001}))
    rows = [(n, p, 0.01 + 1e-5 * n + 1e-9 * n * p) for n in (64, 128, 512, 1024, 2048) for p in (0, 1000, 5000)]
    lines = (f"{n},{p},{t},{'a' if n > 99 else 'b'}\n" for n, p, t in rows)
    (folder / "times.csv").write_text("chunk_tokens,prefix_tokens,seconds,site\n" + "".join(lines))
    columns = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble"
    line = "1,100.5,40,10,50,9.5,120,30,10"
    (folder / "step_trace_time.csv").write_text(
        f"{columns},Communication(Not Overlapped and Exclude Receive)\n{line}\n"
    )
    long, queue = ("--tokens", "60000", "--chunk-size", "2K"), ("--tokens", "9000") * 14
    for name, prompts, strategy in (
        ("plan.json", long, "vpp-async"),
        ("other-plan.json", long, "vpp"),
        ("queue-plan.json", queue, "vpp-packed"),
    ):
        options = ["--pp", "2", *prompts, *COST, "--strategy", strategy, "-o", str(folder / name)]
        assert CliRunner().invoke(vppc, ["compile", *options]).exit_code == 0
    return folder


def seen(folder: Path, command: str, *options: str) -> Seen:
    """Run a command in the folder, which is afterwards as it was before. What repeats the options is left out."""
    before = {each.name for each in folder.iterdir()}
    result = CliRunner().invoke(vppc, [command, *options])
    files = {each.name: REPEATED.sub(b"", each.read_bytes()) for each in folder.iterdir() if each.name not in before}
    for name in files:
        (folder / name).unlink()
    said = result.stderr if result.exception is None or isinstance(result.exception, SystemExit) else ""
    out = REPEATED.sub(b"", result.stdout.encode()).decode()
    return Seen(result.exit_code, out, said or str(result.exception or ""), files)


def options_of(command: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Every option of a command: its names, and how it is given."""
    found = vppc.get_command(click.Context(vppc), command)
    assert found is not None
    for option in found.params:
        if isinstance(option, click.Option):
            names = (*option.opts, *option.secondary_opts)
            long = max(option.opts, key=len)
            if option.is_flag:
                yield names, (option.secondary_opts[-1] if option.secondary_opts else long,)
            elif long in VALUES[command]:
                yield names, (long, VALUES[command][long])


def said_of(names: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """The words that a message about an option has, one of them at least."""
    yield from (*names, *given[1:])
    for name in names:
        yield name.lstrip("-").replace("-", " ")


CASES = [(command, situation) for command, situations in SITUATIONS.items() for situation in situations]


@pytest.mark.parametrize(("command", "situation"), CASES, ids=[f"{each[0]}-{n}" for n, each in enumerate(CASES)])
def test_an_option_changes_what_comes_out_or_is_refused(
    command: str, situation: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    without = seen(folder, command, *situation)
    assert without.status == 0, without.err
    silent, unnamed = [], []
    for names, given in options_of(command):
        if given[0] in NOTHING_TO_SEE or set(names) & set(situation):
            continue
        beside = seen(folder, command, *situation, *given)
        if beside == without:
            silent.append(given)
        elif beside.status and not any(word in beside.err for word in (*said_of(names, given), *situation)):
            unnamed.append((given, beside.err))
    assert (silent, unnamed) == ([], [])


def test_where_stdout_has_the_schedule_the_tables_are_not_asked_for_as_json() -> None:
    quick = ("--pp", "2", "--tokens", "200", *COST, "--placement", "straight", "--effort", "0.1")
    refused = CliRunner().invoke(vppc, ["tune", *quick, "-o", "-", "--json"]).exception
    assert isinstance(refused, InputError)
    assert str(refused).startswith("--json: says nothing beside -o -, which writes the schedule and nothing else")


def test_layers_are_split_in_the_same_ways_everywhere() -> None:
    choices: dict[str, tuple[str, ...]] = {}
    for name in COMMANDS:
        command = vppc.get_command(click.Context(vppc), name)
        assert command is not None
        for each in command.params:
            if "--layer-split" in each.opts:
                choices[name] = tuple(cast("click.Choice[str]", each.type).choices)
    assert choices.keys() == {"compile", "compare", "serve-sim"}
    assert set(choices.values()) == {LAYER_SPLITS}


def test_a_command_that_starts_ranks_refuses_before_it_does() -> None:
    attached = ("--attach", "127.0.0.1:1")
    for beside, option, message in (
        ((), ("--device", "h100"), "without --model"),
        (("--model", "deepseek-v3.1"), ("--device", "h100"), "beside --cost"),
        ((), ("--patience", "1"), "without a --policy other than fcfs"),
        (("--policy", "srpf"), ("--ttft-target", "1"), "without --policy deadline"),
        (("--runner", "timed"), ("--checkpoint", "x"), "without --runner reference or vllm"),
        (("--runner", "null"), ("--dtype", "bfloat16"), "without --runner reference or vllm"),
        (("--runner", "null"), ("--seed", "1"), "without --runner reference or vllm"),
        *((attached, (name, value), "beside --attach") for name, value in (("--runner", "null"), ("--seed", "1"))),
    ):
        refused = CliRunner().invoke(vppc, ["serve", "--pp", "2", *COST, *beside, *option]).exception
        assert isinstance(refused, InputError)
        assert str(refused).startswith(f"{option[0]}: says nothing {message}")


@pytest.mark.parametrize("option", [{"cost": "c.json"}, {"bytes_per_token": 5}])
def test_the_self_test_writes_costs_only_when_it_is_told_where(option: dict[str, Any]) -> None:
    nothing = Options(2, "cpu", 60.0, None, None, None, None, as_json=False)
    assert read_base(nothing) is None
    with pytest.raises(InputError, match="says nothing without -o"):
        read_base(replace(nothing, **option))


@pytest.mark.parametrize("runner", ["timed", "null"])
@pytest.mark.parametrize(
    "option", [("--model", "m"), ("--prompts", "p"), ("--dtype", "bfloat16"), ("--seed", "3"), ("--check-finite",)]
)
def test_a_runner_that_computes_nothing_takes_no_model(
    runner: str, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["plan.json", "--runner", runner, *option])
    assert ended.value.code == 2
    assert f"{option[0]} says nothing beside --runner {runner}" in capsys.readouterr().err
    assert parse(["plan.json", *option]).runner == "reference"
