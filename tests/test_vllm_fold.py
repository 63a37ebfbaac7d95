"""Folded serving: vLLM's engine on workers with two stages each makes what it makes on one worker."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from test_runtime_tokens import written
from test_vllm_runner import LAYERS, MODELS, VOCABULARY, needs_vllm, write_checkpoint
from vllm_runs import batches, engines

from examples.tiny_checkpoint import write_tokenizer
from runtime.runners.vllm import VERSIONS
from runtime.vllm_plugin import _replace_scheduler, register
from runtime.vllm_plugin.batches import Prompt, batches_of, repriced
from runtime.vllm_plugin.chunk_plan import ChunkPlan, PlannedChunks, check_fit, read_chunk_plan
from runtime.vllm_plugin.page import Doing, EngineRow, Page, RankRow
from runtime.vllm_plugin.refusals import refuse
from runtime.vllm_plugin.settings import FOLDING, Fold, Shadow, read_settings
from runtime.vllm_plugin.traffic import Traffic
from runtime.vllm_plugin.whereabouts import Whereabouts
from vppc.compiler import compile_schedule
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost
from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Model, Part, Request
from vppc.passes.strategies import STRATEGIES, Options
from vppc.serving.batch_order import Entry

FOLD = {"virtual_pipeline_parallel_size": 2}
RANGES = [[[0, 16], [46, 61]], [[16, 31], [31, 46]]]


def test_settings() -> None:
    assert read_settings({}) is None
    assert read_settings({"other": 1}) is None
    assert read_settings({"vppc": {"mode": "shadow", "journal": "x"}}) == Shadow(Path("x"))
    assert read_settings(FOLD) == Fold()
    order = {"max_in_flight": 4, "strategy": "vpp-packed", "costs": "c", "silence": 9, "stall": 1}
    prompts = {"policy": "deadline", "patience": 5, "ttft_target": 0.5, "whole_prompts": True}
    asked = read_settings({**FOLD, "vpp_layer_ranges": RANGES, "vppc": {**order, **prompts, "chunks": [5, 3]}})
    ranges = (((0, 16), (46, 61)), ((16, 31), (31, 46)))
    assert asked == Fold(ranges, **order, **prompts, chunks=(5, 3))


def test_layers_of_the_stages() -> None:
    """As a batch visits them: down the ranks, and back."""
    asked = read_settings({**FOLD, "vpp_layer_ranges": RANGES})
    assert isinstance(asked, Fold)
    assert asked.layers(2, 61) == (16, 15, 15, 15)
    assert Fold().layers(3, 8) == (1, 1, 2, 1, 1, 2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"vppc": 3}, "vppc: 3 is no object"),
        ({"vppc": {"mode": "shadow", "journl": "x"}}, "vppc.journl: is not known"),
        ({"vppc": {"mode": "shade", "journal": "x"}}, "vppc.mode: asks for 'shade'"),
        ({"vppc": {"mode": [], "journal": "x"}}, "vppc.mode: asks for []"),
        ({"vppc": {"mode": "shadow", "journal": "x\0"}}, "vppc.journal: 'x\\x00' is no folder"),
        ({**FOLD, "vppc": {"chunks": "x\0"}}, "vppc.chunks: 'x\\x00' is no plan"),
        ({**FOLD, "vppc": {"costs": "x\0"}}, "vppc.costs: 'x\\x00' is no file"),
        ({**FOLD, "vppc": {"ttft_target": 10**400}}, "vppc.ttft_target: 100000"),
        ({**FOLD, "vppc": {"max_in_flight": 10**400}}, "vppc.max_in_flight: 100000"),
        ({"vppc": {"mode": "shadow"}}, "vppc.journal: None is no folder"),
        ({"vppc": {"max_in_flight": 2}}, "vppc.mode: asks for None"),
        ({"vpp_layer_ranges": RANGES}, "vppc.mode: asks for None"),
        ({**FOLD, "vppc": {"mode": "shadow", "journal": "x"}}, "vppc.mode: asks for 'shadow'"),
        ({"virtual_pipeline_parallel_size": 3}, "virtual_pipeline_parallel_size: 3 stages a rank"),
        ({**FOLD, "vppc": {"max_in_flight": 0}}, "vppc.max_in_flight: 0 is no number of batches"),
        ({**FOLD, "vppc": {"strategy": "cpp"}}, "vppc.strategy: 'cpp' does not fold"),
        ({**FOLD, "vppc": {"policy": "lifo"}}, "vppc.policy: 'lifo' is none"),
        ({**FOLD, "vppc": {"patience": -1}}, "vppc.patience: -1 are no seconds"),
        ({**FOLD, "vppc": {"ttft_target": "1"}}, "vppc.ttft_target: '1' are no seconds"),
        ({**FOLD, "vppc": {"silence": 0.5}}, "vppc.silence: 0.5 are no seconds"),
        ({**FOLD, "vppc": {"whole_prompts": 1}}, "vppc.whole_prompts: 1 is no answer"),
        ({**FOLD, "vppc": {"chunks": 512}}, "vppc.chunks: 512 is no plan"),
        ({**FOLD, "vppc": {"costs": 1}}, "vppc.costs: 1 is no file"),
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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Fold(strategy="vpp"), 4),
        (Fold(), 5),
        (Fold(strategy="vpp-packed"), 9),
        (Fold(policy="dual-queue"), 4),
        (Fold(max_in_flight=1), 1),
    ],
    ids=["blocking", "async", "packed", "the paper's policy", "asked for"],
)
def test_batches_in_flight(asked: Fold, expected: int) -> None:
    """On three ranks: a V has 2 pp - 1 hops, and the paper's policy one batch more than ranks."""
    assert asked.in_flight(3) == expected


def test_strategies_that_fold_are_the_compilers() -> None:
    assert tuple(strategy for strategy in STRATEGIES if strategy.startswith("vpp")) == FOLDING


def test_a_plan_of_sizes() -> None:
    """For prompts of 10 tokens and fewer; what is cached is left out of a chunk."""
    plan = read_chunk_plan([5, 3, 2], "x")
    assert plan.largest == 5
    assert [plan.room(10, computed) for computed in (0, 4, 5, 7, 8, 9)] == [5, 1, 3, 1, 2, 1]
    assert (plan.room(6, 0), plan.room(6, 5), plan.room(11, 0)) == (5, 3, None)


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    """Two lengths, two prompts a chunk; a prompt follows the shortest that is not shorter."""
    requests = (Request("long", 90), Request("short", 20), Request("cached", 20, cached_tokens=7))
    cost = CostModel((LayerCost(4, per_token=1.0),))
    options = Options(strategy="vpp-packed", pp=2, chunk_size=40, token_budget=40)
    written(compile_schedule(requests, Model("m", 4), cost, options), tmp_path / "plan.json")
    plan = read_chunk_plan(str(tmp_path / "plan.json"), "x")
    assert plan == ChunkPlan(((20,), (40, 80, 90)), 40)
    assert (plan.room(20, 0), plan.room(21, 0), plan.room(90, 80), plan.room(91, 0)) == (20, 40, 10, None)


def test_a_plan_of_nothing(tmp_path: Path) -> None:
    plan = compile_schedule((), Model("m", 4), CostModel((LayerCost(4, per_token=1.0),)), Options(strategy="vpp", pp=2))
    written(replace(plan, extra={}), tmp_path / "plan.json")
    with pytest.raises(InputError, match="chunks: has no prompts\n  hint: compile or tune one with prompts"):
        read_chunk_plan(str(tmp_path / "plan.json"), "x")


def test_a_plan_behind_what_was_cached(tmp_path: Path) -> None:
    """Its chunks are as large as planned, also for a prompt of which nothing is cached."""
    cost = CostModel((LayerCost(4, per_token=1.0),))
    options = Options(strategy="vpp", pp=2, chunk_size=20)
    cached = (Request("cached", 200, cached_tokens=120),)
    written(compile_schedule(cached, Model("m", 4), cost, options), tmp_path / "plan.json")
    plan = read_chunk_plan(str(tmp_path / "plan.json"), "x")
    assert plan.largest == 20
    assert [plan.room(200, computed) for computed in (0, 20, 119, 120, 130, 140)] == [20, 20, 20, 20, 10, 20]


def test_prompts_without_a_plan_are_cut_like_vllm_cuts_them() -> None:
    rule = PlannedChunks(ChunkPlan(((5, 8),), 5), 6)
    assert [rule.next_chunk(0, 8), rule.next_chunk(5, 3), rule.next_chunk(0, 30)] == [5, 3, 6]


class TestBatches:
    """Three prompts: ``a`` has 40 of 100 tokens in batches, ``b`` has 5, and of ``c``'s 70 a prefix of 64 is cached."""

    PROMPTS = (
        Prompt("c", 70, 64, 3.0, resident=False, extra={"priority": 0}),
        Prompt("a", 100, 40, 1.0, resident=True, extra={"priority": 1}),
        Prompt("b", 5, 0, 2.0, resident=False, extra={"priority": 1}),
    )

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ({}, {"a": 60, "b": 4}),
            ({"policy": "srpf"}, {"b": 5, "c": 6, "a": 53}),
            ({"policy": "srpf", "patience": 2.5}, {"a": 60, "b": 4}),  # a has waited for 3 s
            ({"policy": "srpf", "whole_prompts": True}, {"b": 5, "c": 6}),
            ({"policy": "deadline", "ttft_target": 50.0}, {"c": 6, "b": 5, "a": 53}),  # 29, 32 and late
            ({"chunks": (50, 30, 20)}, {"a": 10}),
        ],
        ids=str,
    )
    def test_by_the_settings(self, asked: dict[str, Any], expected: dict[str, int], tmp_path: Path) -> None:
        file = tmp_path / "cost.json"
        file.write_text(json.dumps(cost_json(CostModel((LayerCost(4, per_token=1.0),)))))
        made = batches_of(Fold(**asked, costs=str(file)), a_server()).next(self.PROMPTS, 4.0, room=math.inf, decodes=0)
        assert list(made.items()) == list(expected.items())

    def test_by_the_priorities_of_vllm(self) -> None:
        made = batches_of(Fold(), a_server(policy="priority")).next(self.PROMPTS, 4.0, room=math.inf, decodes=0)
        assert list(made.items()) == [("c", 6), ("a", 58)]

    def test_what_has_no_blocks_waits_for_what_has(self) -> None:
        batches = batches_of(Fold(policy="srpf"), a_server())
        assert batches.next(self.PROMPTS, 4.0, room=4, decodes=0) == {"a": 60}
        assert batches.next(self.PROMPTS, 4.0, room=5, decodes=0) == {"b": 5}  # c has no room, and comes before a

    def test_decodes_have_their_tokens(self) -> None:
        batches = batches_of(Fold(), a_server())
        assert batches.next(self.PROMPTS, 4.0, room=math.inf, decodes=62) == {"a": 2}
        assert batches.next((), 4.0, room=math.inf, decodes=64) == {}

    def test_chunks_of_equal_time(self, tmp_path: Path) -> None:
        """The time of 1024 tokens, 524,800 pairs, is that of 424 behind 1024, rounded up to pages; or a quarter."""
        file = tmp_path / "cost.json"
        file.write_text(json.dumps(cost_json(CostModel((LayerCost(4, per_pair=1.0),)))))
        batches = batches_of(Fold(chunks="dcpp", costs=str(file)), a_server(max_num_batched_tokens=1024))
        for computed, expected in ((0, 1024), (1024, 448), (3072, 256)):
            prompt = Prompt("p", 9999, computed, 0.0, resident=True)
            assert batches.next([prompt], 4.0, room=math.inf, decodes=0) == {"p": expected}

    def test_by_corrected_costs(self) -> None:
        """As if they had been there from the start: chunks of equal time, and who is late."""
        server = a_server(max_num_batched_tokens=1024)
        linear, quadratic = (CostModel((LayerCost(4, **each),)) for each in ({"per_token": 1.0}, {"per_pair": 1.0}))
        batches, prompt = batches_of(Fold(), server), Prompt("p", 9999, 1024, 0.0, resident=True)
        for asked, cost, tokens in ((Fold(), quadratic, 1024), (Fold(chunks="dcpp"), quadratic, 448)):
            after = repriced(batches, asked, server, cost)
            assert after.next([prompt], 4.0, room=math.inf, decodes=0) == {"p": tokens}
        prompts = [Prompt(name, tokens, 0, 0.0, resident=False) for name, tokens in (("long", 10), ("short", 3))]
        for cost, names in ((linear, ["long", "short"]), (quadratic, ["short", "long"])):  # the long one is late
            after = repriced(batches, Fold(policy="deadline", ttft_target=50.0), server, cost)
            assert list(after.next(prompts, 1.0, room=math.inf, decodes=0)) == names

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            (Fold(policy="deadline"), "vppc.policy: deadline needs costs"),
            (Fold(chunks="dcpp"), "vppc.chunks: dcpp needs costs"),
        ],
        ids=["deadline", "dcpp"],
    )
    def test_what_needs_costs(self, asked: Fold, message: str) -> None:
        with pytest.raises(InputError, match=message):
            batches_of(asked, a_server())

    def test_one_decides(self) -> None:
        with pytest.raises(InputError, match=r"vppc\.policy: is not vLLM's priority"):
            batches_of(Fold(policy="fcfs"), a_server(policy="priority"))


def a_server(**changes: Any) -> Any:
    """As much of vLLM's configuration as batches depend on: 2 ranks, 4 layers, 64 tokens a batch."""
    scheduler = {"max_num_scheduled_tokens": None, "max_num_batched_tokens": 64, "policy": "fcfs"}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: 4),
        cache_config=SimpleNamespace(block_size=64),
        scheduler_config=SimpleNamespace(**{**scheduler, "long_prefill_token_threshold": 0, **changes}),
    )


def a_batch(
    new: Sequence[tuple[str, int, int, int]] = (),
    known: Sequence[tuple[str, int, int, int]] = (),
    finished: Sequence[str] = (),
) -> Any:
    """As much of a ``SchedulerOutput`` as is looked at; of new requests (id, prompt, computed, tokens), of known ones
    (id, computed, made before, tokens)."""
    cached = SimpleNamespace(
        req_ids=[name for name, *_ in known],
        num_computed_tokens=[computed for _, computed, _, _ in known],
        num_output_tokens=[made for _, _, made, _ in known],
    )
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=[0] * prompt, num_computed_tokens=computed)
            for name, prompt, computed, _ in new
        ],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={name: tokens for name, _, _, tokens in (*new, *known)},
        total_num_scheduled_tokens=sum(tokens for *_, tokens in (*new, *known)),
        finished_req_ids=set(finished),
    )


def test_batches_as_chunks() -> None:
    """One prompt behind a cached prefix decodes, is preempted and comes back; another is given up half way."""
    traffic = Traffic()
    first, other = Request("a", 5, 2), Request("b", 4)
    chunk = Chunk((Part(0, 2, 3), Part(1, 0, 2)))
    assert traffic.entry(a_batch([("a", 5, 2, 3), ("b", 4, 0, 2)])) == Entry(
        chunk, [first, other], {0: first, 1: other}, [], 0
    )
    decode = Chunk((Part(0, 5, 1, decode=True),))
    assert traffic.entry(a_batch(known=[("a", 5, 1, 1)])) == Entry(decode, [], {0: first}, [], 0)
    assert traffic.entry(a_batch(finished=["b"])) is None
    again = Request("a", 7)  # with the two tokens that it had made
    assert traffic.entry(a_batch(known=[("a", 0, 2, 4)])) == Entry(
        Chunk((Part(2, 0, 4),)), [again], {2: again}, [1, 0], 2
    )
    assert traffic.entry(a_batch(known=[("a", 4, 2, 3)])) == Entry(Chunk((Part(2, 4, 3),)), [], {2: again}, [], 2)
    decode = Chunk((Part(2, 7, 1, decode=True),))
    assert traffic.entry(a_batch(known=[("a", 7, 3, 1)])) == Entry(decode, [], {2: again}, [], 2)
    last = Request("c", 1)
    assert traffic.entry(a_batch([("c", 1, 0, 1)], finished=["a"])) == Entry(
        Chunk((Part(3, 0, 1),)), [last], {3: last}, [2], 3
    )


def test_costs_of_another_model(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text(json.dumps(cost_json(CostModel((LayerCost(4, per_token=1.0),)))))
    assert Fold().cost(5) is None
    assert Fold(costs=str(file)).cost(4) == CostModel((LayerCost(4, per_token=1.0),))
    with pytest.raises(InputError, match="the counts add up to 4 layers, but the model has 5"):
        Fold(costs=str(file)).cost(5)


def test_a_page(tmp_path: Path) -> None:
    """Who maps it sees what others wrote, also when it has no name any more."""
    page = Page(tmp_path / "page", 2, create=True)
    other = Page(tmp_path / "page", 2)
    assert list(map(str, other.ranks())) == ["before its first chunk"] * 2
    rows = [RankRow(Doing.RECV, 7, 2, 1.5, None), RankRow(Doing.IDLE, 6, 1, 0.25, -0.125)]
    for rank, row in enumerate(rows):
        page.put_rank(rank, row)
        page.put_drift(rank, row.drift)
    for instruction in range(20000):
        page.put_ran(1, instruction, instruction, instruction + 0.5)
    page.put_engine(EngineRow(3, 8.5, 100.0))
    page.remove()
    assert other.ranks() == rows
    assert other.engine() == EngineRow(3, 8.5, 100.0)
    assert (other.ran(0, 0), other.ran(1, 20000)) == ([], [])
    assert other.ran(1, 19998) == [19998.0, 19998.5, 19999.0, 19999.5]
    expected = ["in RECV of chunk 7 for stage 2", "after FORWARD of chunk 6 on stage 1, waiting for the engine"]
    assert list(map(str, rows)) == expected
    with pytest.raises(FileNotFoundError):
        Page(tmp_path / "page", 2)


def test_where_ranks_stand(tmp_path: Path) -> None:
    """And for which requests, while the chunk is in flight."""
    page = Page(tmp_path / "page", 4, create=True)
    where = Whereabouts(page, 2)
    names = {number: Request(f"r{number}", 9) for number in range(6)}
    for chunk in ([0], [1, 2], [0, 1, 2, 3, 4, 5]):
        where.enter(Entry(Chunk(tuple(Part(number, 0, 1) for number in chunk)), [], names, [], 0))
    for process, doing, chunk in ((1, Doing.FORWARD, 0), (2, Doing.RECV, 1), (3, Doing.IDLE, 2)):
        page.put_rank(process, RankRow(doing, chunk, 3, 1.0, None))
    said = [
        "rank 0 (tp rank 0) is alive, before its first chunk; chunk 0 is in flight (request r0)",
        "rank 0 (tp rank 1) is alive, in FORWARD of chunk 0 on stage 3 (request r0)",
        "rank 1 (tp rank 0) is alive, in RECV of chunk 1 for stage 3 (requests r1, r2)",
        "rank 1 (tp rank 1) is alive, after FORWARD of chunk 2 on stage 3, waiting for the engine"
        " (requests r0, r1, r2, r3 and 2 more)",
    ]
    assert [where.of(process, "is alive") for process in range(4)] == said
    where.leave()
    through = "rank 0 (tp rank 1) died, in FORWARD of chunk 0 on stage 3"
    assert where.of(1, "died") == f"{through}; chunk 1 is in flight (requests r1, r2)"
    assert where.of(2, "is alive") == said[2]
    where.leave()
    where.leave()
    assert where.of(1, "died") == through


@pytest.mark.parametrize("sizes", [[], [3, 0], [2.5], ["4"], [True]], ids=str)
def test_sizes_that_are_none(sizes: list[Any]) -> None:
    with pytest.raises(InputError, match=r"vppc\.chunks: .* are no chunk sizes"):
        read_chunk_plan(sizes, "--additional-config")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_num_batched_tokens": 4}, "has a chunk of 5 tokens, and a batch has at most 4"),
        ({"long_prefill_token_threshold": 4}, "has a chunk of 5 tokens, and prompts are cut at 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_plans_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    fitting = {"max_num_batched_tokens": 5, "long_prefill_token_threshold": 0}
    check_fit(ChunkPlan(((5, 8),), 5), SimpleNamespace(**fitting))
    with pytest.raises(InputError, match=f"vppc.chunks: does not fit: {message}"):
        check_fit(ChunkPlan(((5, 8),), 5), SimpleNamespace(**fitting | changed))


def a_config(**changes: Any) -> Any:
    """As much of vLLM's configuration as is looked at; ``changes`` are by the last name."""
    known = {
        "parallel_config": {
            "pipeline_parallel_size": 2,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
            "distributed_executor_backend": "mp",
            "nnodes": 1,
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
        },
        "model_config": {"enforce_eager": True, "is_multimodal_model": False, "runner_type": "generate"},
        "scheduler_config": {"async_scheduling": False, "enable_chunked_prefill": True},
    }
    parts = {name: SimpleNamespace(**{**part, **changes}) for name, part in known.items()}
    absent = {"speculative_config": None, "lora_config": None}
    return SimpleNamespace(**{**absent, **parts, **{name: changes[name] for name in absent if name in changes}})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pipeline_parallel_size": 1}, "one pipeline rank has nothing to fold"),
        ({"distributed_executor_backend": "ray"}, "ranks are processes"),
        ({"data_parallel_size": 2}, "this build of vLLM's has no exchange of experts between replicas"),
        ({"nnodes": 2}, "ranks see each other's beats in this machine's memory"),
        ({"prefill_context_parallel_size": 2}, "a chunk is not split over ranks"),
        ({"decode_context_parallel_size": 2}, "a chunk is not split over ranks"),
        ({"enforce_eager": False}, "stages are not compiled"),
        ({"enable_chunked_prefill": False}, "prompts are not chunked"),
        ({"async_scheduling": True}, "batches are scheduled in step"),
        ({"speculative_config": 1}, "drafts are not carried between stages"),
        ({"lora_config": 1}, "adapters are not loaded by stages"),
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


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plugin_that_is_asked_for_nothing(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = Engine(monkeypatch, f"{version}+cpu")
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
    assert vllm.config({**FOLD, "vppc": {"strategy": "vpp"}}).max_concurrent_batches == 2


def test_the_plugin_in_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = Engine(monkeypatch, "0.33.0")
    register()
    assert vllm.executor.get_class(vllm.config({})) == "stock"
    assert vllm.config(FOLD).max_concurrent_batches == 7
    with pytest.raises(InputError, match=r": was made for vLLM 0\.28\.0 or 0\.32\.0, and this is 0\.33\.0"):
        vllm.executor.get_class(vllm.config(FOLD))


@pytest.mark.parametrize(
    ("device", "worker", "journal", "said"),
    [
        ("cuda", "auto", "out", "--additional-config: vLLM runs on cuda here\n  hint: its CPU build, or vLLM-Ascend"),
        ("npu", "auto", "out", "--additional-config: vppc.mode: no journal of batches is kept on NPUs\n  hint: vppc p"),
        (
            "cpu",
            "my.Worker",
            "out",
            "--additional-config: is for vLLM's own workers, not for my.Worker\n  hint: no --w",
        ),
        ("cpu", "auto", "/dev/null/no", "/dev/null/no: cannot be made: Not a directory"),
    ],
    ids=["platform", "NPU", "worker", "journal"],
)
def test_where_no_journal_can_be_kept(
    device: str, worker: str, journal: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm, platforms = Engine(monkeypatch, "0.28.0"), ModuleType("vllm.platforms")
    vars(platforms)["current_platform"] = SimpleNamespace(device_name=device)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    register()
    config = vllm.config({"vppc": {"mode": "shadow", "journal": journal}})
    config.parallel_config = SimpleNamespace(worker_cls=worker)
    with pytest.raises(InputError) as refused:
        vllm.executor.get_class(config)
    assert str(refused.value).startswith(said)


def test_a_scheduler_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="the batches of a folded server are ours\n  hint: no --scheduler-cls"):
        _replace_scheduler(a_server(scheduler_cls="mine"), "ours", Fold())


@needs_vllm
def test_batches_of_the_scheduler(tmp_path: Path) -> None:
    """In vLLM's own, batch by batch. Planned: the first prompt's chunk is the batch, and what it leaves others fill;
    prompts longer than planned are as without a plan. And what vLLM is asked for and is not folded is refused when its
    configuration is made, before anything is loaded."""
    model = str(write_checkpoint(tmp_path / "llama", MODELS["llama"]))
    sections = [None, {}, {"chunks": [48, 32, 20]}, {"policy": "srpf"}, {"whole_prompts": True}]
    refused: dict[str, dict[str, Any]] = {
        "adapters are not loaded by stages": {"enable_lora": True},
        "drafts are not carried between stages": {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}
        },
        "only generation is folded": {"runner": "pooling"},
        "stages are not compiled": {"enforce_eager": False},
        "batches are scheduled in step": {"async_scheduling": True},
        "prompts are not chunked": {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
        "one pipeline rank has nothing to fold": {"pipeline_parallel_size": 1},
        "ranks see each other's beats in this machine's memory": {"nnodes": 2},
        "a chunk is not split over ranks": {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
    }
    made, said = batches(tmp_path / "run", model, [100, 30, 50, 130], 64, sections, [{}, *refused.values()])
    assert [each.partition("\n")[0] for each in said] == [
        "it is taken",
        *(f"--additional-config: cannot fold: {reason}" for reason in refused),
    ]
    stock, usual, planned, shortest, whole = made
    assert stock == [{0: 64}, {0: 36, 1: 28}, {1: 2, 2: 50, 3: 12}, {3: 64}, {3: 54}]
    assert usual == stock
    assert planned == [
        {0: 48},
        {0: 32},
        {0: 20},
        {1: 30, 2: 18},  # a chunk of 48, of which the first prompt has 30
        {2: 30},  # to where the chunk would have ended that the prompt is in
        {2: 2, 3: 30},  # a chunk of 32
        {3: 64},
        {3: 36},
    ]
    assert shortest == [{1: 30, 2: 34}, {2: 16, 0: 48}, {0: 52, 3: 12}, {3: 64}, {3: 54}]
    assert whole == [{0: 64}, {0: 36}, {1: 30}, {2: 50}, {3: 64}, {3: 64}, {3: 2}]


@needs_vllm
def test_folded_engines_make_what_one_worker_makes(tmp_path: Path) -> None:
    """Prompts of several chunks and of a part of one, batches that mix prompts and decodes, a prefix that is found
    cached; two ranks with uneven stages that run far ahead, the shortest prompt first, and so few blocks of KV cache
    that requests are preempted; three ranks with planned chunks and the paper's policy; one prompt's log probabilities,
    and one answer that follows a grammar. Costs that are wrong are found to be. When the last rank fails, or is stuck,
    the engine ends, and its log says where."""
    model = str(write_checkpoint(tmp_path / "qwen3-moe", MODELS["qwen3-moe"]))
    random = Random(0)
    first = [random.randrange(300) for _ in range(300)]
    prompts = [first, *([random.randrange(300) for _ in range(length)] for length in (9, 140, 1, 65, 126, 127, 126))]
    prompts.append([*first[:256], 5, 6, 7])
    write_tokenizer(tmp_path / "qwen3-moe", VOCABULARY)
    usual = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "skip_tokenizer_init": False}
    ranges = [[[0, 2], [12, LAYERS]], [[2, 7], [7, 12]]]
    folded = {**usual, "distributed_executor_backend": "mp"}
    costs = tmp_path / "cost.json"
    costs.write_text(json.dumps(cost_json(CostModel((LayerCost(LAYERS, per_token=1e-9),)))))
    packed = {"strategy": "vpp-packed", "policy": "srpf", "costs": str(costs)}
    planned = {"chunks": [64, 48, 40], "policy": "dual-queue", "stall": 6}
    small = {"max_model_len": 384, "num_gpu_blocks_override": 5, "disable_log_stats": False}
    plain, *others = engines(
        tmp_path / "run",
        model,
        prompts,
        [
            usual,
            {
                **folded,
                **small,
                "pipeline_parallel_size": 2,
                "additional_config": {**FOLD, "vpp_layer_ranges": ranges, "vppc": packed},
            },
            {**folded, "pipeline_parallel_size": 3, "additional_config": {**FOLD, "vppc": planned}},
        ],
        {2: {"prompt_logprobs": 0}, 4: {"regex": "[0-9]{8}"}},
    )
    assert plain[2].prompt.shape == (139,)
    assert all(chr(token) in "0123456789" for token in plain[4].tokens)
    for other in others:
        for one, another in zip(plain, other, strict=True):
            assert one.tokens == another.tokens
            torch.testing.assert_close(one.logits, another.logits, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(one.prompt, another.prompt, atol=1e-4, rtol=1e-4)
    log = (tmp_path / "run" / "log").read_text()
    assert re.search(r"the last \d+ FORWARDs took \d+% longer than planned\n", log), log
    assert re.search(r"rank 1, FORWARD of chunk \d+ on stage 2: it is broken\n", log), log
    assert re.search(r"rank 1 died \(exit code 1\), in FORWARD of chunk \d+ on stage 2 \(request 9-\w+\)\n", log), log
    where = r"in FORWARD of chunk \d+ on stage 3 \(request 9-\w+\)\n"
    assert re.search(rf"rank 2 has not gone on for 6 s, {where}", log), log
    assert re.search(rf"rank 2 died \(exit code -9\), {where}", log), log
