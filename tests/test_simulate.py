import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans import DEEPSEEK, paper, price
from vppc.cli import main
from vppc.ir.document import schedule_text
from vppc.ir.schedule import Request

V_OF_FIVE = """\
vpp-async, 2 ranks x 2 stages, 1 request, 5 chunks, 61 instructions
makespan     362 s
efficiency   82.9% of the ideal 300 s
lower bound  362 s, and this takes 0.0% longer
bound by     rank 1: 11 s before + 300 s of work there + 51 s after

request  prompt  cached  arrival   TTFT
-------  ------  ------  -------  -----
r0            5       0      0 s  362 s

rank  compute  collective  exposed transfer  launch stall  free  bubble  hidden transfer
----  -------  ----------  ----------------  ------------  ----  ------  ---------------
   0    300 s         0 s               2 s           0 s  60 s   16.6%              8 s
   1    300 s         0 s               2 s          10 s  50 s   16.6%              8 s
bubble: launch stall (until the first input) and free; transfers: exposed is waited for, hidden is not
efficiency: the ideal, the prompts' work without what chunks cost, shared evenly, over the makespan
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path / "plan.json", paper("vpp-async", 5, t=10.0, transfer=1.0))


def written(path: Path, schedule: Any) -> Path:
    path.write_text("".join(schedule_text(schedule)))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ``vppc simulate``."""
    with pytest.raises(SystemExit) as exited:
        main(["simulate", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


def edited(plan: Path, **changes: Any) -> Path:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | changes))
    return plan


def test_the_tables(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, plan) == (0, V_OF_FIVE, "")


def test_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, plan, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "makespan": 362.0,
        "ideal": 300.0,
        "efficiency": 300 / 362,
        "lower_bound": 362.0,
        "lower_bound_by": {"resource": "rank 1", "head": 11.0, "work": 300.0, "tail": 51.0},
        "ttft": [362.0],
        "requests": ["r0"],
        "ranks": [
            {
                "rank": rank,
                "compute": 300.0,
                "collective": 0.0,
                "exposed_transfer": 2.0,
                "hidden_transfer": 8.0,
                "launch_stall": launch,
                "free": 60.0 - launch,
                "bubble_ratio": 60 / 362,
            }
            for rank, launch in ((0, 0.0), (1, 10.0))
        ],
    }


def test_many_requests_are_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten prompts of one chunk of 4 s on one rank: first tokens at 4, 8, ..., 40 s."""
    plan = written(tmp_path / "plan.json", paper("cpp", (1,) * 10, pp=1, t=2.0))
    _, out, _ = run(capsys, plan)
    assert out.split("\n\n")[1] == (
        "TTFT of      mean   P50   P90   P99  longest\n"
        "-----------  ----  ----  ----  ----  -------\n"
        "10 requests  22 s  20 s  36 s  40 s     40 s"
    )


def test_of_a_cancelled_prompt_only_what_is_computed_is_work() -> None:
    """Three tokens at 1, 2 and 3 s in each of four layers are 24 s of work, whatever the prompt was to be."""
    whole = paper("vpp", 3)
    (request,) = whole.requests
    cut = replace(whole, requests=(replace(request, prompt_tokens=1000), Request("unseen", 1000)))
    assert (price(whole).ideal, price(cut).ideal) == (12.0, 12.0)
    assert price(cut).efficiency == price(whole).efficiency < 1.0


def test_other_costs(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_pair": 1.0}]}))
    status, out, _ = run(capsys, plan, "--json", "--cost", cost)
    assert status == 0
    assert json.loads(out)["makespan"] == 36.0


def test_costs_for_another_number_of_layers_are_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, plan, "--cost", DEEPSEEK)
    assert (status, out) == (2, "")
    assert err.startswith(f"vppc: {DEEPSEEK}: layers: the counts add up to 61 layers, but the model has 4\n")


def test_without_costs_it_says_what_to_give(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    del document["cost"]
    plan.write_text(json.dumps(document))
    assert run(capsys, plan) == (2, "", f"vppc: {plan}: cost: no costs are embedded\n  hint: give --cost FILE\n")


def test_embedded_costs_are_checked(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_pair": -1.0}]}
    status, out, err = run(capsys, edited(plan, cost=bad))
    assert (status, out) == (2, "")
    assert err.startswith(f"vppc: {plan}: cost.layers[0].per_pair: ")


def test_a_schedule_that_breaks_rules_is_not_priced(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    instructions = document["programs"][1]["instructions"]
    del instructions[next(i for i, row in enumerate(instructions) if row["op"] == "FORWARD")]
    status, out, err = run(capsys, edited(plan, programs=document["programs"]))
    assert (status, out) == (1, "")
    assert err.startswith(f"vppc: {plan}: ")


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, tmp_path / "none.json")
    assert (status, out) == (2, "")
    assert err == f"vppc: {tmp_path / 'none.json'}: cannot be read: No such file or directory\n"
