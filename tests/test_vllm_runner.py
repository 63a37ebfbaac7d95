"""The vLLM runner: whatever the schedule, vLLM's stages make the tokens and logits of stock vLLM on one process.

These tests need .venv-vllm, which scripts/vllm-venv makes, and start processes in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from plans import paper
from random_schedules import random_schedule
from test_runtime_tokens import FACTORS, compiled, pairwise, written
from token_runs import Case, Found
from vllm_runs import ENVIRONMENT, MISSING, ROOT, Job, Made, do, fail, installed, version
from worlds import World

from examples.tiny_checkpoint import write_checkpoint
from runtime.__main__ import main
from runtime.reference.prompts import Prompts
from runtime.runners.vllm import require_vllm
from vppc.errors import InputError
from vppc.ir.rules import prove
from vppc.ir.schedule import Model, Schedule

needs_vllm = pytest.mark.skipif(not installed(), reason=MISSING)

LAYERS = 17
VOCABULARY = 320
# heads as wide as vLLM's attention for CPUs takes them
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SMALL, "tie_word_embeddings": True},
    "qwen3-moe": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **SMALL, **EXPERTS},
}
SLIDING = {
    "layer_types": [("full_attention", "sliding_attention")[layer % 2] for layer in range(LAYERS)],
    "sliding_window": 64,
}
"""Every second layer has a window, and so a KV cache of another kind."""
CHOICES = pairwise(
    {
        "pp": FACTORS["pp"],
        "order": FACTORS["order"],
        "split": FACTORS["split"],
        "prompts": (  # (prompt, cached); a block of vLLM's KV cache has 128 tokens
            ((300, 0),),
            ((190, 0), (37, 0)),
            ((210, 70), (140, 129), (33, 0), (64, 0)),
            ((3, 0), (150, 0), (1, 0), (261, 0), (30, 1)),
        ),
        "budget": (None, 96),
        "chunk": (50, 64),
        "model": tuple(MODELS),
        "layers": (LAYERS,),
    }
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The folders of the checkpoints."""
    folder = tmp_path_factory.mktemp("models")
    return {name: str(write_checkpoint(folder / name, document)) for name, document in MODELS.items()}


def prompts_of(schedule: Schedule) -> list[tuple[int, ...]]:
    prompts = Prompts(schedule.requests, VOCABULARY)
    return [tuple(prompts.tokens(index).tolist()) for index in range(len(schedule.requests))]


def stock_prompts(asked: Iterable[tuple[str, Schedule]]) -> dict[str, list[tuple[int, ...]]]:
    """Every prompt of the schedules once, by model."""
    found: dict[str, dict[tuple[int, ...], None]] = {}
    for model, schedule in asked:
        found.setdefault(model, {}).update(dict.fromkeys(prompts_of(schedule)))
    return {model: list(prompts) for model, prompts in found.items()}


def check(found: Found, schedule: Schedule, model: str, stock: Mapping[Any, Made], left: Sequence[int] = ()) -> None:
    """Every request's tokens, and the logits of its last one, but for those requests that are ``left`` out: of a
    cancelled one there are none, or on a rank that learned of it late some that mean nothing."""
    decoded = [0] * len(schedule.requests)
    for chunk in schedule.chunks:
        for part in chunk.parts:
            decoded[part.request] += part.decode
    for request in set(range(len(schedule.requests))) - set(left):
        tokens = found.tokens[request]
        made = stock[model, prompts_of(schedule)[request]]
        count = 1 + decoded[request]
        assert tokens == made.tokens[:count]
        (seen,) = found.logits[request]
        torch.testing.assert_close(seen, made.logits[count - 1], atol=1e-4, rtol=1e-4)


@needs_vllm
@pytest.mark.parametrize("pp", FACTORS["pp"])
def test_every_pair_of_choices(pp: int, models: Mapping[str, str], tmp_path: Path) -> None:
    random = Random(pp)
    mine = [choice for choice in CHOICES if choice["pp"] == pp]
    schedules = [compiled(choice, random) for choice in mine]
    cases = [
        Case(written(schedule, tmp_path / f"{index}.json"), {}, ("--model", models[choice["model"]]))
        for index, (choice, schedule) in enumerate(zip(mine, schedules, strict=True))
    ]
    asked = [(models[choice["model"]], schedule) for choice, schedule in zip(mine, schedules, strict=True)]
    found, stock = do(tmp_path / "run", Job(pp, cases, stock_prompts(asked)))
    for choice, (model, schedule), each in zip(mine, asked, found, strict=True):
        try:
            check(Found(*each), schedule, model, stock)
        except AssertionError as error:
            raise AssertionError(f"{choice}: {error}") from error


def random_plan(seed: int) -> Schedule:
    """A valid schedule that no compiler would make, with decode parts: chunks overtake one another, a SAMPLE comes
    late."""
    schedule = random_schedule(Random(seed), max_pp=2, max_tokens=150)
    ends = [round(LAYERS * (stage + 1) / len(schedule.stages)) for stage in range(len(schedule.stages))]
    stages = tuple(
        replace(stage, layers=(start, end))
        for stage, start, end in zip(schedule.stages, [0, *ends], ends, strict=False)
    )
    schedule = replace(schedule, model=Model("random", LAYERS), stages=stages)
    return replace(schedule, extra={}, certificate=prove(schedule))


def decodes(schedule: Schedule) -> int:
    return sum(part.decode for chunk in schedule.chunks for part in chunk.parts)


@needs_vllm
def test_plans_that_no_compiler_makes(models: Mapping[str, str], tmp_path: Path) -> None:
    plans = [plan for plan in map(random_plan, range(300)) if plan.pp == 2 and decodes(plan)][:12]
    assert len(plans) == 12
    names = [list(MODELS)[index % len(MODELS)] for index in range(len(plans))]
    asked = [(models[name], plan) for name, plan in zip(names, plans, strict=True)]
    cases = [
        Case(written(plan, tmp_path / f"{index}.json"), {}, ("--model", model))
        for index, (model, plan) in enumerate(asked)
    ]
    found, stock = do(tmp_path / "run", Job(2, cases, stock_prompts(asked)))
    for (model, plan), each in zip(asked, found, strict=True):
        check(Found(*each), plan, model, stock)


@needs_vllm
def test_cancelled_requests(models: Mapping[str, str], tmp_path: Path) -> None:
    """At every chunk, and in the middle of anything, when the ranks learn of it at different moments."""
    choice = {"pp": 2, "order": ("vpp-packed", "v", 2), "split": "even", "budget": 60, "chunk": 60, "layers": LAYERS}
    schedule = compiled({**choice, "prompts": ((30, 0), (20, 0), (130, 0), (40, 10))}, Random(0))
    assert any(len({part.request for part in chunk.parts}) > 1 for chunk in schedule.chunks)
    file, random = written(schedule, tmp_path / "plan.json"), Random(1)
    everybody, lengths = range(len(schedule.requests)), [len(program) for program in schedule.programs]
    at_chunk = [(request, chunk) for request in everybody for chunk in range(0, len(schedule.chunks), 2)]
    in_between = [
        {rank: (random.randrange(length), request) for rank, length in enumerate(lengths)}
        for request in everybody
        for _ in range(3)
    ]
    given = ("--model", models["llama"])
    cases = [Case(file, {}, (*given, "--cancel", f"r{request}@{chunk}")) for request, chunk in at_chunk]
    cases += [Case(file, {}, given, cancel) for cancel in in_between]
    found, stock = do(tmp_path / "run", Job(2, cases, stock_prompts([(models["llama"], schedule)])))
    last = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    for (request, chunk), each in zip(at_chunk, found, strict=False):
        late = chunk > last[request]
        assert (request in Found(*each).tokens) == late
        check(Found(*each), schedule, models["llama"], stock, [] if late else [request])
    for cancel, each in zip(in_between, found[len(at_chunk) :], strict=True):
        (request,) = {request for _, request in cancel.values()}
        check(Found(*each), schedule, models["llama"], stock, [request])


@needs_vllm
def test_it_serves_what_the_incremental_compiler_sends(models: Mapping[str, str], tmp_path: Path) -> None:
    """``vppc serve`` on vLLM's stages makes the first tokens that it makes on the reference runner; a prompt that is
    longer than vLLM's model takes ends nothing."""
    lines = [{"id": f"r{index}", "prompt_tokens": tokens} for index, tokens in enumerate((300, 7, 140, 64))]
    asked = tmp_path / "lines.jsonl"
    options = ["--pp", "2", "--chunk-size", "64", "--model", f"{models['qwen3']}/config.json", str(asked)]
    first, wrong = {}, []
    for python, runner, more in (
        (ENVIRONMENT / "bin" / "python", "vllm", [{"id": "long", "prompt_tokens": 10000}]),
        (sys.executable, "reference", []),
    ):
        asked.write_text("".join(json.dumps(line) + "\n" for line in [*more, *lines]))
        command = [python, "-m", "vppc", "serve", *options, "--runner", runner, "--checkpoint", models["qwen3"]]
        served = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert served.returncode == 0, served.stderr
        answers = [json.loads(line) for line in served.stdout.splitlines()]
        first[runner] = {answer["id"]: answer["token"] for answer in answers if "token" in answer}
        wrong += [answer["error"] for answer in answers if "error" in answer]
    assert first["vllm"] == first["reference"]
    assert wrong == ["10000 tokens are more than the 4095 that these ranks' model takes\n  hint: a shorter prompt"]
    assert len(first["vllm"]) == len(lines)


@needs_vllm
@pytest.mark.skipif(version() == "0.28.0", reason="vLLM 0.28.0 has blocks of another size for layers with a window")
def test_layers_with_a_window(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "mixed", MODELS["llama"])
    (model / "config.json").write_text(json.dumps({**MODELS["llama"], **SLIDING}))
    plan = compiled(
        {
            "pp": 2,
            "order": ("vpp", "v", 2),
            "split": "even",
            "prompts": ((300, 0), (90, 32)),
            "budget": None,
            "chunk": 48,
            "layers": LAYERS,
        },
        Random(0),
    )
    cases = [Case(written(plan, tmp_path / "plan.json"), {}, ("--model", str(model)))]
    (found,), stock = do(tmp_path / "run", Job(2, cases, stock_prompts([(str(model), plan)])))
    check(Found(*found), plan, str(model), stock)


@needs_vllm
def test_what_it_does_not_run(models: Mapping[str, str], tmp_path: Path) -> None:
    choice = {"pp": 1, "order": ("vpp", "v", 2), "split": "even", "prompts": ((9, 0),), "budget": None, "chunk": 5}
    plan = compiled({**choice, "layers": LAYERS}, Random(0))
    shallow = written(compiled({**choice, "layers": 3}, Random(0)), tmp_path / "shallow.json")
    wide = [{"name": "hidden", "shape": ["tokens", 128], "dtype": "float32", "layout": "replicated"}]
    carrying = written(replace(plan, extra={**plan.extra, "payload": wide}), tmp_path / "wide.json")
    long = written(
        compiled({**choice, "prompts": ((4096, 0),), "chunk": 4096, "layers": LAYERS}, Random(0)),
        tmp_path / "long.json",
    )
    llama = models["llama"]
    mixed = write_checkpoint(tmp_path / "mixed", MODELS["llama"])
    (mixed / "config.json").write_text(json.dumps({**MODELS["llama"], **SLIDING}))
    asked = {
        (written(plan, tmp_path / "plan.json"),): "--runner vllm: needs a checkpoint\n  hint: --model DIR",
        (str(tmp_path / "plan.json"), "--model", str(tmp_path)): f"{tmp_path}: is no checkpoint folder",
        (shallow, "--model", llama): f"{llama}: the schedule is for 3 layers, the model has {LAYERS}",
        (carrying, "--model", llama): "the schedule's payload is {'hidden_states': [128]}, and vLLM's model carries "
        "{'hidden_states': [64], 'residual': [64]}",
        (long, "--model", llama): f"{llama}: vLLM does not take it: ",
    }
    if version() == "0.28.0":  # newer ones keep blocks of one size
        asked[str(tmp_path / "plan.json"), "--model", str(mixed)] = (
            f"{mixed}: its layers have several kinds of KV cache"
        )
    for (status, written_to), message in zip(
        fail(tmp_path / "run", list(map(list, asked))), asked.values(), strict=True
    ):
        assert status == 2
        assert f"vppc-run: {message}" in written_to


def test_where_there_is_no_vllm(tmp_path: Path) -> None:
    plan = written(paper("vpp-async", (2,), 1), tmp_path / "plan.json")
    ended = World(tmp_path, 1, main, lambda process: ([plan, "--runner", "vllm"],)).ended()
    assert ended.statuses == [2]
    assert ended.err[0].startswith("vppc-run: --runner vllm: needs vLLM, which cannot be imported: No module named")
    assert "hint: scripts/vllm-venv makes an environment with it" in ended.err[0]


def test_a_vllm_that_it_was_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = ModuleType("vllm")
    stranger.__version__ = "0.29.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stranger)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(InputError, match=r"was made for vLLM 0\.28\.0 or 0\.32\.0, and this is 0\.29\.1"):
        require_vllm()
    stranger.__version__ = "0.28.0+cpu"  # type: ignore[attr-defined]
    require_vllm()
