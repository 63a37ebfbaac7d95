"""Right tokens: whatever the schedule, real ranks make the tokens of a run in one process and one chunk."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from checkpoints import CONFIGS
from test_reference_runner import alone
from token_runs import Case, Found, run_cases
from worlds import World, succeeded

from runtime.reference.config_json import parse_config
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.files import write_text
from vppc.ir.document import schedule_text
from vppc.ir.placement import DEFAULT_VP
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options

FACTORS: dict[str, Sequence[Any]] = {
    "pp": (1, 2, 3, 4),
    "order": (
        ("cpp", "straight", 1),
        ("dcpp", "straight", 1),
        ("dcpp-sglang", "straight", 1),
        ("vpp", "v", 2),
        ("vpp-async", "v", 2),
        ("vpp-async", "loop", 2),
        ("vpp-async", "zigzag", 4),
        ("vpp-packed", "v", 2),
        ("vpp-packed", "loop", 4),
        ("vpp-packed", "zigzag", 4),
    ),
    "split": ("even", "uneven"),
    "prompts": (  # (prompt, cached)
        ((41, 0),),
        ((1, 0), (30, 0), (7, 0)),
        ((33, 10), (20, 19), (5, 0), (20, 0)),
        ((3, 0), (2, 0), (1, 0), (23, 0), (4, 1), (5, 4)),
    ),
    "budget": (None, 9),
    "chunk": (5, 8),
    "dtype": ("float32", "bfloat16"),
    "model": ("llama-tied", "qwen3", "qwen3-moe", "deepseek"),
}
Choice = Mapping[str, Any]


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Choice]:
    """Choices in which every two values of every two factors meet: each the best of some random ones."""
    random = Random(seed)
    open_pairs = {
        ((one, x), (two, y))
        for one, two in itertools.combinations(factors, 2)
        for x in factors[one]
        for y in factors[two]
    }
    choices: list[Choice] = []

    def closes(choice: Choice) -> set[Any]:
        return open_pairs.intersection(itertools.combinations(choice.items(), 2))

    while open_pairs:
        ((one, x), (two, y)) = min(open_pairs, key=repr)
        tries = [
            {name: {one: x, two: y}.get(name, random.choice(values)) for name, values in factors.items()}
            for _ in range(50)
        ]
        best = max(tries, key=lambda choice: len(closes(choice)))
        open_pairs -= closes(best)
        choices.append(best)
    return choices


def compiled(choice: Choice, random: Random) -> Schedule:
    strategy, placement, vp = choice["order"]
    pp = choice["pp"]
    stages = pp * vp
    layers = choice.get("layers") or stages + random.randint(0, 2)
    ranges = None
    if choice["split"] == "uneven":
        cuts = sorted(random.sample(range(1, layers), stages - 1))
        ranges = tuple(itertools.pairwise([0, *cuts, layers]))
    # the dynamic policies fit a curve to many chunk lengths below their budget, and cut to multiples of 64
    scale = 8 if strategy.startswith("dcpp") else 1
    requests = tuple(
        Request(f"r{index}", tokens * scale, min(cached * scale, tokens * scale - 1))
        for index, (tokens, cached) in enumerate(choice["prompts"])
    )
    cost = CostModel((LayerCost(layers, per_token=1.0, per_pair=0.1),), transfer=Linear(0.5, 0.1))
    options = Options(
        strategy=strategy,
        pp=pp,
        placement=placement,
        vp=vp if vp != DEFAULT_VP.get(placement) else None,
        chunk_size=choice["chunk"] if scale == 1 else 24 * choice["chunk"],
        page_size=1,
        min_chunk=8,
        ranges=ranges,
        token_budget=choice["budget"] and choice["budget"] * (1 if scale == 1 else 24),
    )
    return compile_schedule(requests, Model("test", layers), cost, options)


def written(schedule: Schedule, file: Path) -> str:
    write_text(str(file), schedule_text(schedule))
    return str(file)


def config(name: str, layers: int) -> dict[str, Any]:
    return {**CONFIGS[name], "num_hidden_layers": layers}


def ran(folder: Path, size: int, cases: Sequence[Case], *options: str) -> list[Found]:
    results = folder / "found"
    succeeded(World(folder, size, run_cases, lambda process: (cases, results, options)).ended())
    return [Found(*found) for found in torch.load(results)]


def check(
    found: Found, schedule: Schedule, document: Mapping[str, Any], dtype: str = "float32", copies: int = 1
) -> None:
    """Every request's logits and token, on each of ``copies`` processes that hold the last stage."""
    expected = alone(schedule, parse_config(document), dtype=getattr(torch, dtype))
    assert sorted(found.tokens) == sorted(expected)
    mixture = "experts" in str(document)
    for request, (logits,) in expected.items():
        assert len(found.logits[request]) == copies
        for seen, token in zip(found.logits[request], found.tokens[request], strict=True):
            error = float((seen.float() - logits.float()).norm() / logits.float().norm())
            # in bfloat16 a router may choose another expert because of a rounding; of strangers the error is 1.4
            assert error < (1e-5 if dtype == "float32" else 0.5 if mixture else 0.04)
            assert token == int(seen.argmax())
            first, second = logits.topk(2).values.tolist()
            assert token == int(logits.argmax()) or first - second < 2 * float((seen - logits).abs().max())


CHOICES = pairwise(FACTORS)


@pytest.mark.parametrize("pp", FACTORS["pp"])
def test_every_pair_of_choices(pp: int, tmp_path: Path) -> None:
    random = Random(pp)
    mine = [choice for choice in CHOICES if choice["pp"] == pp]
    schedules = [compiled(choice, random) for choice in mine]
    cases = [
        Case(
            written(schedule, tmp_path / f"{index}.json"),
            config(choice["model"], schedule.model.layers),
            ("--dtype", choice["dtype"]),
        )
        for index, (choice, schedule) in enumerate(zip(mine, schedules, strict=True))
    ]
    for choice, schedule, case, found in zip(mine, schedules, cases, ran(tmp_path, pp, cases), strict=True):
        try:
            check(found, schedule, case.config, choice["dtype"])
        except AssertionError as error:
            raise AssertionError(f"{choice}: {error}") from error


def test_two_ranks_of_two_processes(tmp_path: Path) -> None:
    """Tensor and expert parallelism inside a stage: rank 0 is processes 0 and 1."""
    prompts = [(23, 0), (9, 4), (1, 0)]
    schedules, cases = [], []
    for index, (model, order) in enumerate(
        [("llama", "cpp"), ("qwen3-moe", "vpp-async"), ("deepseek", "vpp-packed"), ("llama-tied", "vpp")]
    ):
        placed = (order, "straight", 1) if order == "cpp" else (order, "v", 2)
        choice = {"pp": 2, "order": placed, "split": "even", "prompts": prompts, "budget": None, "chunk": 6}
        schedules.append(compiled(choice, Random(index)))
        file = written(schedules[-1], tmp_path / f"{index}.json")
        cases.append(Case(file, config(model, schedules[-1].model.layers)))
    for schedule, case, found in zip(schedules, cases, ran(tmp_path, 4, cases, "--tp", "2"), strict=True):
        check(found, schedule, case.config, copies=2)


def test_the_choices_meet_in_pairs() -> None:
    for one, two in itertools.combinations(FACTORS, 2):
        met = {(choice[one], choice[two]) for choice in CHOICES}
        assert met == set(itertools.product(FACTORS[one], FACTORS[two]))
