"""The memory of a plan: what it is made of, what does not fit, and whether the remedies are true."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans import compiled, plans
from vppc.analysis.memory import (
    WORKSPACE_TOKENS,
    Memory,
    RankLoad,
    check_memory,
    known_memory,
    loads_of,
    memory_plan,
    memory_table,
    resident_tokens,
)
from vppc.analysis.memory_remedies import balanced_ranges
from vppc.costs.devices import DEVICES, Device
from vppc.costs.roofline import roofline_cost
from vppc.errors import CheckFailed, InputError
from vppc.ir.instruction import Forward, Program, Sample
from vppc.ir.rules import check
from vppc.ir.schedule import Chunk, Model, Part, Request, Schedule, Stage
from vppc.models import ModelSpec, load_model
from vppc.models.spec import Dense, Experts, GroupedQuery, Latent, LayerKind
from vppc.models.weights import Sharding, layer_weights, weight_bytes

NPU = DEVICES["910c"]
DEEPSEEK = load_model("deepseek-v3.1")
K = 1024

SMALL = ModelSpec("small", 64, 1000, GroupedQuery(8, 4, 16), (LayerKind(12, Dense(128)),))
SMALL_MLA = replace(SMALL, attention=Latent(8, 0, 64, 16, 16, 16))
MIXED = replace(SMALL, kinds=(LayerKind(2, Dense(512)), LayerKind(10, Experts(8, 2, 64, shared_width=64))))


def plan(
    spec: ModelSpec, prompts: tuple[int, ...], pp: int = 2, strategy: str = "vpp-packed", tp: int = 8, **options: Any
) -> Schedule:
    cost = roofline_cost(spec, NPU, tp=tp, weight_dtype="w8a8")
    return compiled(strategy, prompts, pp, cost, **options)


def refusal(schedule: Schedule, spec: ModelSpec, device: Device, **shares: Any) -> str:
    with pytest.raises(CheckFailed) as error:
        check_memory(schedule, spec, device, **shares)
    return str(error.value)


class TestDeepSeekOnSixteenDies:
    """Two pipeline ranks of eight 910C dies, 64 GB each."""

    def test_bf16_does_not_fit_at_all(self) -> None:
        text = refusal(plan(DEEPSEEK, (64 * K,)), DEEPSEEK, NPU, tp=8)
        assert text.startswith("M1 rank 1: needs 87.96 GiB a device and has 60.66: 27.30 GiB too much (2 of 2 ranks")
        assert text.endswith(
            "\n  hint: no chunk size, run-ahead or layer ranges were found that fit, nor all of them together. "
            "Would fit: weights in w8a8 (--weight-dtype); or 16 devices a rank (--tp 16); or "
            "3 pipeline ranks (--pp)"
        )

    @pytest.mark.parametrize(("chunk_size", "ep"), [(8 * K, 1), (8 * K, 8), (24 * K, 8)])
    def test_eight_bits_and_384k_fit(self, chunk_size: int, ep: int) -> None:
        schedule = plan(DEEPSEEK, (384 * K,), chunk_size=chunk_size)
        fitted = check_memory(schedule, DEEPSEEK, NPU, tp=8, ep=ep, weight_dtype="w8a8")
        ranks = memory_plan(schedule, DEEPSEEK, NPU, tp=8, ep=ep, weight_dtype="w8a8")
        assert [program.extra["memory"] for program in fitted.programs] == [rank.json() for rank in ranks]
        assert all(0 < rank.free < 5 * 2**30 for rank in ranks)

    def test_512k_do_not_unless_something_is_smaller(self) -> None:
        """The paper has run them, on as many dies, and does not say in which types."""
        schedule = plan(DEEPSEEK, (512 * K,))
        text = refusal(schedule, DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")
        assert text.startswith("M1 rank 1: needs 62.10 GiB a device and has 60.66: 1.43 GiB too much; ")

    def test_a_million_tokens_do_not(self) -> None:
        schedule = plan(DEEPSEEK, (1024 * K,))
        text = refusal(schedule, DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")
        problem, *_, hint = text.splitlines()
        assert problem == (
            "M1 rank 1: needs 78.97 GiB a device and has 60.66: 18.31 GiB too much (2 of 2 ranks do not fit); "
            "KV: 1,048,576 tokens x 34,560 bytes"
        )
        assert hint == (
            "  hint: no chunk size, run-ahead or layer ranges were found that fit, nor all of them together. "
            "Would fit: 16 devices a rank (--tp 16 --ep 16); or 3 pipeline ranks (--pp); or prompts of at most "
            "474663 tokens"
        )
        check_memory(plan(DEEPSEEK, (1024 * K,), pp=3), DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")
        check_memory(plan(DEEPSEEK, (1024 * K,), tp=16), DEEPSEEK, NPU, tp=16, ep=16, weight_dtype="w8a8")
        check_memory(plan(DEEPSEEK, (474663,)), DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")

    def test_large_chunks_with_cut_experts_do_not(self) -> None:
        text = refusal(plan(DEEPSEEK, (384 * K,), chunk_size=24 * K), DEEPSEEK, NPU, tp=8, weight_dtype="w8a8")
        assert text.endswith(
            "hint: chunks of at most 12928 tokens (--chunk-size); or experts whole on 8 devices (--ep 8)"
        )
        check_memory(plan(DEEPSEEK, (384 * K,), chunk_size=12928), DEEPSEEK, NPU, tp=8, weight_dtype="w8a8")

    def test_a_model_without_experts_has_none_to_keep_whole(self) -> None:
        dense = load_model("qwen3-8b")
        text = refusal(plan(dense, (64 * K,), tp=2), dense, replace(NPU, memory=6 * 2**30), tp=2)
        assert text.endswith("Would fit: 4 devices a rank (--tp 4); or 4 pipeline ranks (--pp)")
        text = refusal(plan(dense, (64 * K,), tp=1), dense, replace(NPU, memory=5 * 2**30))
        assert text.endswith("Would fit: 8 devices a rank (--tp 8)")

    def test_where_the_bytes_are(self) -> None:
        schedule = plan(DEEPSEEK, (512 * K,), chunk_size=24 * K)
        first, second = memory_plan(schedule, DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")
        dense, sparse = (
            weight_bytes(DEEPSEEK, layer_weights(DEEPSEEK, kind), Sharding(8, 8), "w8a8") for kind in DEEPSEEK.kinds
        )
        vocabulary = 2 * 129280 * 7168 // 8
        assert first.weights == 3 * dense + 28 * sparse + 2 * vocabulary + 2 * 7168
        assert second.weights == 30 * sparse
        assert (first.kv_per_token, second.kv_per_token) == (31 * 1152, 30 * 1152)
        assert first.kv_tokens == second.kv_tokens == 512 * K
        assert first.buffers == schedule.programs[0].buffers * 24 * K * 2 * 2 * 7168 // 8
        assert first.workspace == 2 * 128 * K * (576 + 16 * (128 + 128 + 192))
        assert first.communicators == 2 * 400 * 2**20 + 2 * 40 * 2**20
        assert first.activations == 24 * K * 2 * (3 * 7168 + 2 * 7168 + 3 * 2048 + 3 * 2048 // 8)
        assert (first.limit, first.reserve) == ((65536 - 3416) * 2**20, 2**30)

    def test_a_rank_of_dense_layers_alone_holds_the_values_of_attention(self) -> None:
        """Queries and keys of 192, values and output of 128, for 16 heads a device; 3 x 18432 / 8 would be less."""
        ranges = ((0, 3), (3, 61))
        schedule = plan(DEEPSEEK, (64 * K,), strategy="cpp", chunk_size=8 * K, ranges=ranges)
        first = memory_plan(schedule, DEEPSEEK, NPU, tp=8, ep=8, weight_dtype="w8a8")[0]
        assert first.activations == 8 * K * 2 * (3 * 7168 + 1536 + 576 + 16 * (2 * 192 + 2 * 128))

    def test_latents_of_the_tokens_that_an_indexer_selects_are_not_rebuilt(self) -> None:
        """For 16 heads a device the query, its 512 + 64 against the latents, and 512 of output; the selected, twice."""
        sparse = load_model("deepseek-v3.2")
        ranges = ((0, 3), (3, 61))
        schedule = plan(sparse, (64 * K,), strategy="cpp", chunk_size=8 * K, ranges=ranges)
        first = memory_plan(schedule, sparse, NPU, tp=8, ep=8, weight_dtype="w8a8")[0]
        assert first.activations == 8 * K * 2 * (3 * 7168 + 1536 + 16 * (192 + 576 + 512) + 2 * 2048)


class TestParts:
    def small(self, **options: Any) -> Schedule:
        return plan(SMALL, (1000,), tp=1, chunk_size=100, **options)

    def test_embedding_and_head_are_at_the_ends(self) -> None:
        layer = weight_bytes(SMALL, layer_weights(SMALL, SMALL.kinds[0]), Sharding(), "bf16")
        matrix, norm = 2 * 1000 * 64, 2 * 64
        straight = memory_plan(self.small(strategy="cpp"), SMALL, NPU)
        assert [rank.weights - 6 * layer for rank in straight] == [matrix, matrix + norm]
        folded = memory_plan(self.small(), SMALL, NPU)
        assert [rank.weights - 6 * layer for rank in folded] == [2 * matrix + norm, 0]

    def test_a_tied_head_needs_no_second_matrix_on_one_rank(self) -> None:
        tied = replace(SMALL, tied=True)
        saved = [
            rank.weights - other.weights
            for strategy in ("vpp-async", "cpp")
            for rank, other in zip(
                memory_plan(self.small(strategy=strategy), SMALL, NPU),
                memory_plan(self.small(strategy=strategy), tied, NPU),
                strict=True,
            )
        ]
        assert saved == [2 * 1000 * 64, 0, 0, 0]  # on two ranks both keep it

    def test_a_stage_says_what_else_it_holds(self) -> None:
        spec = replace(SMALL, mtp=1)
        schedule = self.small(strategy="cpp")
        first, last = schedule.stages
        stages = (first, replace(last, extra={"modules": ["head", "mtp"]}))
        plain, more = (memory_plan(each, spec, NPU)[1].weights for each in (schedule, replace(schedule, stages=stages)))
        layer = weight_bytes(spec, layer_weights(spec, spec.kinds[0]), Sharding(), "bf16")
        assert more - plain == layer + 2 * (2 * 64 * 64 + 3 * 64)

    def test_the_payload_of_the_schedule_counts(self) -> None:
        schedule = self.small()
        tensor = {"name": "x", "shape": ["tokens", 640], "dtype": "float32", "layout": "replicated"}
        given_ = replace(schedule, extra={**schedule.extra, "payload": [tensor]})
        sizes = [memory_plan(each, SMALL, NPU)[0].buffers for each in (schedule, given_)]
        buffers = schedule.programs[0].buffers
        assert sizes == [buffers * 100 * 2 * 2 * 64, buffers * 100 * 4 * 640]

    def test_a_workspace_only_where_latents_are_rebuilt(self) -> None:
        for name, expected in (("deepseek-v3.1", True), ("deepseek-v3.2", False), ("qwen3-235b-a22b", False)):
            spec = load_model(name)
            ranks = memory_plan(plan(spec, (64 * K,)), spec, NPU, tp=4)
            assert all((rank.workspace > 0) == expected for rank in ranks)

    def test_the_workspace_is_as_long_as_the_longest_prefix_up_to_its_limit(self) -> None:
        size = 2 * (576 + 16 * (128 + 128 + 192))
        for tokens, prefix in ((8 * K, 0), (32 * K, 24 * K), (512 * K, WORKSPACE_TOKENS)):
            schedule = plan(DEEPSEEK, (tokens,))
            assert {rank.workspace for rank in memory_plan(schedule, DEEPSEEK, NPU, tp=8)} == {size * prefix}

    def test_cache_is_divided_by_kv_heads_and_latents_are_not(self) -> None:
        qwen = load_model("qwen3-coder-30b-a3b")
        kv = {
            (spec.name, tp): memory_plan(plan(spec, (8 * K,), tp=1), spec, NPU, tp=tp)[0].kv_per_token
            for spec in (qwen, DEEPSEEK)
            for tp in (1, 4)
        }
        assert kv["qwen3-coder-30b-a3b", 1] == 4 * kv["qwen3-coder-30b-a3b", 4]
        assert kv["deepseek-v3.1", 1] == kv["deepseek-v3.1", 4]

    def test_table(self) -> None:
        ranks = memory_plan(self.small(), SMALL, NPU)
        lines = memory_table(ranks).splitlines()
        assert lines[0].split() == [
            *("rank", "weights", "KV", "buffers", "activations", "workspace", "communicators", "reserve"),
            *("total", "limit", "free"),
        ]
        assert len(lines) == 4

    def test_bad_shares_and_dtypes(self) -> None:
        with pytest.raises(InputError, match="8 heads cannot be shared by 3 devices"):
            memory_plan(self.small(), SMALL, NPU, tp=3)
        with pytest.raises(InputError, match="the weight dtype 'int3' is not known"):
            memory_plan(self.small(), SMALL, NPU, weight_dtype="int3")


def resident_by_replay(schedule: Schedule, rank: int) -> int:
    """The same number, by keeping the set of (request, position) that a rank's caches hold."""
    stages = schedule.rank_stages[rank]
    held: set[tuple[int, int]] = set()
    done: dict[int, set[int]] = {}
    everything: dict[int, set[int]] = {}
    for chunk in schedule.chunks:
        for part in chunk.parts:
            everything.setdefault(part.request, set()).update(range(part.start, part.end))
    peak = 0
    for instruction in schedule.programs[rank]:
        if not isinstance(instruction, Forward):
            continue
        for part in schedule.chunks[instruction.chunk].parts:
            if instruction.stage == stages[0]:
                held |= {(part.request, position) for position in range(part.end)}
            peak = max(peak, len(held))
            if instruction.stage == stages[-1]:
                done.setdefault(part.request, set()).update(range(part.start, part.end))
        for request, positions in done.items():
            if positions == everything[request]:
                held = {(owner, position) for owner, position in held if owner != request}
    return peak


class TestResidentTokens:
    @given(plans(max_pp=3))
    def test_as_a_replay_counts_them(self, schedule: Schedule | InputError) -> None:
        if isinstance(schedule, InputError):
            return
        for rank in range(schedule.pp):
            assert resident_tokens(schedule, rank) == resident_by_replay(schedule, rank)

    def test_a_chunk_may_hold_a_prompt_in_two_parts(self) -> None:
        schedule = plan(SMALL, (300,), tp=1, chunk_size=100)
        *before, last = schedule.chunks
        [part] = last.parts
        parts = (replace(part, tokens=40), replace(part, start=part.start + 40, tokens=60))
        halved = replace(schedule, chunks=(*before, replace(last, parts=parts)))
        assert check(replace(halved, certificate=None)) == ()
        assert [resident_tokens(halved, rank) for rank in range(2)] == [300, 300]

    def test_packing_holds_two_prompts_at_once(self) -> None:
        one, packed = (
            plan(SMALL, (400, 400, 400), tp=1, strategy=s, chunk_size=50) for s in ("vpp-async", "vpp-packed")
        )
        assert [resident_tokens(one, rank) for rank in range(2)] == [400, 400]
        assert 400 < resident_tokens(packed, 0) < 1200
        assert resident_tokens(packed, 1) < 1200

    def test_cached_tokens_are_resident(self) -> None:
        schedule = plan(SMALL, (300,), tp=1, chunk_size=50)
        [request] = schedule.requests
        parts = [replace(chunk.parts[0], start=chunk.parts[0].start + 1000) for chunk in schedule.chunks]
        moved = replace(
            schedule,
            requests=(replace(request, prompt_tokens=1300, cached_tokens=1000),),
            chunks=tuple(replace(chunk, parts=(part,)) for chunk, part in zip(schedule.chunks, parts, strict=True)),
        )
        assert resident_tokens(moved, 0) == 1300


class TestRule:
    def test_a_file_with_memory_is_judged_by_it(self) -> None:
        schedule = plan(SMALL, (1000,), tp=1, chunk_size=100)
        fitted = check_memory(schedule, SMALL, NPU)
        assert check(fitted) == ()
        memory = fitted.programs[0].extra["memory"]
        too_small = {**memory, "limit": memory["weights"] + memory["kv_per_token"] * memory["kv_tokens"] - 1}
        first = replace(fitted.programs[0], extra={"memory": too_small})
        findings = check(replace(fitted, programs=(first, *fitted.programs[1:])))
        assert [finding.code for finding in findings] == ["M1"]

    @pytest.mark.parametrize(("limit", "found"), [(10, []), (9, ["M1"])])
    def test_a_cancelled_request_holds_its_tokens_up_to_its_last_chunk(self, limit: int, found: list[str]) -> None:
        """Four tokens of r0, which is given up, then the ten of r1, a byte each, with no weights."""
        code = [Forward(0, 0, None, None), Forward(1, 0, None, 0), Sample(1, 0)]
        schedule = Schedule(
            "by hand",
            Model("m", 1),
            *(1, 1),
            stages=(Stage(0, 0, (0, 1)),),
            requests=(Request("r0", 8), Request("r1", 10)),
            chunks=(Chunk((Part(0, 0, 4),)), Chunk((Part(1, 0, 10),))),
            programs=(replace(Program.of(0, 1, code), extra={"memory": {"limit": limit, "kv_per_token": 1}}),),
            extra={"cancelled": [0]},
        )
        assert [finding.code for finding in check(schedule)] == found

    def test_what_a_file_says_is_known_where_it_says_all(self) -> None:
        schedule = plan(SMALL, (1000,), tp=1, chunk_size=100)
        fitted = check_memory(schedule, SMALL, NPU)
        assert known_memory(fitted) == memory_plan(schedule, SMALL, NPU)
        assert known_memory(schedule) == ()
        for wrong in ({"limit": 2**40}, {**fitted.programs[0].extra["memory"], "reserve": 2**63}):
            first = replace(fitted.programs[0], extra={"memory": wrong})
            [known] = known_memory(replace(fitted, programs=(first, *fitted.programs[1:])))
            assert known.rank == 1

    def test_it_is_json(self) -> None:
        fitted = check_memory(plan(SMALL, (1000,), tp=1, chunk_size=100), SMALL, NPU)
        memory = json.loads(json.dumps(fitted.programs[1].extra["memory"]))
        assert {"limit", "weights", "kv_per_token"} <= memory.keys()


class TestRemedies:
    """Every remedy of a refusal, taken, makes the plan fit: compiled again where it changes the plan."""

    prompts = (2000, 2000, 2000)

    def needs(self, spec: ModelSpec = SMALL, prompts: tuple[int, ...] = prompts, **options: Any) -> int:
        """What the hungriest rank of a plan needs."""
        return max(rank.total for rank in memory_plan(plan(spec, prompts, tp=1, **options), spec, NPU))

    def advice(self, limit: int, spec: ModelSpec = SMALL, prompts: tuple[int, ...] = prompts, **options: Any) -> str:
        schedule = plan(spec, prompts, tp=1, **options)
        return refusal(schedule, spec, replace(NPU, memory=limit)).partition("hint: ")[2]

    def number(self, pattern: str, advice: str) -> int:
        found = re.search(pattern, advice)
        assert found, advice
        return int(found[1])

    @pytest.mark.parametrize("strategy", ["cpp", "vpp", "vpp-async", "vpp-packed"])
    def test_smaller_chunks(self, strategy: str) -> None:
        options = {"strategy": strategy, "prompts": (2000,)}
        limit = (self.needs(chunk_size=1000, **options) + self.needs(chunk_size=256, **options)) // 2
        tokens = self.number(r"chunks of at most (\d+) tokens", self.advice(limit, chunk_size=1000, **options))
        assert 128 <= tokens < 1000
        assert self.needs(chunk_size=tokens, **options) <= limit

    @pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9])
    def test_smaller_chunks_have_a_prefix_to_rebuild(self, part: float) -> None:
        """One chunk has nothing behind it; of several the last has, and MLA needs a workspace for that."""
        options = {"spec": SMALL_MLA, "prompts": (2000,), "strategy": "cpp"}
        least, most = self.needs(chunk_size=128, **options), self.needs(chunk_size=2000, **options)
        limit = round(least + part * (most - least))
        tokens = self.number(r"chunks of at most (\d+) tokens", self.advice(limit, chunk_size=2000, **options))
        assert self.needs(chunk_size=tokens, **options) <= limit

    def test_fewer_buffers(self) -> None:
        limit = self.needs(chunk_size=500) - 1
        advice = self.advice(limit, chunk_size=500)
        buffers = self.number(r"at most (\d+) buffers a rank", advice)
        loads = loads_of(plan(SMALL, self.prompts, tp=1, chunk_size=500))
        memory = Memory(SMALL, replace(NPU, memory=limit), Sharding(), "bf16", 256.0)
        for more, fits in ((0, True), (1, False)):
            changed = (replace(load, buffers=min(load.buffers, buffers + more)) for load in loads)
            assert all(memory.of(load).free >= 0 for load in changed) == fits
        assert self.needs(chunk_size=500, max_buffers=3, max_in_flight=2) <= limit

    def test_fewer_resident_tokens(self) -> None:
        packed, alone = self.needs(chunk_size=200), self.needs(chunk_size=200, strategy="vpp-async")
        assert alone < packed
        limit = (packed + alone) // 2
        tokens = self.number(r"at most (\d+) resident tokens", self.advice(limit, chunk_size=200))
        assert tokens >= 2000
        assert self.needs(chunk_size=200, max_resident_tokens=tokens) <= limit

    def test_other_layer_ranges(self) -> None:
        lopsided = ((0, 5), (5, 6), (6, 7), (7, 12))
        options = {"chunk_size": 200, "ranges": lopsided}
        limit = (self.needs(**options) + self.needs(chunk_size=200)) // 2
        found = re.search(r"layer ranges (\S+) \(--layer-ranges\)", self.advice(limit, **options))
        assert found
        ranges = tuple((first, last) for first, last in json.loads(found[1]))
        assert self.needs(chunk_size=200, ranges=ranges) <= limit

    def test_all_together(self) -> None:
        lopsided = ((0, 5), (5, 6), (6, 7), (7, 12))
        options = {"chunk_size": 1000, "ranges": lopsided}
        loads = loads_of(plan(SMALL, self.prompts, tp=1, chunk_size=256, strategy="vpp-async"))
        memory = Memory(SMALL, NPU, Sharding(), "bf16", 256.0)
        limit = max(memory.of(replace(load, buffers=2)).total for load in loads)
        advice = self.advice(limit, **options)
        assert advice.startswith("no one change is enough, but together: layer ranges [[0,3],[3,6],")
        assert advice.endswith(
            "one prompt at a time (--max-resident-tokens 2000), and 2 buffers a rank (--max-buffers), "
            "where less run-ahead allows it (--max-in-flight)"
        )
        tokens = self.number(r"chunks of at most (\d+) tokens", advice)
        room = Memory(SMALL, replace(NPU, memory=limit), Sharding(), "bf16", 256.0)
        for more, fits in ((0, True), (128, False)):
            least = (replace(load, buffers=2, chunk_tokens=tokens + more) for load in loads)
            assert all(room.of(load).free >= 0 for load in least) == fits

    def test_no_chunks_are_asked_for_that_are_larger_than_the_plans(self) -> None:
        options = {"chunk_size": 256, "ranges": ((0, 5), (5, 6), (6, 7), (7, 12))}
        loads = loads_of(plan(SMALL, self.prompts, tp=1, chunk_size=256, strategy="vpp-async"))
        memory = Memory(SMALL, NPU, Sharding(), "bf16", 256.0)
        advice = self.advice(max(memory.of(replace(load, buffers=2)).total for load in loads), **options)
        assert "together: layer ranges [[0,3],[3,6],[6,9],[9,12]]" in advice
        assert self.number(r"chunks of at most (\d+) tokens", advice) == 256

    def test_nothing_fits(self) -> None:
        assert self.advice(NPU.reserve, chunk_size=1000).endswith(
            "nor all of them together; share the model over more devices (--tp, --pp)"
        )

    @settings(max_examples=30)
    @given(
        st.sampled_from([SMALL, MIXED]),
        st.sampled_from(["vpp-async", "vpp-packed", "cpp"]),
        st.integers(1, 3),
        st.integers(200, 900),
        st.floats(0.02, 1.0),
    )
    def test_remedies_of_any_refusal(
        self, spec: ModelSpec, strategy: str, pp: int, chunk_size: int, part: float
    ) -> None:
        options = {"strategy": strategy, "pp": pp, "chunk_size": chunk_size}
        need = self.needs(spec, **options)
        limit = NPU.reserve + round((need - NPU.reserve) * part) - 1
        advice = self.advice(limit, spec, **options)
        memory = Memory(spec, replace(NPU, memory=limit), Sharding(), "bf16", 256.0)
        loads = loads_of(plan(spec, self.prompts, tp=1, **options))
        if found := re.match(r"chunks of at most (\d+) tokens", advice):
            smaller = (replace(load, chunk_tokens=int(found[1]), buffers=2 * load.buffers) for load in loads)
            assert all(memory.of(load).free >= 0 for load in smaller)
        if found := re.search(r"layer ranges (\S+) \(--layer-ranges\)", advice):
            assert json.loads(found[1])[-1][1] == spec.layers
        if found := re.search(r"(\d+) pipeline ranks", advice):
            assert pp < int(found[1]) <= spec.layers
        if found := re.search(r"prompts of at most (\d+) tokens", advice):
            kept = int(found[1])
            assert self.needs(spec, prompts=(max(1, kept),), **options) <= limit


class TestBalancedRanges:
    def test_all_ranks_have_as_much_left(self) -> None:
        """12 layers alike on four ranks that have room for six each, of some 30 MiB."""
        spec = replace(SMALL, hidden=1024, kinds=(LayerKind(12, Dense(4096)),))
        memory = Memory(spec, NPU, Sharding(), "bf16", 256.0)
        loads = tuple(RankLoad(rank, ((0, 6),), frozenset(), 2, 2, 64, 300, 0) for rank in range(4))
        tight = replace(memory, device=replace(NPU, memory=memory.of(loads[0]).total))
        assert balanced_ranges(tight, loads, range(4)) == ((0, 3), (3, 6), (6, 9), (9, 12))

    @given(
        st.sampled_from([SMALL, MIXED]),
        st.sampled_from([(0, 1), (0, 1, 1, 0), (0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2), (0,)]),
        st.floats(0.3, 1.6),
    )
    def test_they_fit_and_on_straight_pipelines_exist_whenever_any_do(
        self, spec: ModelSpec, ranks: tuple[int, ...], part: float
    ) -> None:
        pp = max(ranks) + 1
        whole = RankLoad(0, ((0, 12),), frozenset(), 2, 2, 64, 300, 0)
        roomy = Memory(spec, replace(NPU, memory=2**40), Sharding(), "bf16", 256.0)
        base = roomy.of(replace(whole, ranges=())).total
        layers = roomy.of(whole).total - base
        memory = replace(roomy, device=replace(NPU, memory=base + round(layers * part / pp)))
        loads = tuple(replace(whole, rank=rank, ranges=((0, 12),) if rank == 0 else ()) for rank in range(pp))
        ranges = balanced_ranges(memory, loads, ranks)

        def fit(given: tuple[tuple[int, int], ...]) -> bool:
            held = {rank: tuple(r for r, on in zip(given, ranks, strict=True) if on == rank) for rank in range(pp)}
            return all(memory.of(replace(whole, rank=rank, ranges=held[rank])).free >= 0 for rank in range(pp))

        if ranges is not None:
            assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
            assert ranges[-1][1] == 12
            assert all(first < last for first, last in ranges)
            assert fit(ranges)
        elif pp == len(ranks) <= 2:
            cuts = range(1, 12) if pp == 2 else [12]
            assert not any(fit(((0, cut), (cut, 12))[: len(ranks)]) for cut in cuts)
