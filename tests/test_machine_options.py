"""What commands that take a model are told of devices and prompts: how ranks are joined, how many devices, how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vppc.cli import vppc
from vppc.costs.devices import DEVICES
from vppc.errors import InputError

COST = str(Path(__file__).parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")
LLAMA = ("--model", "llama-3.1-70b", "--tp", "8")
QUICK = {
    "compile": ("--pp", "2"),
    "compare": ("--json", "--strategy", "cpp", "--chunk-size", "8K"),
    "tune": ("--pp", "2", "--placement", "straight", "--effort", "0.1", "-o", "-"),
    "serve-sim": ("--json", "--strategy", "cpp", "--chunk-size", "8K"),
}


def run(command: str, tokens: int, folder: Path, *options: str) -> Result:
    """A command on one prompt, in the least that it can do."""
    file = folder / "queue.json"
    file.write_text(json.dumps({"requests": [{"id": "a", "prompt_tokens": tokens, "cached_tokens": 0, "arrival": 0}]}))
    return CliRunner().invoke(vppc, [command, *QUICK[command], "--requests", str(file), *options])


def cost_name(shown: str) -> str:
    document = json.loads(shown)
    cost = document.get("cost") or document["rows"][0]["cost"]
    return cost if isinstance(cost, str) else cost["name"]


@pytest.mark.parametrize("command", QUICK)
def test_transfers_are_priced_over_the_network_on_request(command: str, tmp_path: Path) -> None:
    assert cost_name(run(command, 16384, tmp_path, *LLAMA).stdout) == "llama-3.1-70b-910c-tp8-bf16"
    assert cost_name(run(command, 16384, tmp_path, *LLAMA, "--network").stdout) == "llama-3.1-70b-910c-tp8-bf16-network"


def test_the_network_is_as_much_slower_as_the_device_says(tmp_path: Path) -> None:
    near, far = (
        json.loads(run("compile", 8192, tmp_path, *LLAMA, *more).stdout)["cost"] for more in ((), ("--network",))
    )
    npu = DEVICES["910c"]
    assert far["transfer"]["per_token"] / near["transfer"]["per_token"] == pytest.approx(npu.link / npu.network)
    assert far["layers"] == near["layers"]


@pytest.mark.parametrize("command", QUICK)
def test_a_network_is_of_costs_by_roofline(command: str, tmp_path: Path) -> None:
    error = run(command, 8192, tmp_path, "--cost", COST, "--network").exception
    assert isinstance(error, InputError)
    assert error.place == "--network"
    if command != "compare":  # which compares cost files and models
        error = run(command, 8192, tmp_path, "--cost", COST, "--model", "deepseek-v3.1", "--network").exception
        assert str(error).startswith("--network: a cost file says itself what transfers take")


def test_a_server_refuses_it_too_before_it_starts() -> None:
    error = CliRunner().invoke(vppc, ["serve", "--pp", "2", "--cost", COST, "--network", "-"]).exception
    assert isinstance(error, InputError)
    assert error.place == "--network"


@pytest.mark.parametrize("command", QUICK)
def test_a_prompt_longer_than_the_models_context_is_noted(command: str, tmp_path: Path) -> None:
    note = (
        "note: a prompt has 131,073 tokens, but llama-3.1-70b is published for 131,072: serve it with rotary scaling "
        'that is made for them; its config.json has "llama3"\n'
    )
    assert run(command, 131073, tmp_path, *LLAMA).stderr.count(note) == 1
    assert "note: a prompt" not in run(command, 131072, tmp_path, *LLAMA).stderr


DEFAULT = "note: deepseek-v3.1 is priced on a 910c (default); --device names another"
PUBLISHED = "note: deepseek-v3.1 is published in fp8, and priced in bf16: --weight-dtype "


@pytest.mark.parametrize("command", [*QUICK, "model"])
@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ((), [DEFAULT, PUBLISHED + "w8a8 prices 8 bits, for a 910c has no fp8"]),
        (("--device", "h200"), [PUBLISHED + "fp8 prices 8 bits"]),
        (("--device", "910c", "--weight-dtype", "w8a8"), []),
        (("--device", "h200", "--weight-dtype", "bf16"), []),
    ],
)
def test_what_nobody_chose_is_said(command: str, options: tuple[str, ...], notes: list[str], tmp_path: Path) -> None:
    if command == "model":
        shown = CliRunner().invoke(vppc, ["model", "deepseek-v3.1", "--tp", "16", "--ep", "16", *options])
        notes = notes if "--device" in options else []  # and nothing is priced
    else:
        shown = run(command, 8192, tmp_path, "--model", "deepseek-v3.1", "--tp", "16", "--ep", "16", *options)
    assert shown.exception is None
    assert [line for line in shown.stderr.splitlines() if line.startswith("note: deepseek")] == notes


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        (("--tp", "8"), []),
        ((), []),  # nobody said how many devices a rank has
        (("--tp", "4"), ["note: --tp is 4, but the costs are of deepseek-v3.1-910c-tp8: their times are those of tp8"]),
        (
            ("--model", "deepseek-v3.1"),
            ["note: --tp is 1, but the costs are of deepseek-v3.1-910c-tp8: their times are those of tp8"],
        ),
    ],
)
def test_costs_named_after_other_parallel_ways_are_noted(
    options: tuple[str, ...], notes: list[str], tmp_path: Path
) -> None:
    shown = run("compile", 8192, tmp_path, "--cost", COST, *options)
    assert shown.exit_code == 0
    assert [line for line in shown.stderr.splitlines() if "their times" in line] == notes


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize(
    ("options", "noted"),
    [
        (("--tp", "8", "--device", "h200"), True),
        (("--tp", "8", "--device", "h200", "--network"), False),
        (("--tp", "4", "--device", "h200"), False),
        (("--tp", "8", "--device", "910c"), False),  # whose links join a supernode
    ],
)
def test_ranks_on_several_nodes_are_noted(command: str, options: tuple[str, ...], noted: bool, tmp_path: Path) -> None:
    shown = run(command, 8192, tmp_path, "--model", "llama-3.1-70b", *options)
    assert shown.exit_code == 0
    note = (
        "note: 16 h200s are more than a node's 8, but transfers between ranks are priced over a node's links: "
        "--network prices them between nodes\n"
    )
    assert (note in shown.stderr) is noted


@pytest.mark.parametrize("command", QUICK)
def test_a_schedule_as_a_list_of_requests_is_said(command: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = run("compile", 8192, tmp_path, "--cost", COST)
    plan.write_text(made.stdout)
    shown = CliRunner().invoke(vppc, [command, *QUICK[command], "--requests", str(plan), "--cost", COST])
    assert shown.exit_code == 0
    assert f"note: {plan} is a schedule, and nothing but its 1 request read\n" in shown.stderr
    assert "is a schedule" not in made.stderr
