"""Folded serving: vLLM's engine on workers with two stages each makes what it makes on one worker."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_vllm_runner import LAYERS, MODELS, needs_vllm, write_checkpoint
from vllm_runs import engines

from runtime.vllm_plugin import register
from runtime.vllm_plugin.refusals import refuse
from runtime.vllm_plugin.settings import Fold, Shadow, read_settings
from vppc.errors import InputError

FOLD = {"virtual_pipeline_parallel_size": 2}
RANGES = [[[0, 16], [46, 61]], [[16, 31], [31, 46]]]


def test_settings() -> None:
    assert read_settings({}) is None
    assert read_settings({"other": 1}) is None
    assert read_settings({"vppc": {"mode": "shadow", "journal": "x"}}) == Shadow(Path("x"))
    assert read_settings(FOLD) == Fold(None, None)
    asked = read_settings({**FOLD, "vpp_layer_ranges": RANGES, "vppc": {"max_in_flight": 4}})
    assert asked == Fold((((0, 16), (46, 61)), ((16, 31), (31, 46))), 4)


def test_layers_of_the_stages() -> None:
    """As a batch visits them: down the ranks, and back."""
    asked = read_settings({**FOLD, "vpp_layer_ranges": RANGES})
    assert isinstance(asked, Fold)
    assert asked.layers(2, 61) == (16, 15, 15, 15)
    assert Fold(None, None).layers(3, 8) == (1, 1, 2, 1, 1, 2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"vppc": 3}, "vppc: 3 is no object"),
        ({"vppc": {"mode": "shadow", "journl": "x"}}, "vppc.journl: is not known"),
        ({"vppc": {"mode": "shade", "journal": "x"}}, "vppc.mode: asks for 'shade'"),
        ({"vppc": {"mode": "shadow"}}, "vppc.journal: None is no folder"),
        ({"vppc": {"max_in_flight": 2}}, "vppc.mode: asks for None"),
        ({"vpp_layer_ranges": RANGES}, "vppc.mode: asks for None"),
        ({**FOLD, "vppc": {"mode": "shadow", "journal": "x"}}, "vppc.mode: asks for 'shadow'"),
        ({"virtual_pipeline_parallel_size": 3}, "virtual_pipeline_parallel_size: 3 stages a rank"),
        ({**FOLD, "vppc": {"max_in_flight": 0}}, "vppc.max_in_flight: 0 is no number of batches"),
        ({**FOLD, "vpp_layer_ranges": [[[0, 4]]]}, "vpp_layer_ranges: [[[0, 4]]] are no ranges"),
        ({**FOLD, "vpp_layer_ranges": "0-4"}, "vpp_layer_ranges: '0-4' are no ranges"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_settings_that_are_wrong(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_settings(asked)
    assert str(raised.value).startswith(f"--additional-config: {message}")


@pytest.mark.parametrize(
    ("ranges", "pp", "layers", "message"),
    [
        (RANGES, 3, 61, "vpp_layer_ranges: has 2 entries"),
        (RANGES, 2, 62, "0 to 16, 16 to 31, 31 to 46, 46 to 61, as a batch visits them"),
        ([[[0, 16], [31, 46]], [[16, 31], [46, 61]]], 2, 61, "0 to 16, 16 to 31, 46 to 61, 31 to 46"),
        ([[[0, 0], [2, 4]], [[0, 1], [1, 2]]], 2, 4, "0 to 0, 0 to 1, 1 to 2, 2 to 4"),
    ],
    ids=["too few ranks", "a layer is left out", "not folded", "an empty stage"],
)
def test_layers_that_are_wrong(ranges: Any, pp: int, layers: int, message: str) -> None:
    asked = read_settings({**FOLD, "vpp_layer_ranges": ranges})
    assert isinstance(asked, Fold)
    with pytest.raises(InputError) as raised:
        asked.layers(pp, layers)
    assert message in str(raised.value)


def a_config(**changes: Any) -> Any:
    """As much of vLLM's configuration as is looked at; ``changes`` are by the last name."""
    known = {
        "parallel_config": {
            "pipeline_parallel_size": 2,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
            "distributed_executor_backend": "mp",
        },
        "model_config": {"enforce_eager": True, "is_multimodal_model": False, "runner_type": "generate"},
        "scheduler_config": {"async_scheduling": False},
    }
    parts = {name: SimpleNamespace(**{**part, **changes}) for name, part in known.items()}
    absent = {"speculative_config": None, "lora_config": None, "kv_transfer_config": None}
    return SimpleNamespace(**{**absent, **parts, **{name: changes[name] for name in absent if name in changes}})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pipeline_parallel_size": 1}, "one pipeline rank has nothing to fold"),
        ({"distributed_executor_backend": "ray"}, "ranks are processes"),
        ({"tensor_parallel_size": 2}, "a rank is one process"),
        ({"data_parallel_size": 2}, "a rank is one process"),
        ({"enforce_eager": False}, "stages are not compiled"),
        ({"async_scheduling": True}, "batches are scheduled in step"),
        ({"speculative_config": 1}, "drafts are not carried between stages"),
        ({"lora_config": 1}, "adapters are not loaded by stages"),
        ({"kv_transfer_config": 1}, "a KV connector would be finished once a stage"),
        ({"is_multimodal_model": True}, "only text is carried"),
        ({"runner_type": "pooling"}, "only generation is folded"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_is_not_folded(changed: dict[str, Any], reason: str) -> None:
    refuse(a_config())
    with pytest.raises(InputError) as raised:
        refuse(a_config(**changed))
    assert str(raised.value).startswith(f"--additional-config: cannot fold: {reason}\n  hint: ")


class Engine:
    """As much of a vLLM as the plugin changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        class Executor:
            @staticmethod
            def get_class(config: Any) -> str:
                return "stock"

        class VllmConfig:
            parallel_config = SimpleNamespace(pipeline_parallel_size=2)

            def __init__(self, additional: dict[str, Any]) -> None:
                self.additional_config = additional

            @property
            def max_concurrent_batches(self) -> int:
                return 7

        self.executor, self.config = Executor, VllmConfig
        for name, contents in {
            "vllm": {"__version__": version},
            "vllm.config": {"VllmConfig": VllmConfig},
            "vllm.v1": {},
            "vllm.v1.executor": {},
            "vllm.v1.executor.abstract": {"Executor": Executor},
        }.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)


def test_the_plugin_that_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = Engine(monkeypatch, "0.28.0+cpu")
    register()
    once = vllm.executor.get_class
    register()
    assert vllm.executor.get_class is once
    for nothing in ({}, {"other": 1}):
        assert vllm.executor.get_class(vllm.config(nothing)) == "stock"
        assert vllm.config(nothing).max_concurrent_batches == 7
    assert vllm.config({"vppc": {"mode": "shadow", "journal": "x"}}).max_concurrent_batches == 7
    assert vllm.config(FOLD).max_concurrent_batches == 3
    assert vllm.config({**FOLD, "vppc": {"max_in_flight": 5}}).max_concurrent_batches == 5


def test_the_plugin_in_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = Engine(monkeypatch, "0.32.0")
    register()
    assert vllm.executor.get_class(vllm.config({})) == "stock"
    assert vllm.config(FOLD).max_concurrent_batches == 7
    with pytest.raises(InputError, match=r"additional-config: was made for vLLM 0\.28\.0, and this is 0\.32\.0"):
        vllm.executor.get_class(vllm.config(FOLD))


@needs_vllm
def test_folded_engines_make_what_one_worker_makes(tmp_path: Path) -> None:
    """Prompts of several chunks and of a part of one, batches that mix prompts and decodes, a prefix that is found
    cached; two ranks with uneven stages, and three with a short queue."""
    model = str(write_checkpoint(tmp_path / "qwen3-moe", MODELS["qwen3-moe"]))
    random = Random(0)
    first = [random.randrange(300) for _ in range(300)]
    prompts = [first, *([random.randrange(300) for _ in range(length)] for length in (9, 140, 1, 65))]
    prompts.append([*first[:256], 5, 6, 7])
    usual = {"max_num_batched_tokens": 64, "enable_prefix_caching": True}
    ranges = [[[0, 2], [12, LAYERS]], [[2, 7], [7, 12]]]
    folded = {**usual, "distributed_executor_backend": "mp"}
    plain, *others = engines(
        tmp_path / "run",
        model,
        prompts,
        [
            usual,
            {**folded, "pipeline_parallel_size": 2, "additional_config": {**FOLD, "vpp_layer_ranges": ranges}},
            {**folded, "pipeline_parallel_size": 3, "additional_config": {**FOLD, "vppc": {"max_in_flight": 2}}},
        ],
    )
    for other in others:
        for one, another in zip(plain, other, strict=True):
            assert one.tokens == another.tokens
            torch.testing.assert_close(one.logits, another.logits, atol=1e-4, rtol=1e-4)
