"""What users and machines do to a program: bad files, absurd sizes, options that conflict, output that goes nowhere.

Every case ends with exit status 0, 1 or 2 and one message, and never in a traceback, a hang or half a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.plans import DEEPSEEK
from vppc import files
from vppc.cli import convert, main
from vppc.compare import Case, compare, equal_prompts
from vppc.costs.model import CostModel
from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Model, Request, Schedule, Stage
from vppc.json_text import loads
from vppc.passes import chunking, layout
from vppc.passes.chunking import FixedChunks
from vppc.passes.layout import Layout
from vppc.passes.strategies import Options

ROOT = Path(__file__).resolve().parents[1]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    file = tmp_path / "plan.json"
    assert run(capsys, "compile", "--pp", "2", "--chunks", "3", "-o", file)[0] == 0
    return file


def test_a_schedule_of_nothing_is_read_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One rank that is asked nothing, which breaks no rule."""
    pytest.importorskip("bokeh", reason="a report needs Bokeh")
    alone = tmp_path / "alone.json"
    assert run(capsys, "compile", "--pp", "1", "--chunks", "1", "-o", alone)[0] == 0
    document = json.loads(alone.read_text())
    del document["certificate"]
    nothing = tmp_path / "nothing.json"
    programs = [{**program, "instructions": []} for program in document["programs"]]
    nothing.write_text(json.dumps({**document, "requests": [], "chunks": [], "programs": programs}))
    for command in ("verify", "simulate", "show", "explain", "plot", "trace", "graph"):
        assert run(capsys, command, nothing)[0] == 0
    for arguments in (
        ("explain", nothing, "--at", "0"),
        ("explain", nothing, "--json"),
        ("report", nothing, "-o", tmp_path / "x.html"),
        ("diff", nothing, nothing),
        ("diff", nothing, alone, "--json"),
        ("convert", nothing, "--to", "asm"),
        ("convert", nothing, "--to", "torch-csv"),
    ):
        assert run(capsys, *arguments)[0] == 0, arguments


# Numbers that are none


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "f: line 1, column 7: NaN is not a finite number"),
        ('{"a": NaNabc}', "f: line 1, column 7: NaN is not a finite number"),
        ('["NaN",\nNaN5]', "f: line 2, column 1: NaN is not a finite number"),
        ("[-Infinityq]", "f: line 1, column 2: -Infinity is not a finite number"),
        ("[Infinity.5]", "f: line 1, column 2: Infinity is not a finite number"),
        ("[1e999x]", "f: line 1, column 2: 1e999 is not a finite number"),
        ("[1e999.5]", "f: line 1, column 2: 1e999 is not a finite number"),
        (f"[{'9' * 5000}abc]", "f: line 1, column 2: an integer has more than 4300 digits"),
        (f"[{'9' * 5000}.5, {'9' * 5000}]", f"f: line 1, column 2: {'9' * 57}... is not a finite number"),
        ('["\\"NaN", NaN]', "f: line 1, column 11: NaN is not a finite number"),
        ("[1, 2, NaNNaN, NaN]", "f: line 1, column 8: NaN is not a finite number"),
        ('["\x01"]', "f: line 1, column 3: not JSON: invalid control character"),
    ],
)
def test_a_bad_number_is_found_whatever_stands_behind_it(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        loads(text, "f")
    assert str(raised.value).split("\n")[0] == message


def test_a_bad_number_in_the_place_of_an_instruction(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(plan.read_text().replace('"of": ', '"of": NaN', 1))
    status, out, err = run(capsys, "verify", plan)
    assert (status, out) == (2, "")
    assert "NaN is not a finite number" in err


# Absurd sizes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chunks", "2147483647"), "the prompts make more than 1,048,576 chunks\n  hint: use larger chunks"),
        (
            ("--tokens", "2147483647", "--chunk-size", "1", "--cost", str(DEEPSEEK)),
            "the prompts make more than 1,048,576 chunks\n  hint: use larger chunks",
        ),
        (("--chunks", "3", "--layers", "1048577"), "1048577 is not in the range 1<=x<=1048576"),
    ],
)
def test_what_no_machine_could_compile_is_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "compile", "--pp", "2", *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_every_way_to_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "MOST_CHUNKS", 3)
    prompts = Schedule("x", Model("m", 4), 2, 1, requests=(Request("a", 2), Request("b", 2)))
    assert len(FixedChunks(2)(prompts).chunks) == 2
    assert len(FixedChunks(1)(replace(prompts, requests=(Request("a", 3),))).chunks) == 3
    with pytest.raises(InputError, match="more than 3 chunks"):
        FixedChunks(1)(prompts)
    with pytest.raises(InputError, match="more than 3 chunks"):
        chunking.split_requests(prompts.requests, lambda prefix, left: 1)


def test_operations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_OPERATIONS", 8)
    chunked = Schedule("x", Model("m", 4), 2, 1, chunks=(Chunk(()),) * 2)
    assert len(Layout("v", 2)(chunked).stages) == 4
    with pytest.raises(InputError, match="3 chunks on 4 stages are 12 operations"):
        Layout("v", 2)(Schedule("x", Model("m", 4), 2, 1, chunks=(Chunk(()),) * 3))


def test_a_cost_file_has_not_more_layers_than_a_schedule_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"format": "vppc.cost", "version": 1, "layers": [{"count": 2**20}, {"count": 1}]}))
    assert run(capsys, "compile", "--pp", "2", "--tokens", "9", "--cost", cost) == (
        2,
        "",
        f"vppc: {cost}: layers: the counts add up to 1048577 layers\n  hint: at most 1048576\n",
    )


def test_many_ranks_take_no_time_squared() -> None:
    ranks = 2**16
    wide = Schedule("x", Model("m", ranks), ranks, 1, tuple(Stage(s, s, (s, s + 1)) for s in range(ranks)))
    assert wide.rank_stages == tuple((rank,) for rank in range(ranks))


# Options that do not go together


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--chunks", "3", "--device", "nope"), "--device: says nothing without --model\n"),
        (("--chunks", "3", "--weight-dtype", "bf16"), "--weight-dtype: says nothing without --model\n"),
        (("--chunks", "3", "--prefix-hits"), "--prefix-hits: says nothing without --requests\n"),
        (("--chunks", "3", "--chunk-size", "1"), "--chunk-size: --chunks are of one token\n"),
        (("--tokens", "3", "--cost", str(DEEPSEEK), "--t", "1"), "--t: says nothing without --chunks\n"),
        (("--tokens", "3", "--cost", str(DEEPSEEK), "--transfer", "1"), "--transfer: says nothing without --chunks\n"),
        (("--tokens", "3", "--cost", str(DEEPSEEK), "--ep", "2"), "--ep: says nothing without --model\n"),
        (("--chunks", "3", "--tokens", "3"), "give one of --chunks, --tokens and --requests\n"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "compile", "--pp", "2", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"vppc: {message}")


SIMULATED = ("serve-sim", "--suite", "short-4k", "--strategy", "cpp", "--cost", str(DEEPSEEK))
COMPARED = ("compare", "--tokens", "9000", "--strategy", "cpp", "--cost", str(DEEPSEEK))
TUNED = ("tune", "--pp", "2", "--tokens", "9000", "--cost", str(DEEPSEEK))
COMPILED = ("compile", "--pp", "2", "--tokens", "9000", "--cost", str(DEEPSEEK))


@pytest.mark.parametrize(
    ("command", "option", "value", "missing"),
    [
        (COMPILED, "--min-chunk", "5", "--strategy dcpp"),
        (COMPILED, "--page-size", "5", "--strategy dcpp or dcpp-sglang"),
        (COMPILED, "--smooth", "1", "--strategy dcpp or dcpp-sglang"),
        (COMPILED, "--context-length", "5", "--strategy dcpp-sglang"),
        (COMPILED, "--measured-time", "own", "--strategy dcpp"),
        (COMPILED, "--warmups", "1", "--strategy dcpp and --measured-time own or wait"),
        ((*COMPILED, "--strategy", "dcpp"), "--warmups", "1", "--strategy dcpp and --measured-time own or wait"),
        ((*COMPILED, "--strategy", "dcpp"), "--context-length", "5", "--strategy dcpp-sglang"),
        ((*COMPILED, "--strategy", "dcpp-sglang"), "--min-chunk", "5", "--strategy dcpp"),
        (COMPARED, "--min-chunk", "5", "--strategy dcpp"),
        (COMPARED, "--smooth", "1", "--strategy dcpp or dcpp-sglang"),
        (COMPARED, "--measured-time", "own", "--strategy dcpp"),
        (COMPARED, "--device", "910c", "--model"),
        (COMPARED, "--tp", "1", "--model"),
        (COMPARED, "--weight-dtype", "nope", "--model"),
        (COMPARED, "--theme", "dark", "-o a picture (.svg, .html or .png)"),
        (("compare", "--requests", "FILE", "--cost", str(DEEPSEEK)), "--prompts", "2", "--tokens"),
        (SIMULATED, "--ep", "2", "--model"),
        (SIMULATED, "--page-size", "5", "--strategy dcpp or dcpp-sglang"),
        (SIMULATED, "--warmups", "1", "--strategy dcpp and --measured-time own or wait"),
        (SIMULATED, "--placement", "zigzag", "--strategy vpp, vpp-async or vpp-packed"),
        (SIMULATED, "--vp", "4", "--strategy vpp, vpp-async or vpp-packed"),
        (SIMULATED, "--theme", "dark", "-o a picture (.svg, .html or .png)"),
        ((*COMPILED, "--model", "deepseek-v3.1"), "--ep", "2", "--device"),
        ((*COMPILED, "--model", "deepseek-v3.1"), "--weight-dtype", "fp8", "--device"),
        (TUNED, "--device", "910c", "--model"),
        (TUNED, "--ep", "2", "--model"),
        (TUNED, "--weight-dtype", "fp8", "--model"),
        (TUNED, "--memory", "40", "--model"),
        (TUNED, "--objective", "ttft", "several prompts"),
        ((*TUNED, "--model", "deepseek-v3.1"), "--ep", "2", "--device"),
        ((*TUNED, "--placement", "straight"), "--max-in-flight", "2", "a placement that returns to rank 0"),
        (("compile", "--pp", "2", "--chunks", "4"), "--token-budget", "4", "--tokens or --requests"),
        (("calibrate", "FILE"), "--rank", "1", "an Ascend profile"),
        (("convert", "FILE", "--to", "asm"), "--transfers", "blocking", "--from torch-csv"),
        (("profile", "FILE"), "--listed", "3", "a journal"),
        (("model", "kimi-k2"), "--network", None, "--device"),
    ],
)
def test_an_option_that_says_something_only_beside_another(
    command: tuple[str, ...],
    option: str,
    value: str | None,
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue = tmp_path / "queue.json"
    queue.write_text('[{"id": "a", "prompt_tokens": 9}]')
    given = [str(queue) if word == "FILE" else word for word in command]
    assert run(capsys, *given, option, *((value,) if value else ())) == (
        2,
        "",
        f"vppc: {option}: says nothing without {missing}\n  hint: give {missing}, or leave it out\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (*COMPILED, "--strategy", "dcpp", "--min-chunk", "64", "--measured-time", "own", "--warmups", "0"),
        (*COMPILED, "--strategy", "dcpp-sglang", "--smooth", "1", "--page-size", "64", "--context-length", "9000"),
        (*COMPILED, "--placement", "zigzag", "--vp", "4"),
        (*COMPARED, "--strategy", "dcpp", "--measured-time", "wait", "--warmups", "0", "--min-chunk", "64"),
        (*SIMULATED, "--strategy", "vpp", "--placement", "loop", "--vp", "3"),
        ("model", "kimi-k2", "--device", "h100", "--network"),
    ],
)
def test_and_beside_it_is_taken(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.parametrize("option", ["--json", "--try"])
@pytest.mark.parametrize(("part", "value"), [("--at", "1"), ("--instruction", "0:1")])
def test_a_part_of_a_run_is_told_in_words(
    part: str, value: str, option: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "explain", plan, part, value, option) == (
        2,
        "",
        f"vppc: {option}: says nothing beside {part}\n  hint: give one of the two\n",
    )


@pytest.mark.parametrize("option", ["--cost", "--try"])
def test_a_study_has_no_costs_and_nothing_to_try(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bokeh")
    study, page = tmp_path / "study.json", tmp_path / "page.html"
    study.write_text(run(capsys, *COMPARED, "--json")[1])
    value = [DEEPSEEK] if option == "--cost" else []
    assert run(capsys, "report", study, option, *value, "-o", page) == (
        2,
        "",
        f"vppc: {option}: says nothing about a study\n  hint: give a schedule, or leave it out\n",
    )
    assert not page.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("plot", "-", "-"),
        ("trace", "-", "-"),
        ("diff", "-", "-"),
        ("verify", "-", "-"),
        ("calibrate", "-", "-"),
        ("calibrate", "-", "--base", "-"),
        ("serve", "--pp", "2", "--cost", "-"),
        ("simulate", "-", "--cost", "-"),
        ("diff", "-", "FILE", "--cost", "-"),
        ("compile", "--pp", "2", "--requests", "-", "--cost", "-"),
        ("compile", "--pp", "2", "--tokens", "9", "--model", "-", "--cost", "-"),
        ("compare", "--requests", "-", "--cost", "-"),
        ("serve-sim", "--requests", "-", "--cost", "-"),
        ("tune", "--pp", "2", "--requests", "-", "--cost", "-"),
    ],
)
def test_stdin_is_one_input(
    arguments: tuple[str, ...], plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with plan.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        given = [str(plan) if word == "FILE" else word for word in arguments]
        assert run(capsys, *given) == (
            2,
            "",
            "vppc: -: only one input can be stdin\n  hint: give a file for the others\n",
        )


@pytest.mark.parametrize("command", ["plot", "trace", "diff"])
def test_costs_of_several_files_are_not_taken_from_stdin(
    command: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, command, str(plan), str(plan), "--cost", "-") == (
        2,
        "",
        "vppc: --cost: is read for each of the files, which stdin cannot be\n  hint: name a file\n",
    )


def test_a_picture_too_large_for_a_png(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("resvg_py")
    picture = tmp_path / "x.png"
    status, out, err = run(capsys, "plot", plan, "--width", "20000", "--rows", "200", "-o", picture)
    assert (status, out) == (2, "")
    assert err.startswith(f"vppc: {picture}: -o: 40,000 x ")
    assert err.endswith(
        " pixels are too many for a PNG\n  hint: at most 134,217,728: a smaller picture, or write .svg\n"
    )
    assert not picture.exists()


def test_a_run_too_short_for_a_scale_is_shown(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    document["cost"] = {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_token": 5e-324}]}
    plan.write_text(json.dumps(document))
    status, out, err = run(capsys, "show", plan, "--no-programs", "--width", "80")
    assert (status, err) == (0, "")
    assert "rank 1" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "--pp", "2", "--tokens", "9", "--cost", DEEPSEEK, "--strategy", "dcpp", "--smooth", "nan"),
        ("compile", "--pp", "2", "--chunks", "3", "--t", "nan"),
        ("compare", "--cost", DEEPSEEK, "--smooth", "nan"),
        ("calibrate", "nothing", "--bytes-per-token", "nan"),
        ("doctor", "--timeout", "nan"),
        ("tune", *COMPILED[1:], "--effort", "nan"),
        ("tune", *COMPILED[1:], "--exact", "nan"),
    ],
)
def test_nan_is_in_no_range(arguments: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "'nan' is not a number" in err


def test_an_efficiency_that_makes_infinite_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = tmp_path / "cost.json"
    model = ("model", "kimi-k2", "--device", "h100", "-o", cost, "--efficiency")
    status, out, err = run(capsys, *model, "matmul=1e-320")
    assert (status, out) == (2, "")
    assert "--efficiency matmul: an efficiency of 1e-320 is not possible\n  hint: from 1e-06 up to 1\n" in err
    assert not cost.exists()
    assert run(capsys, *model, "matmul=1e-6")[0] == 0
    assert loads(cost.read_text())["layers"]


def test_a_comparison_with_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    alone = run(capsys, "compare", "--cost", DEEPSEEK, "--tokens", "9000", "--strategy", "cpp")
    assert alone[0] == 0
    assert "gains over" not in alone[1]


# Output that goes nowhere


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = f"{tmp_path}/new/"
    assert run(capsys, "schema", "cost", "-o", folder) == (
        2,
        "",
        f"vppc: {folder}: cannot be written: it names a folder, and there is none\n",
    )
    assert list(tmp_path.iterdir()) == []


# Schedules edited by hand


def edit(plan: Path, **changes: object) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | changes))


def assembly(plan: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    text = run(capsys, "convert", plan, "--to", "asm")[1]
    return plan.with_suffix(".asm"), text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n.buffer_tokens 1", "\n.buffer_tokens 1e999", "1e999 is no JSON number"),
        ("\n.buffer_tokens 1", '\n.x {"a": 1, "a": 2}', 'the key "a" appears twice'),
        ("\n.buffer_tokens 1", "\n.pp 3", 'the key "pp" of a schedule is said twice'),
        ("\n.buffer_tokens 1", '\n."\\q" 1', 'no JSON value in "\\"\\\\q\\"": Invalid \\escape at column 2'),
        ("layers=0..1", 'layers=0..1 {"rank": 1}', 'the key "rank" of a stage is said twice'),
        ("layers=4", 'layers=4 {"name": "x"}', 'the key "name" of a model is said twice'),
        ("-> rank 1\n", '-> rank 1 {"dst": 1}\n', 'the key "dst" of a channel is said twice'),
        ("arrival=0.0", 'arrival=0.0 {"id": "x"}', 'the key "id" of a request is said twice'),
        ("buffers=3", 'buffers=3 {"buffers": 1}', 'the key "buffers" of a rank is said twice'),
        ("r0[0..1]", 'r0[0..1] {"parts": [{"start": 9}]}', 'the key "start" of a part is said twice'),
        ("tokens -> b0", 'tokens -> b0 {"in": 9}', 'the key "in" of a FORWARD is said twice'),
    ],
)
def test_assembly_says_nothing_twice(
    old: str, new: str, message: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = assembly(plan, capsys)
    assert old in text
    file.write_text(text.replace(old, new, 1))
    line = text[: text.index(old) + 1].count("\n") + 1
    for notation in ("json", "asm", "torch-csv"):
        status, out, err = run(capsys, "convert", file, "--to", notation)
        assert (status, out) == (2, "")
        assert err.startswith(f"vppc: {file}: line {line}: {message}\n")


def test_no_stage_at_all(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(plan, stages=[])
    for form in ("dot", "graphml", "json"):
        assert run(capsys, "graph", plan, "--format", form)[0] == 0
    for notation in ("vpp_layer_ranges", "VLLM_PP_LAYER_PARTITION"):
        status, out, err = run(capsys, "convert", plan, "--to", notation)
        assert (status, out) == (2, "")
        assert err == f"vppc: {plan}: stages: there is no stage\n  hint: a schedule has pp x vp stages\n"


def test_a_graph_has_no_edge_to_another_operation_than_the_one_that_runs(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(plan.read_text())
    document["programs"][0]["instructions"][0]["stage"] = 7  # in numbers of operations that would be c1 s3
    document["stages"][1]["rank"] = 9
    plan.write_text(json.dumps(document))
    graph = json.loads(run(capsys, "graph", plan, "--format", "json")[1])
    names = [node["id"] for node in graph["nodes"]]
    assert sorted(names) == sorted(f"c{chunk}.s{stage}" for chunk in range(3) for stage in range(4))
    ran = [edge for edge in graph["edges"] if edge["kind"] == "rank" and "c1.s3" in (edge["source"], edge["target"])]
    assert len(ran) == 2  # its own place in the order of rank 0, and no second one


def test_costs_of_another_model_break_a_rule_in_every_command(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    document["cost"]["layers"][0]["count"] = 5
    plan.write_text(json.dumps(document))
    for command in ("verify", "simulate", "show"):
        status, _, err = run(capsys, command, plan)
        assert status == 1
        assert err.startswith(f"vppc: {plan}: S6 cost.layers: the counts add up to 5 layers, but the model has 4\n")


# Streams that are closed, full or strange


def vppc(*arguments: str | Path, redirect: str) -> subprocess.CompletedProcess[str]:
    """The program, run by a shell that redirects its output."""
    command = [sys.executable, "-m", "vppc", *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirect}', "sh", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("redirect", "status", "message"),
    [
        (">&-", 2, "vppc: stdout: cannot be written: it is closed\n"),
        (">/dev/full", 2, "vppc: stdout: cannot be written: No space left on device\n"),
        (">&- 2>&-", 2, ""),
        (">/dev/null 2>&-", 0, ""),
    ],
)
def test_a_closed_or_full_output(redirect: str, status: int, message: str, plan: Path) -> None:
    ended = vppc("show", plan, redirect=redirect)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", message)


def test_help_that_cannot_be_written() -> None:
    ended = vppc("--help", redirect=">/dev/full")
    assert (ended.returncode, ended.stderr) == (2, "vppc: stdout: cannot be written: No space left on device\n")


def test_progress_and_errors_without_stderr() -> None:
    one = ("compare", "--cost", DEEPSEEK, "--tokens", "9000", "--chunk-size", "9000", "--strategy", "cpp")
    assert vppc(*one, redirect="2>&-").returncode == 0
    for redirect in ("2>&-", "2>/dev/full"):
        assert vppc("verify", "nothing", redirect=redirect).returncode == 2
        assert vppc("nothing", redirect=redirect).returncode == 2


def test_names_that_would_steer_a_terminal(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(plan, strategy="\x1b[2J", requests=[{"id": "\ud800\n", "prompt_tokens": 3}])
    for command in ("show", "simulate"):
        status, out, _ = run(capsys, command, plan)
        assert status == 0
        assert out.startswith("\\x1b[2J")
    assert "\n\\ud800\\n " in out
    assert run(capsys, "verify", "\x1b[2J")[2] == "vppc: \\x1b[2J: cannot be read: No such file or directory\n"


# Ends before the end


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_a_file_is_written(
    number: int,
    status: int,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(_: Schedule) -> Iterator[str]:
        yield "half"
        os.kill(os.getpid(), number)
        yield "all"

    monkeypatch.setitem(convert.WRITES, "json", interrupted)
    before = plan.read_bytes()
    assert run(capsys, "convert", plan, "-o", plan)[0] == status
    assert list(tmp_path.iterdir()) == [plan]
    assert plan.read_bytes() == before


def test_too_little_memory(plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhausted(_: Schedule) -> str:
        raise MemoryError

    monkeypatch.setitem(convert.WRITES, "json", exhausted)
    assert run(capsys, "convert", plan, "--to", "json") == (2, "", "vppc: the memory of this machine is not enough\n")


class Deadly:
    """What no process survives to be handed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (signal.SIGKILL,)


def test_a_killed_process_is_no_traceback() -> None:
    case = Case(cast(CostModel, Deadly()), equal_prompts(9), Options())
    with pytest.raises(InputError, match="was killed"):
        compare([case, case], jobs=2)


def test_a_file_without_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(files, "MOST_PIECES", 1)
    assert run(capsys, "verify", "/dev/zero") == (2, "", "vppc: /dev/zero: is larger than 64 MiB\n")
