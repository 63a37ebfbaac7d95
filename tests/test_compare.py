from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plans import DEEPSEEK, compiled, price
from vppc.cli import main
from vppc.compare import Case, Outcome, Row, cases, compare, gain, judge
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost
from vppc.passes.strategies import Options

UNIT = CostModel((LayerCost(4, per_pair=1.0),), name="unit")
"""The paper's: chunk k of one token takes k + 1 seconds in each of 4 layers."""


def contest(*strategies: str, tokens: tuple[int, ...] = (4,), sizes: tuple[int, ...] = (1, 2)) -> list[Case]:
    return list(cases([UNIT], tokens, [Options(strategy=strategy) for strategy in strategies], sizes))


def test_cases_are_every_combination_in_order() -> None:
    met = [(case.tokens, case.contestant, case.options.chunk_size) for case in contest("cpp", "dcpp", tokens=(4, 6))]
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
    (case,) = cases([UNIT], [4], [Options(strategy="vpp-packed")], [1], prompts=3)
    assert judge(case).report == price(compiled("vpp-packed", (4, 4, 4), 2, UNIT, chunk_size=1))


def test_a_refused_case_says_why_and_has_no_gain() -> None:
    refused = judge(Case(UNIT, 4, 1, Options(pp=5, strategy="cpp", chunk_size=1)))
    assert "5 stages cannot share 4 layers" in refused.refusal
    assert gain(refused, judge(contest("cpp")[0])) is None
    assert Row((refused,)).json()["best_chunk_size"] is None
    assert Row((refused,)).json()["outcomes"] == [{"chunk_size": 1, "refused": refused.refusal}]


def test_processes_change_nothing_and_every_case_is_reported() -> None:
    calls: list[int] = []
    alone = compare(contest("cpp", "vpp", tokens=(4, 5)))
    assert compare(contest("cpp", "vpp", tokens=(4, 5)), jobs=2, done=lambda: calls.append(1)) == alone
    assert len(calls) == 8


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

prompt  strategy                     1      2  chunks  tokens/s  efficiency  bubble of ranks
------  -----------------------  -----  -----  ------  --------  ----------  ---------------
     4  cpp                      28 s*  34 s        4     0.143       71.4%      28.6% 28.6%
     4  dcpp (wait, 0 warm-ups)  28 s*  34 s        4     0.143       71.4%      28.6% 28.6%
     4  vpp-async                25 s*  31 s        4      0.16       80.0%      20.0% 20.0%

vpp-async gains over

prompt  strategy                      1      2  each at its best
------  -----------------------  ------  -----  ----------------
     4  cpp                      +12.0%  +9.7%            +12.0%
     4  dcpp (wait, 0 warm-ups)  +12.0%  +9.7%            +12.0%
"""


SMALL = ("--tokens", "4", "--chunk-size", "1", "--chunk-size", "2")


def test_the_tables(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--strategy", "cpp", "--strategy", "dcpp", "--strategy", "vpp-async")
    dynamic = ("--measured-time", "wait", "--warmups", "0")
    assert run(capsys, "--cost", unit, *chosen, *dynamic, *SMALL) == (0, SHOWN, "")


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
    headings = [line for line in out.splitlines() if "makespan" in line]
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
    status, out, err = run(capsys, "--cost", unit, "--strategy", "cpp", *SMALL, "--json")
    assert status == 0
    assert "100%" in err
    assert json.loads(out)["rows"]


def test_the_output_file(unit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "table.txt"
    assert run(capsys, "--cost", unit, "--strategy", "cpp", *SMALL, "-o", target) == (0, "", "")
    assert target.read_text().startswith("unit, 2 ranks: makespan")


def test_refusals_do_not_win() -> None:
    refused = Outcome(contest("cpp")[0], refusal="no")
    row = Row((refused, judge(contest("cpp")[1])))
    assert row.best is row.outcomes[1]
