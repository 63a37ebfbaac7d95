"""``vppc compile`` at the command line: units, notes, what is said of what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vppc.cli import vppc

COST = str(Path(__file__).parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")


def compile_with(*options: str) -> Result:
    return CliRunner().invoke(vppc, ["compile", "--pp", "2", *options])


@pytest.mark.parametrize(
    ("said", "tokens"), [("4K", 4096), ("3k", 3072), ("1M", 2**20), ("5000", 5000), ("131,072", 131072)]
)
def test_tokens_can_be_counted_in_units_of_1024_and_with_commas(said: str, tokens: int) -> None:
    compiled = compile_with("--tokens", said, "--chunk-size", "64K", "--cost", COST)
    assert json.loads(compiled.stdout)["requests"][0]["prompt_tokens"] == tokens


@pytest.mark.parametrize("said", ["K", "0K", "-1M", "2.5K", "4096M", "K4", "", "32KB", "0.5M", "13,10", ",100"])
def test_what_is_no_count(said: str) -> None:
    refused = compile_with("--tokens", said)
    assert refused.exit_code == 2
    assert "Invalid value for '--tokens'" in refused.output
    assert said in ("0K", "-1M", "4096M") or (
        f"{said!r} is not a whole number, such as 131072, 131,072, 128K (x 1024) or 1M" in refused.output
    )


def test_a_written_file_is_summed_up_on_stderr(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    written = compile_with("--chunks", "5", "--strategy", "vpp", "-o", plan)
    assert written.stdout == ""
    assert written.stderr == f"{plan}: 61 instructions on 2 ranks, proven; up to 3 chunks may run ahead\n"


def test_chunks_of_the_default_size_are_noted(tmp_path: Path) -> None:
    options = ("--tokens", "64K", "--cost", COST, "-o", str(tmp_path / "plan.json"))
    note = "note: chunks of 8,192 tokens are a default, no recommendation: vppc compare finds each strategy's best size"
    assert compile_with(*options).stderr.splitlines()[1:] == [note]
    assert len(compile_with(*options, "--chunk-size", "8192").stderr.splitlines()) == 1
    limits = (("cpp", "--max-buffers", 3), ("vpp-packed", "--max-in-flight", 4))
    for strategy, option, most in limits:
        said = compile_with(*options, "--strategy", strategy, option, str(most)).stderr.splitlines()[0]
        assert said.endswith(f", proven; up to {most} chunks may run ahead")


def test_a_prompt_longer_than_the_models_context_is_noted() -> None:
    noted = compile_with("--tokens", "128K", "--model", "qwen3-235b-a22b", "--device", "h200", "--tp", "4", "--ep", "4")
    assert noted.stderr == (
        "note: a prompt has 131,072 tokens, but qwen3-235b-a22b is published for 40,960: serve it with rotary "
        'scaling, in its config.json "rope_scaling": {"rope_type": "yarn", "factor": 4.0, ..}\n'
    )


def test_a_longer_prompt_than_yarn_makes_possible_is_noted_with_the_factor_that_would(tmp_path: Path) -> None:
    config, plan = tmp_path / "stretched.json", str(tmp_path / "plan.json")

    def noted(factor: int) -> str:
        """Of a prompt of 512K tokens, for a model that was trained for 4K."""
        scaling = {"type": "yarn", "factor": factor, "original_max_position_embeddings": 4096}
        tiny = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128}
        config.write_text(json.dumps({**tiny, "intermediate_size": 128, "rope_scaling": scaling}))
        machine = ("--model", str(config), "--device", "h200", "--chunk-size", "64K")
        return compile_with("--tokens", "512K", *machine, "-o", plan).stderr

    assert (
        "note: a prompt has 524,288 tokens, but stretched is published for 163,840: serve it with a larger factor "
        "of rotary scaling, in its config.json: 128.0 times the 4,096 that it was trained for\n"
    ) in noted(40)
    assert "published for 520,192" in noted(127)
    assert "published for" not in noted(128)


def test_a_plan_that_fits_says_how_full_the_fullest_rank_is(tmp_path: Path) -> None:
    """Behind that of the written schedule, which tests of memory hold against sums by hand."""
    machine = ("--model", "deepseek-v3.1", "--tp", "8", "--ep", "8", "--weight-dtype", "w8a8")
    noted = compile_with("--tokens", "128K", *machine, "-o", str(tmp_path / "plan.json"))
    plan = json.loads((tmp_path / "plan.json").read_text())
    memories = [program["memory"] for program in plan["programs"]]
    kv = [each["kv_per_token"] * each["kv_tokens"] / 2**30 for each in memories]
    [line] = [line for line in noted.stderr.splitlines() if "memory" in line]
    assert line.startswith("rank 1 needs most memory: ")
    gib = {part: memories[1][part] / 2**30 for part in ("weights", "buffers")}
    rest = sum(memories[1][part] for part in ("activations", "workspace", "communicators", "reserve")) / 2**30
    assert " of 60.66 GiB a device: " in line
    assert line.endswith(
        f"weights {gib['weights']:.2f}, KV {kv[1]:.2f} for 131,072 tokens, buffers {gib['buffers']:.2f}, "
        f"the rest {rest:.2f}"
    )
    assert "memory" not in compile_with("--tokens", "8K", "--cost", COST, "-o", str(tmp_path / "plan.json")).stderr


def test_uneven_ranks_are_noted_with_what_to_do(tmp_path: Path) -> None:
    """Of 61 layers on four ranks one has 16: 4.9% more than 61 / 4, and less than a layer more."""
    plan = str(tmp_path / "plan.json")
    options = ("--pp", "4", "--tokens", "64K", "--cost", COST, "-o", plan)
    share = "16 of 61 layers, 4.9% more work than the mean"
    noted = compile_with(*options)
    assert noted.stderr.splitlines()[1] == (
        f"note: rank 3 has {share}: --layer-split balanced puts layers where they cost least, "
        "vppc tune searches for better layers and stages"
    )
    noted = compile_with(*options, "--layer-split", "balanced")
    assert noted.stderr.splitlines()[1] == (
        f"note: rank 0 has {share}: that is less than a layer, and layers are not cut; "
        "balanced has put it where it costs least"
    )
    noted = compile_with(
        *options, "--layer-split", "balanced", "--strategy", "cpp"
    )  # evens out when ranks end, not work
    assert noted.stderr.splitlines()[1] == (
        "note: rank 3 has 18 of 61 layers, 18.0% more work than the mean: "
        "vppc tune searches for better layers and stages"
    )
    assert "rank" not in compile_with("--tokens", "64K", "--cost", COST, "-o", plan).stderr.split("\n", 1)[1]


def test_layers_are_shared_out_by_costs_on_request() -> None:
    compiled = compile_with("--tokens", "256K", "--cost", COST, "--strategy", "cpp", "--layer-split", "balanced")
    assert [stage["layers"] for stage in json.loads(compiled.stdout)["stages"]] == [[0, 30], [30, 61]]
