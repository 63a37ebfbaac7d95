"""The reference runner: every schedule gives the tokens of a run in one process and one chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CONFIGS
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from runtime.arguments import parse
from runtime.clock import Clock
from runtime.make_runner import Place, reference_runner
from runtime.prefixes import prefix_parts
from runtime.reference.batch import Batch
from runtime.reference.config import ModelConfig, small_model
from runtime.reference.config_json import parse_config
from runtime.reference.parallel import ALONE
from runtime.reference.prompts import Prompts, read_prompts
from runtime.reference.weights import SeededWeights
from runtime.runners.protocol import Buffer, Runner
from runtime.runners.reference import ReferenceRunner
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.instruction import Forward, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Chunk, Model, Part, Request, Schedule, Stage
from vppc.passes.strategies import Options

Logits = dict[int, list[Tensor]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model(name: str, layers: int) -> ModelConfig:
    return parse_config({**CONFIGS[name], "num_hidden_layers": layers})


def compiled(prompts: Sequence[tuple[int, int]], layers: int, **options: Any) -> Schedule:
    """Requests of (prompt, cached) tokens."""
    requests = tuple(Request(f"r{index}", *prompt) for index, prompt in enumerate(prompts))
    cost = CostModel((LayerCost(layers, per_token=1.0, per_pair=0.1),), transfer=Linear(0.5, 0.1))
    return compile_schedule(requests, Model("test", layers), cost, Options(**options))


def runner(schedule: Schedule, rank: int, config: ModelConfig, found: Logits, **options: Any) -> ReferenceRunner:
    return ReferenceRunner(
        schedule,
        rank,
        config,
        SeededWeights(),
        Prompts(schedule.requests, config.vocabulary),
        observe=lambda request, logits: found.setdefault(request, []).append(logits.clone()),
        **options,
    )


@dataclass
class Rank:
    """An interpreter of one rank's program, in the test's process. Buffers start as NaN: nobody may read garbage."""

    schedule: Schedule
    runner: Runner
    program: Program
    arrived: dict[int, list[Buffer]]  # what has been sent on each channel, in order
    skip: frozenset[int] = frozenset()
    position: int = 0
    batches: dict[int, Any] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # RECV, by index -> which of its channel's transfers it is
    received: dict[int, int] = field(default_factory=dict)  # RECVs posted so far, by channel
    tokens: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = max(chunk.tokens for chunk in self.schedule.chunks)
        specs = self.runner.payload
        self.buffers: list[Buffer] = [
            tuple(torch.full((rows, *spec.row), torch.nan, dtype=spec.dtype) for spec in specs)
            for _ in range(self.program.buffers)
        ]
        self.left: dict[int, int] = {}
        for instruction in self.program:
            for part in self.parts(instruction):
                self.left[part.request] = self.left.get(part.request, 0) + 1

    def parts(self, instruction: Any) -> tuple[Part, ...]:
        return self.schedule.chunks[instruction.chunk].parts if isinstance(instruction, Forward) else ()

    def step(self) -> bool:
        """Runs one instruction; whether it could."""
        if self.position == len(self.program):
            return False
        match self.program[self.position]:
            case Forward(chunk, stage, source, target) as instruction:
                if chunk not in self.batches:
                    self.batches[chunk] = self.runner.prepare(chunk, self.skip)
                inputs = None if source is None else self.buffers[source]
                self.runner.forward(
                    stage, self.batches[chunk], inputs, None if target is None else self.buffers[target]
                )
                for part in self.parts(instruction):
                    self.left[part.request] -= 1
                    if not self.left[part.request]:
                        self.runner.release(part.request)
            case Send(chunk, _, _, channel, buffer):
                rows = self.schedule.chunks[chunk].tokens
                self.arrived[channel].append(tuple(tensor[:rows].clone() for tensor in self.buffers[buffer]))
            case Recv(channel=channel):
                self.numbers[self.position] = self.received.get(channel, 0)
                self.received[channel] = self.numbers[self.position] + 1
            case Wait(of) if isinstance(posted := self.program[of], Recv):
                arrived, number = self.arrived[posted.channel], self.numbers[of]
                if number >= len(arrived):
                    return False
                for tensor, rows in zip(self.buffers[posted.buffer], arrived[number], strict=True):
                    tensor[: len(rows)] = rows
            case Sample(chunk, buffer):
                self.tokens.extend(self.runner.sample(self.batches[chunk], self.buffers[buffer]))
        self.position += 1
        return True


def warm(schedule: Schedule, runners: Sequence[ReferenceRunner], max_tokens: int) -> None:
    """Every piece of every cached prefix through all stages in order, as an interpreter is asked to."""
    for part in prefix_parts(schedule, max_tokens):
        batches = [each.prepare_prefix(part) for each in runners]
        here: Buffer | None = None
        for stage, rank in enumerate(schedule.stage_ranks):
            spec = runners[rank].payload[0]
            last = stage == len(schedule.stages) - 1
            there = None if last else (torch.full((max_tokens, *spec.row), torch.nan, dtype=spec.dtype),)
            runners[rank].forward(stage, batches[rank], here, there)
            here = there


def run(
    schedule: Schedule, config: ModelConfig, *, skip: frozenset[int] = frozenset(), **options: Any
) -> tuple[dict[int, list[int]], Logits, list[ReferenceRunner]]:
    """Tokens and logits of every request, and the runners, after running the programs of all ranks."""
    found: Logits = {}
    runners = [runner(schedule, rank, config, found, **options) for rank in range(schedule.pp)]
    warm(schedule, runners, 7)
    channels: dict[int, list[Buffer]] = {channel.id: [] for channel in schedule.channels}
    ranks = [
        Rank(schedule, each, program, channels, skip) for each, program in zip(runners, schedule.programs, strict=True)
    ]
    while sum(rank.step() for rank in ranks):  # one instruction of each rank, as long as any can
        pass
    assert all(rank.position == len(rank.program) for rank in ranks), "stuck"
    tokens: dict[int, list[int]] = {}
    for rank in ranks:
        for request, token in rank.tokens:
            tokens.setdefault(request, []).append(token)
    return tokens, found, runners


def alone(schedule: Schedule, config: ModelConfig, **options: Any) -> Logits:
    """The oracle: each prompt whole, in one chunk, on one rank that holds all layers."""
    chunks = tuple(Chunk((Part(index, 0, r.prompt_tokens),)) for index, r in enumerate(schedule.requests))
    requests = tuple(Request(r.id, r.prompt_tokens) for r in schedule.requests)
    whole = Schedule(
        "cpp", schedule.model, 1, 1, stages=(Stage(0, 0, (0, config.layers)),), requests=requests, chunks=chunks
    )
    found: Logits = {}
    single = runner(whole, 0, config, found, **options)
    for index, chunk in enumerate(chunks):
        batch = single.prepare(index, frozenset())
        buffer = (torch.empty(chunk.tokens, config.hidden, dtype=single.payload[0].dtype),)
        single.forward(0, batch, None, buffer)
        single.sample(batch, buffer)
    return found


MATRIX = [
    ("llama", 4, [(41, 0)], {"strategy": "cpp", "pp": 1, "chunk_size": 9}),
    ("qwen3", 5, [(41, 0), (1, 0), (30, 0)], {"strategy": "cpp", "pp": 2, "chunk_size": 8}),
    ("deepseek", 4, [(300, 0), (17, 5)], {"strategy": "dcpp", "pp": 4, "chunk_size": 192, "min_chunk": 3}),
    ("qwen3-moe", 7, [(33, 10), (20, 19), (5, 0)], {"strategy": "vpp", "pp": 3, "chunk_size": 6}),
    ("deepseek-plain", 4, [(50, 13), (50, 0)], {"strategy": "vpp-async", "pp": 2, "chunk_size": 7}),
    ("llama-tied", 4, [(40, 0), (12, 0), (3, 0), (29, 8)], {"strategy": "vpp-packed", "pp": 2, "chunk_size": 6}),
    ("qwen3", 9, [(31, 0), (9, 0)], {"strategy": "vpp-packed", "pp": 4, "chunk_size": 4}),
    ("llama", 8, [(31, 0), (9, 3)], {"strategy": "vpp-packed", "placement": "zigzag", "vp": 4, "chunk_size": 5}),
    ("qwen3-moe", 8, [(26, 0)], {"strategy": "vpp-async", "pp": 2, "placement": "loop", "vp": 4, "chunk_size": 5}),
    (
        "deepseek",
        6,
        [(37, 0), (8, 0)],
        {"strategy": "vpp-async", "pp": 2, "chunk_size": 10, "ranges": ((0, 3), (3, 4), (4, 5), (5, 6))},
    ),
    (
        "llama",
        4,
        [(3, 0), (2, 0), (1, 0), (23, 0), (4, 1), (5, 4)],
        {"strategy": "vpp-packed", "pp": 2, "chunk_size": 8, "token_budget": 8},
    ),
]


class TestRightTokens:
    @pytest.mark.parametrize(("name", "layers", "prompts", "options"), MATRIX)
    def test_fp32(self, name: str, layers: int, prompts: list[tuple[int, int]], options: dict[str, Any]) -> None:
        schedule, config = compiled(prompts, layers, **options), model(name, layers)
        tokens, found, runners = run(schedule, config)
        expected = alone(schedule, config)
        assert sorted(found) == sorted(expected) == list(range(len(prompts)))
        for request, (logits,) in expected.items():
            torch.testing.assert_close(found[request][0], logits, atol=3e-5, rtol=1e-5)
            assert tokens[request] == [int(logits.argmax())]
        assert [each.resident for each in runners] == [frozenset()] * schedule.pp

    @pytest.mark.parametrize("index", [0, 4, 5, 6])
    def test_bf16(self, index: int) -> None:
        name, layers, prompts, options = MATRIX[index]
        schedule, config = compiled(prompts, layers, **options), model(name, layers)
        tokens, found, _ = run(schedule, config, dtype=torch.bfloat16)
        expected = alone(schedule, config, dtype=torch.bfloat16)
        for request, (logits,) in expected.items():
            torch.testing.assert_close(found[request][0], logits, atol=0.1, rtol=0)
            first, second = logits.topk(2).values.tolist()
            assert tokens[request] == [int(logits.argmax())] or first - second < 0.2

    def test_the_default_model(self) -> None:
        config = small_model(4)
        schedule = compiled([(300, 100), (65, 0)], 4, strategy="vpp-packed", pp=2, chunk_size=64)
        tokens, found, _ = run(schedule, config)
        for request, (logits,) in alone(schedule, config).items():
            torch.testing.assert_close(found[request][0], logits, atol=3e-5, rtol=1e-5)
            assert tokens[request] == [int(logits.argmax())]

    def test_the_last_token_depends_on_the_first(self) -> None:
        """Or comparing last tokens would say little of the prefix."""
        config = model("deepseek", 4)
        schedule = compiled([(64, 0)], 4, strategy="cpp", pp=1, chunk_size=16)
        plain = Prompts(schedule.requests, config.vocabulary).tokens(0)
        found: Logits = {}
        for first in (int(plain[0]), (int(plain[0]) + 1) % config.vocabulary):
            given = {"r0": [first, *plain[1:].tolist()]}
            prompts = Prompts(schedule.requests, config.vocabulary, given=given)
            each = ReferenceRunner(
                schedule, 0, config, SeededWeights(), prompts, observe=lambda r, x: found.setdefault(r, []).append(x)
            )
            rank = Rank(schedule, each, schedule.programs[0], {})
            while rank.step():
                pass
        assert (found[0][0] - found[0][1]).abs().max() > 1e-3


class TestDecode:
    def test_a_decode_part_continues_from_the_sampled_token(self) -> None:
        config = model("qwen3", 2)
        parts = [Part(0, 0, 6), Part(1, 0, 3), Part(0, 6, 5), Part(0, 11, 1, decode=True), Part(1, 3, 4)]
        chunks = (Chunk(tuple(parts[:2])), Chunk(tuple(parts[2:3])), Chunk(tuple(parts[3:])))
        program = [
            step
            for chunk in range(3)
            for step in (
                Forward(chunk, 0, None, 0),
                Forward(chunk, 1, 0, 1 if chunk else None),
                *([Sample(chunk, 1)] if chunk else []),
            )
        ]
        schedule = Schedule(
            "cpp",
            Model("test", 2),
            1,
            2,
            stages=(Stage(0, 0, (0, 1)), Stage(1, 0, (1, 2))),
            requests=(Request("a", 11), Request("b", 7)),
            chunks=chunks,
            programs=(Program.of(0, 2, program),),
        )
        tokens, found, _ = run(schedule, config)
        first, second = tokens[0]
        prompt = Prompts(schedule.requests, config.vocabulary).tokens(0).tolist()
        longer = Schedule(
            "cpp",
            schedule.model,
            1,
            1,
            stages=(Stage(0, 0, (0, 2)),),
            requests=(Request("a", 12),),
            chunks=(Chunk((Part(0, 0, 12),)),),
        )
        expected: list[Tensor] = []
        single = ReferenceRunner(
            longer,
            0,
            config,
            SeededWeights(),
            Prompts(longer.requests, config.vocabulary, given={"a": [*prompt, first]}),
            observe=lambda request, logits: expected.append(logits),
        )
        batch, buffer = single.prepare(0, frozenset()), (torch.empty(12, config.hidden),)
        single.forward(0, batch, None, buffer)
        assert single.sample(batch, buffer) == ((0, second),)
        torch.testing.assert_close(found[0][1], expected[0], atol=3e-5, rtol=1e-5)


class TestCancel:
    def test_the_others_tokens_are_unchanged(self) -> None:
        config = model("qwen3-moe", 4)
        prompts = [(3, 0), (2, 0), (9, 0), (4, 0)]
        schedule = compiled(prompts, 4, strategy="vpp-packed", pp=2, chunk_size=8, token_budget=8)
        assert any(len({part.request for part in chunk.parts}) > 1 for chunk in schedule.chunks)
        _, expected, _ = run(schedule, config)
        for cancelled in range(4):
            tokens, found, runners = run(schedule, config, skip=frozenset({cancelled}))
            assert sorted(tokens) == sorted(found) == [other for other in range(4) if other != cancelled]
            for request, (logits,) in found.items():
                torch.testing.assert_close(logits, expected[request][0], atol=1e-5, rtol=1e-5)
            assert [each.resident for each in runners] == [frozenset()] * 2

    def test_skipped_rows_come_out_as_zeros(self) -> None:
        config, parts = model("llama", 1), (Part(0, 0, 2), Part(1, 0, 3), Part(2, 0, 1))
        schedule = Schedule(
            "cpp",
            Model("test", 1),
            1,
            1,
            stages=(Stage(0, 0, (0, 1)),),
            requests=tuple(Request(str(index), part.tokens) for index, part in enumerate(parts)),
            chunks=(Chunk(parts),),
        )
        each = runner(schedule, 0, config, {})
        rows = torch.full((8, config.hidden), torch.nan)
        batch = each.prepare(0, frozenset({0, 2}))
        each.forward(0, batch, None, (rows,))
        assert rows[:6].any(dim=1).tolist() == [False, False, True, True, True, False]
        assert rows[6:].isnan().all()  # beyond the chunk nothing is written
        assert [request for request, _ in each.sample(batch, (rows,))] == [1]
        batch = each.prepare(0, frozenset({0, 1, 2}))
        each.forward(0, batch, None, (rows,))
        assert not rows[:6].any()
        assert each.sample(batch, (rows,)) == ()


class TestMemory:
    def test_it_does_not_grow_with_the_number_of_requests(self) -> None:
        config = model("llama", 2)

        def peak(requests: int) -> int:
            schedule = compiled([(5, 0)] * requests, 2, strategy="vpp-packed", pp=1, chunk_size=4)
            each = runner(schedule, 0, config, {})
            rank, most = Rank(schedule, each, schedule.programs[0], {}), 0
            while rank.step():
                most = max(most, each.cache.nbytes)
            assert each.resident == frozenset()
            return most

        assert peak(100) == peak(10)

    def test_a_request_holds_rows_for_its_tokens_in_the_ranks_layers(self) -> None:
        config = model("llama", 3)  # 2 key-value heads of 8, keys and values in float32
        schedule = compiled([(21, 0)], 3, strategy="cpp", pp=2, chunk_size=8)
        each = runner(schedule, 0, config, {})
        first, last = schedule.stages[0].layers
        each.forward(0, each.prepare(0, frozenset()), None, None)
        assert each.cache.nbytes == (last - first) * 21 * 2 * 2 * 8 * 4
        each.release(0)
        assert each.cache.nbytes == 0
        each.release(0)  # of a cancelled request there may be nothing to forget

    def test_latent_attention_keeps_latents_only(self) -> None:
        config = model("deepseek", 2)  # a latent of 16 and a rotary key of 8
        schedule = compiled([(21, 0)], 2, strategy="cpp", pp=1, chunk_size=8)
        each = runner(schedule, 0, config, {})
        each.forward(0, each.prepare(0, frozenset()), None, None)
        assert each.cache.nbytes == 2 * 21 * (16 + 8) * 4


class TestCost:
    @pytest.mark.parametrize(
        ("name", "per_prefix_token"),
        [("qwen3", 0), ("deepseek", 2 * 2 * 16 * 4 * (12 + 10))],  # layers, multiply and add, latent, heads, dims
    )
    def test_latent_attention_rebuilds_the_prefix_once_a_chunk(self, name: str, per_prefix_token: int) -> None:
        config = model(name, 2)
        schedule = compiled([(80, 0)], 2, strategy="cpp", pp=1, chunk_size=20)
        each = runner(schedule, 0, config, {})
        counts = []
        for chunk in range(4):
            batch = each.prepare(chunk, frozenset())
            with FlopCounterMode(display=False) as counter:
                each.forward(0, batch, None, None)
            counts.append(counter.get_flop_counts()["Global"][torch.ops.aten.mm])
        assert [count - counts[0] for count in counts] == [20 * chunk * per_prefix_token for chunk in range(4)]


class TestPrepared:
    def test_it_is_frozen_while_later_chunks_are_prepared(self) -> None:
        config = model("llama", 4)
        schedule = compiled([(24, 0)], 4, strategy="vpp-async", pp=1, chunk_size=8)
        each = runner(schedule, 0, config, {})
        batches: list[Batch] = [each.prepare(chunk, frozenset()) for chunk in range(3)]
        assert [batch.spans[0].start for batch in batches] == [0, 8, 16]
        assert not torch.equal(batches[0].rope.cos, batches[1].rope.cos)
        with pytest.raises(AttributeError):
            batches[0].tokens = 9  # type: ignore[misc]

    def test_prefixes_are_cut_to_fit_a_buffer(self) -> None:
        schedule = compiled([(20, 0), (20, 13), (20, 6)], 2, strategy="cpp", pp=1, chunk_size=8)
        assert prefix_parts(schedule, 6) == (Part(1, 0, 6), Part(1, 6, 6), Part(1, 12, 1), Part(2, 0, 6))


class TestInputs:
    def test_a_schedule_for_another_model(self) -> None:
        schedule = compiled([(4, 0)], 3, strategy="cpp", pp=1)
        with pytest.raises(InputError, match="the schedule is for 3 layers, the model has 4"):
            runner(schedule, 0, model("llama", 4), {})

    def test_prompts_depend_on_seed_and_id_only(self) -> None:
        requests = (Request("a", 5), Request("b", 7))
        prompts = Prompts(requests, 97)
        assert prompts.tokens(1).tolist() == Prompts(requests[1:], 97).tokens(0).tolist() == GOLDEN_PROMPT
        assert Prompts(requests, 97, seed=1).tokens(1).tolist() != GOLDEN_PROMPT
        assert Prompts(requests, 97, given={"b": [1] * 7}).tokens(1).tolist() == [1] * 7

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"a": [1, 2, 96]}', None),
            ("[1]", "a list is not a set of prompts"),
            ('{"a": [1, 2.5, 3]}', "a: a list is no list of token ids"),
            ('{"a": 4}', "a: 4 is no list of token ids"),
            ('{"a": [1, 2]}', "a: has 2 tokens, the schedule's prompt 3"),
            ('{"a": [1, 2, 97]}', "a: has a token outside the model's vocabulary\n  hint: 0 to 96"),
            ('{"a": [1, -2, 97]}', "a: has a token outside the model's vocabulary\n  hint: 0 to 96"),
            ('{"b": [1, 2, 3]}', "b: is no request of the schedule"),
        ],
    )
    def test_a_file_of_prompts(self, text: str, message: str | None, tmp_path: Path) -> None:
        file = tmp_path / "prompts.json"
        file.write_text(text)

        def read() -> Prompts:
            return Prompts((Request("a", 3),), 97, given=read_prompts(str(file)), file=str(file))

        if message is None:
            assert read().tokens(0).tolist() == json.loads(text)["a"]
            return
        with pytest.raises(InputError) as caught:
            read()
        assert str(caught.value).startswith(f"{file}: {message}")


GOLDEN_PROMPT = [56, 53, 53, 53, 15, 70, 44]


@pytest.mark.parametrize(
    ("tokens", "layers", "pairs"),
    [((20_000, 20_000), 15, None), ((20_000, 30_000), 10, "0.7"), ((96 * 1024,), 4, "4.8"), ((8_000,), 61, None)],
)
def test_long_attention_on_a_cpu_is_said_once_before_it_begins(
    tokens: tuple[int, ...], layers: int, pairs: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = compiled([(each, 0) for each in tokens], layers, pp=2, chunk_size=max(tokens))
    for rank in range(2):
        reference_runner(parse(["plan.json"]), schedule, Place(rank, ALONE, torch.device("cpu"), Clock(0.0, 0.0)))
    assert capsys.readouterr().err.splitlines() == [
        f"vppc-run: note: the reference runner attends to {pairs} billion pairs of tokens in each of {layers} layers, "
        "which takes CPUs minutes to hours; --runner timed takes as long as the costs say"
    ] * (pairs is not None)
