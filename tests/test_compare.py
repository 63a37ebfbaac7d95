from __future__ import annotations

import json
import pickle
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.plans import DEEPSEEK, compiled, price
from vppc.cli import main, vppc
from vppc.compare import Case, Machine, Outcome, Row, cases, compare, equal_prompts, gain, judge, widened
from vppc.compiler import compile_schedule
from vppc.costs.devices import DEVICES, find_device
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost
from vppc.errors import InputError
from vppc.ir.schedule import Model, Request
from vppc.models.load import load_model
from vppc.parallel import in_order
from vppc.passes.strategies import Options

UNIT = CostModel((LayerCost(4, per_pair=1.0),), name="unit")
"""The paper's: chunk k of one token takes k + 1 seconds in each of 4 layers."""


def contest(*strategies: str, tokens: tuple[int, ...] = (4,), sizes: tuple[int, ...] = (1, 2)) -> list[Case]:
    queues = [equal_prompts(each) for each in tokens]
    return list(cases(UNIT, queues, [Options(strategy=strategy) for strategy in strategies], sizes))


def test_cases_are_every_combination_in_order() -> None:
    met = [
        (case.queue.longest, case.contestant, case.options.chunk_size) for case in contest("cpp", "dcpp", tokens=(4, 6))
    ]
    assert met == [
        (tokens, contestant, size) for tokens in (4, 6) for contestant in ("cpp", "dcpp (offline)") for size in (1, 2)
    ]


def test_an_outcome_is_the_price_of_the_compiled_schedule() -> None:
    (row,) = compare(contest("vpp-async", sizes=(1,)))
    assert row.best.report == price(compiled("vpp-async", (4,), 2, UNIT, chunk_size=1))
    assert row.best.chunks == 4


def test_closed_forms_of_the_paper() -> None:
    """Four chunks: CPP ends at 2 (1 + 2 + 3 + 4 + 4), the V at 25 (see README)."""
    rows = compare(contest("cpp", "vpp", sizes=(1,)))
    assert [row.best.makespan for row in rows] == [28.0, 25.0]
    assert rows[1].gain_over(rows[0]) == pytest.approx(28 / 25 - 1)
    assert rows[0].best.throughput == 4 / 28


def test_the_best_is_the_quickest_and_of_equals_the_first() -> None:
    (row,) = compare(contest("vpp-async", tokens=(1,), sizes=(8, 4, 2)))
    assert row.best.case.options.chunk_size == 8
    (row,) = compare(contest("cpp", sizes=(4, 1, 2)))
    assert row.best.case.options.chunk_size == 1


def test_several_prompts_wait_together() -> None:
    (case,) = cases(UNIT, [equal_prompts(4, 3)], [Options(strategy="vpp-packed")], [1])
    assert judge(case).report == price(compiled("vpp-packed", (4, 4, 4), 2, UNIT, chunk_size=1))


def test_a_refused_case_says_why_and_has_no_gain() -> None:
    refused = judge(Case(UNIT, equal_prompts(4), Options(pp=5, strategy="cpp", chunk_size=1)))
    assert "5 stages cannot share 4 layers" in refused.refusal
    assert gain(refused, judge(contest("cpp")[0])) is None
    assert Row((refused,)).json()["best_chunk_size"] is None
    assert Row((refused,)).json()["outcomes"] == [{"chunk_size": 1, "refused": refused.refusal}]


def test_processes_change_nothing_and_every_case_is_reported() -> None:
    calls: list[int] = []
    alone = compare(contest("cpp", "vpp", tokens=(4, 5)))
    assert compare(contest("cpp", "vpp", tokens=(4, 5)), jobs=2, done=lambda: calls.append(1)) == alone
    assert len(calls) == 8


def test_a_process_that_is_killed_is_said() -> None:
    with pytest.raises(
        InputError, match=r"--jobs: a process that judged a case was killed\n  hint: give fewer, if mem"
    ):
        list(in_order(signal.raise_signal, [signal.SIGKILL], 2))


@pytest.mark.parametrize("device", list(DEVICES))
def test_processes_are_handed_machines(device: str) -> None:
    """What a case holds has to reach another process, whatever device it is for."""
    machine = Machine(load_model("qwen3-8b"), find_device(device))
    [case] = contest("cpp", sizes=(2,))
    assert pickle.loads(pickle.dumps(replace(case, machine=machine))).machine == machine


def test_processes_judge_memory(capsys: pytest.CaptureFixture[str]) -> None:
    judged = ("compare", "--model", "qwen3-8b", "--device", "h200", "--pp", "2", "--tokens", "64K", "--strategy", "cpp")
    assert run(capsys, *judged, "--jobs", "2") == run(capsys, *judged)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    path = tmp_path / "unit.json"
    path.write_text(json.dumps(cost_json(UNIT)))
    return path


SHOWN = """\
unit, 2 ranks: makespan of one prompt by chunk size (* best)

queue  strategy                     1      2  chunks  tokens/s  efficiency  bubble of ranks
-----  -----------------------  -----  -----  ------  --------  ----------  ---------------
    4  cpp                      28 s*  34 s        4     0.143       71.4%      28.6% 28.6%
    4  dcpp (wait, 0 warm-ups)  28 s*  34 s        4     0.143       71.4%      28.6% 28.6%
    4  vpp-async                25 s*  31 s        4      0.16       80.0%      20.0% 20.0%

efficiency: the ideal, the prompts' work without what chunks cost, shared evenly, over the makespan
chunks that may run ahead: vpp-async 3; cpp, dcpp 6 (vppc serve-sim: cpp and dcpp 2, as engines)

dcpp (wait, 0 warm-ups) is cpp for 4, to every digit in its best chunks of 1: none is cut below --min-chunk, 1

vpp-async gains over

queue  strategy                      1      2  each at its best
-----  -----------------------  ------  -----  ----------------
    4  cpp                      +12.0%  +9.7%            +12.0%
    4  dcpp (wait, 0 warm-ups)  +12.0%  +9.7%            +12.0%

quickest: vpp-async for 4 (+12.0% over cpp)
"""


SMALL = ("--tokens", "4", "--chunk-size", "1", "--chunk-size", "2")


def test_the_tables(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--strategy", "cpp", "--strategy", "dcpp", "--strategy", "vpp-async")
    dynamic = ("--measured-time", "wait", "--warmups", "0")
    assert run(capsys, "--cost", unit, *chosen, *dynamic, *SMALL) == (0, SHOWN, "")


@pytest.mark.parametrize(("layers", "bubble"), [(6, "66.7% to 83.3%"), (5, "80.0%")])
def test_the_bubbles_of_many_ranks_are_told_as_a_range(
    layers: int, bubble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One chunk, which is on one rank after another: five of as many layers, or one of them with two."""
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps(cost_json(CostModel((LayerCost(layers, 1.0),)))))
    one = ("--tokens", "4", "--chunk-size", "4", "--strategy", "cpp", "--pp", "5")
    [line] = [each for each in run(capsys, "--cost", cost, *one)[1].splitlines() if each.startswith("    4  cpp")]
    assert re.sub(" +", " ", line).endswith(f"% {bubble}")


def test_json(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--cost", unit, "--strategy", "cpp", "--strategy", "vpp", *SMALL, "--json")
    shown: dict[str, Any] = json.loads(out)
    assert (status, err, shown["pp"]) == (0, "", 2)
    assert [(row["cost"], row["tokens"], row["contestant"], row["best_chunk_size"]) for row in shown["rows"]] == [
        ("unit", 4, "cpp", 1),
        ("unit", 4, "vpp", 1),
    ]
    cell = shown["rows"][1]["outcomes"][0]
    expected = price(compiled("vpp", (4,), 2, UNIT, chunk_size=1)).json()
    assert cell == {"chunk_size": 1, "chunks": 4, "throughput": 4 / 25, **json.loads(json.dumps(expected))}


def test_dynamic_chunks_come_once_for_each_measured_time(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--strategy", "dcpp", "--tokens", "60000", "--chunk-size", "16384", "--json")
    _, out, _ = run(capsys, "--cost", DEEPSEEK, *options)
    assert [row["contestant"] for row in json.loads(out)["rows"]] == [
        "dcpp (offline)",
        "dcpp (own, 1 warm-up)",
        "dcpp (wait, 1 warm-up)",
    ]


def test_costs_of_a_file_and_by_roofline_stand_one_after_another(
    unit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model", "glm-5.2", "--tp", "8", "--strategy", "cpp", "--tokens", "9000", "--chunk-size", "8192")
    _, out, _ = run(capsys, "--cost", unit, "--cost", unit, *options)
    headings = [line for line in out.splitlines() if "makespan of" in line]
    assert [line.split(",")[0] for line in headings] == ["unit", "glm-5.2-910c-tp8-bf16"]


def test_what_is_refused_is_listed_below(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--strategy", "dcpp-sglang", "--strategy", "cpp", "--tokens", "300", "--chunk-size", "100")
    status, out, err = run(capsys, "--cost", DEEPSEEK, *options)
    assert (status, err) == (0, "")
    assert " refused\n" in out.splitlines(keepends=True)[4]
    assert out.endswith(
        "\nrefused: dcpp-sglang: a chunk budget of 100 tokens is too small for SGLang's 128 profiled lengths\n"
        "  hint: give at least 103 tokens\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "--cost: nothing says what anything takes"),
        (("--cost", "no.json"), "no.json: cannot be read"),
        (("--model", "nothing"), "unknown model 'nothing'"),
        (("--pp", "100", "--cost", str(DEEPSEEK)), "all cases are refused, the first because: 100 stages cannot share"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"vppc: {problem}")


def test_a_terminal_sees_how_far_it_is(
    unit: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    status, out, err = run(capsys, "--cost", unit, "--strategy", "cpp", *SMALL, "--json")
    assert status == 0
    assert re.search(r"compare .* (\d+)/\1 ", err)
    assert json.loads(out)["rows"]


def test_the_output_file(unit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "table.txt"
    assert run(capsys, "--cost", unit, "--strategy", "cpp", *SMALL, "-o", target) == (0, "", "")
    assert target.read_text().startswith("unit, 2 ranks: makespan")


@pytest.mark.parametrize(
    ("sizes", "edge"),
    [((1, 2), None), ((2, 4), "smaller"), ((4, 2), "smaller"), ((4,), None), ((1, 2, 3), None)],
)
def test_the_best_at_the_edge_of_the_sizes_says_so(sizes: tuple[int, ...], edge: str | None) -> None:
    """Chunks of one token are the best here, and there are none smaller."""
    (row,) = compare(contest("cpp", tokens=(8,), sizes=sizes))
    assert row.edge == row.json()["may_be_better"] == edge


def test_larger_chunks_are_offered_up_to_the_prompt() -> None:
    """A fixed cost alone makes the largest chunks the best."""
    fixed = CostModel((LayerCost(4, fixed=1.0),))
    for sizes, edge in (((1, 2), "larger"), ((2, 8), None)):
        (row,) = compare(cases(fixed, [equal_prompts(8)], [Options(strategy="vpp-async")], sizes))
        assert (row.best.case.options.chunk_size, row.edge) == (sizes[-1], edge)


def test_the_edge_is_printed(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--chunk-size", "2", "--chunk-size", "4")
    _, out, _ = run(capsys, "--cost", unit, "--strategy", "cpp", "--strategy", "vpp", "--tokens", "8", *sizes)
    note = "smaller chunks may be better still (--chunk-size): the smallest are best for cpp at 8; vpp at 8"
    assert out.splitlines()[10] == note


BIG = (
    "--model",
    "deepseek-v3.1",
    "--tp",
    "8",
    "--weight-dtype",
    "w8a8",
    "--strategy",
    "cpp",
    "--strategy",
    "vpp-async",
)


def test_what_does_not_fit_the_memory_is_no_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    """Cut experts copy every token for each expert, so it is large chunks that do not fit."""
    sizes = ("--chunk-size", "8192", "--chunk-size", "24576")
    status, out, err = run(capsys, *BIG, "--tokens", "384K", *sizes)
    lines = out.splitlines()
    assert status == 0
    assert "\nnote: a prompt has 393,216 tokens" in err
    assert [line.count("no room") for line in lines[4:6]] == [1, 1]
    unfit = [line for line in lines if line.startswith("no room")]
    assert [line.split(":")[1] for line in unfit] == [
        f" {name}, 393,216, in chunks of 24,576 by {excess} GiB"
        for name, excess in (("cpp", over("cpp")), ("vpp-async", over("vpp-async")))
    ]
    assert lines[-1] == "  hint: vppc compile with the same model, device and chunk size names what would fit"


def over(strategy: str) -> str:
    """By how much the plan is too large, as the refusal of compile says."""
    given = ["--pp", "2", "--tokens", "384K", "--chunk-size", "24576", *BIG[:6], "--strategy", strategy]
    refused = CliRunner().invoke(vppc, ["compile", *given]).exception
    found = re.search(r": ([0-9.]+) GiB too much", str(refused))
    assert found is not None
    return found[1]


def test_where_nothing_fits_the_message_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *BIG[:4], "--strategy", "cpp", "--tokens", "64K", "--chunk-size", "8192")
    assert status == 2
    assert re.search(r"\nvppc: all cases are refused, the first because: rank \d needs .* GiB a device and has 60", err)


def test_a_queue_without_a_file_is_that_of_one(unit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "4 + 2"
    file.write_text('{"prompt_tokens": 4}\n{"prompt_tokens": 2}\n')
    given = ("--cost", str(unit), "--chunk-size", "2")
    written = run(capsys, *given, "--queue", "4+2")
    assert written == run(capsys, *given, "--requests", str(file))
    assert "4 + 2" in written[1]
    assert run(capsys, *given, "--queue", "4+x")[0] == 2


def test_a_queue_from_a_file_and_packing_by_default(
    unit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = tmp_path / "queue.json"
    queue.write_text('[{"prompt_tokens": 4}, {"prompt_tokens": 3, "cached_tokens": 1}]')
    dynamic = ("--measured-time", "offline", "--chunk-size", "1")
    _, out, _ = run(capsys, "--cost", unit, "--requests", queue, *dynamic, "--json")
    rows = json.loads(out)["rows"]
    assert [row["contestant"] for row in rows] == ["cpp", "dcpp (offline)", "vpp-async", "vpp-packed"]
    assert {(row["queue"], row["tokens"], row["prompts"]) for row in rows} == {("queue.json", 4, 2)}
    requests = (Request("r0", 4), Request("r1", 3, 1))
    plan = compile_schedule(requests, Model("m", 4), UNIT, Options(strategy="vpp-packed", chunk_size=1))
    cell = rows[-1]["outcomes"][0]
    assert cell["makespan"] == price(plan).makespan
    assert cell["throughput"] == 6 / cell["makespan"]
    _, out, _ = run(capsys, "--cost", unit, "--tokens", "4", "--prompts", "2", *dynamic)
    assert out.splitlines()[0] == "unit, 2 ranks: makespan of all prompts by chunk size (* best)"
    assert [line.split()[:4] for line in out.splitlines()[4:8]][3] == ["2", "x", "4", "vpp-packed"]


def test_layer_ranges_are_for_the_strategies_with_so_many_stages(
    unit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--strategy", "cpp", "--strategy", "vpp", "--tokens", "4", "--chunk-size", "1", "--json")
    _, out, _ = run(capsys, "--cost", unit, *chosen, "--layer-ranges", "1,3", "--layer-split", "vllm")
    straight, folded = (row["outcomes"][0]["makespan"] for row in json.loads(out)["rows"])
    assert straight == price(compiled("cpp", (4,), 2, UNIT, chunk_size=1, ranges=((0, 1), (1, 4)))).makespan
    assert folded == 25.0
    status, _, err = run(capsys, "--cost", unit, *chosen, "--layer-ranges", "1,1,2")
    assert (status, err.splitlines()[0]) == (2, "vppc: --layer-ranges: 3 layer counts for 4 stages")


def test_what_takes_no_time_is_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(cost_json(CostModel((LayerCost(4),)))))
    chosen = ("--cost", path, "--strategy", "cpp", "--strategy", "vpp", *SMALL)
    outcome = json.loads(run(capsys, *chosen, "--json")[1])["rows"][0]["outcomes"][0]
    assert outcome["makespan"] == 0.0
    assert "throughput" not in outcome
    assert run(capsys, *chosen)[1].splitlines()[-3].split() == ["4", "cpp", "0.0%", "0.0%", "0.0%"]


def test_one_strategy_alone_has_no_table_of_gains(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--cost", unit, "--strategy", "cpp", *SMALL)
    assert "gains over" not in out
    assert len(out.splitlines()) == 8


def test_several_prompts_are_said_to_be_priced_alone(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tokens, said in ((("4",), "one prompt"), (("4", "6"), "each prompt alone")):
        prompts = (word for each in tokens for word in ("--tokens", each))
        _, out, _ = run(capsys, "--cost", unit, "--strategy", "cpp", "--chunk-size", "1", *prompts)
        assert out.startswith(f"unit, 2 ranks: makespan of {said} by chunk size (* best)\n")


def test_refusals_do_not_win() -> None:
    refused = Outcome(contest("cpp")[0], refusal="no")
    row = Row((refused, judge(contest("cpp")[1])))
    assert row.best is row.outcomes[1]


def test_sizes_go_on_while_the_best_is_at_their_edge() -> None:
    """In the paper's setting smaller chunks are better down to one token; a fixed cost alone wants the whole prompt."""
    rows = widened(compare(contest("cpp", "vpp", tokens=(8,), sizes=(4, 8))))
    assert [[o.case.options.chunk_size for o in row.outcomes] for row in rows] == [[1, 2, 4, 8]] * 2
    assert rows == compare(contest("cpp", "vpp", tokens=(8,), sizes=(1, 2, 4, 8)))
    fixed = CostModel((LayerCost(4, fixed=1.0),))
    few = compare(cases(fixed, [equal_prompts(64)], [Options(strategy="vpp-async")], (1, 2)))
    assert [o.case.options.chunk_size for o in widened(few)[0].outcomes] == [1, 2, 4, 8, 16]
    assert [o.case.options.chunk_size for o in widened(few, times=1)[0].outcomes] == [1, 2, 4]


def test_only_the_sizes_that_nobody_chose_are_widened(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--cost", unit, "--strategy", "cpp", "--tokens", "4000", "--json")
    [row] = json.loads(run(capsys, *options)[1])["rows"]
    assert [outcome["chunk_size"] for outcome in row["outcomes"]][:4] == [256, 512, 1024, 2048]
    [row] = json.loads(run(capsys, *options, "--chunk-size", "2048", "--chunk-size", "4096")[1])["rows"]
    assert ([outcome["chunk_size"] for outcome in row["outcomes"]], row["may_be_better"]) == ([2048, 4096], "smaller")
