"""Stages on vLLM-Ascend, on stand-ins for it and for torch_npu: the same tokens as stock vLLM on one process, whatever
a rank's two stages share; and what is refused there.

The stand-ins compute on CPUs with the real signatures, which test_upstream.py holds against the real sources. What they
cannot show: speed, memory, kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_runs import Found, Job, Loop, Served, do
from test_runtime_tokens import compiled, written
from test_vllm_runner import LAYERS, MODELS, needs_vllm, prompts_of, write_checkpoint
from token_runs import Case
from vllm_runs import Made, engines, version

from runtime.runners.vllm import check_version, made_for
from runtime.runners.vllm_ascend.refusals import refuse, refuse_transfer
from vppc.errors import InputError

FOLD = {"virtual_pipeline_parallel_size": 2}
SHARDED = {"additional_config": {**FOLD, "enable_flashcomm1": True}}
CHOICE = {
    "pp": 2,
    "order": ("vpp-async", "v", 2),
    "split": "uneven",
    "prompts": ((150, 0), (9, 0), (70, 0)),
    "budget": 64,
    "chunk": 50,
    "layers": LAYERS,
}
RANGES = [[[0, 3], [12, LAYERS]], [[3, 7], [7, 12]]]
PIPELINE = {"pp_size": 4, "tp_size": 1, "dp_size": 1, "pp_layer_partition": f"3,4,5,{LAYERS - 12}"}
"""How the other side knows the stages with these layers."""
TRANSFER = {
    "kv_connector": "MooncakeConnectorV1",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"prefill": PIPELINE, "decode": {"tp_size": 1, "dp_size": 1}},
}
ROUNDS = (((0, 2), (1,)), ((1,), (0, 1, 2)))
"""Of each of two replicas, the prompts of two rounds."""
SEATS = 16
"""Requests in a batch: so many tokens experts exchange by MC2, and more by all-to-all."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, list[Made]]:
    """What ran on the stand-ins, and what stock vLLM makes of the same prompts."""
    folder = tmp_path_factory.mktemp("ascend")
    model = str(write_checkpoint(folder / "model", MODELS["qwen3-moe"]))
    schedule = compiled(CHOICE, Random(0))
    plan = written(schedule, folder / "plan.json")
    prompts = prompts_of(schedule)
    job = Job(
        model,
        loops=[Loop(Case(plan, {}), 2, tp) for tp in (1, 2)],
        served=Served(2, 2, {**SHARDED, "max_num_seqs": SEATS, "enable_expert_parallel": True}),
        prompts=prompts,
        scheduled=[100, 30, 50, 130],
        sections=[{}, {"chunks": [48, 32, 20]}],
        refused=[{"additional_config": {**FOLD, "profiling_chunk_config": {"enabled": True}}}],
        replicas=Served(2, 1, {"additional_config": FOLD, "enable_expert_parallel": True}),
        rounds=ROUNDS,
        producer=Served(2, 1, {"additional_config": {**FOLD, "vpp_layer_ranges": RANGES}, "transfer": TRANSFER}),
    )
    (stock,) = engines(folder / "stock", model, prompts, [{}], {})
    return do(folder / "run", job), stock


@needs_vllm
@pytest.mark.skipif(version() != "0.28.0", reason="the stand-in for vLLM-Ascend stands on vLLM 0.28.0")
class TestOnStandIns:
    def test_our_own_loop_makes_what_stock_vllm_makes(self, ran: tuple[Found, list[Made]]) -> None:
        """One process a rank, and two that send a share each. A judge refuses buffers that are used too early."""
        found, stock = ran
        one, two = found.loops
        assert one == {request: made.tokens[:1] for request, made in enumerate(stock)}
        assert two == {request: made.tokens[:1] * 2 for request, made in enumerate(stock)}  # of each process

    def test_a_folded_server_makes_what_stock_vllm_makes(self, ran: tuple[Found, list[Made]]) -> None:
        """Two ranks of two processes, with FlashComm, by which each process hands on rows of its own."""
        found, stock = ran
        assert [made.tokens for made in found.served] == [made.tokens for made in stock]

    def test_what_a_process_has_once_is_right_for_the_stage_that_runs(self, ran: tuple[Found, list[Made]]) -> None:
        """Forward context, experts' exchange, mask, rotary table: as the layers of each stage find them."""
        found, _ = ran
        starts = {stage: LAYERS * stage // 4 for stage in range(4)}
        for forwards in found.notes:
            rank = forwards[0]["process"] // 2
            assert {each["stage"] for each in forwards} == {rank, 3 - rank}
            for each in forwards:
                assert each["layer"] == starts[each["stage"]]
                assert each["positions_right"]
                assert each["staged"]  # the host waits until the device has read the batch before
                assert (each["masked"], each["capacity"]) == (each["tokens"], SEATS)
                assert each["comm"] == ("MC2" if each["tokens"] <= SEATS else "ALLTOALL")
        assert {each["comm"] for forwards in found.notes for each in forwards} == {"MC2", "ALLTOALL"}

    def test_with_flashcomm_a_process_hands_on_its_part_of_the_rows(self, ran: tuple[Found, list[Made]]) -> None:
        """Of n tokens ceil(n / tp), of the last stage nothing; the next stage gathers nothing over them."""
        found, _ = ran
        handed_on = {(each["tokens"], *each["rows"]) for forwards in found.notes for each in forwards if each["rows"]}
        assert all(rows == -(-tokens // 2) for tokens, rows in handed_on)
        assert {tokens % 2 for tokens, _ in handed_on} == {0, 1}

    def test_experts_of_a_rank_meet_in_the_same_order(self, ran: tuple[Found, list[Made]]) -> None:
        """All processes of a rank run the same stages on the same batches, also while memory is counted."""
        found, _ = ran
        by_rank: dict[int, list[Any]] = {}
        for forwards in found.notes:
            order = [(each["stage"], each["tokens"], each["profiling"]) for each in forwards]
            by_rank.setdefault(forwards[0]["process"] // 2, []).append(order)
        assert [len(orders) for orders in by_rank.values()] == [2, 2]
        assert all(one == other for one, other in by_rank.values())
        for rank, (order, _) in by_rank.items():
            assert [each[0] for each in order if each[2]] == [rank, 3 - rank]  # the largest batch, through both stages
            assert [each[1] for each in order if each[2]] == [64, 64]

    def test_replicas_with_experts_in_common_make_what_stock_vllm_makes(self, ran: tuple[Found, list[Made]]) -> None:
        """Each has half of the experts of a layer, and every layer takes an exchange. One has fewer batches."""
        found, stock = ran
        assert found.answers == [[[stock[index].tokens for index in each] for each in rounds] for rounds in ROUNDS]

    def test_a_dummy_batch_passes_where_the_batch_of_the_other_replica_does(
        self, ran: tuple[Found, list[Made]]
    ) -> None:
        """What a process runs, a stage at a time, is what the same process of the other replica runs beside it."""
        found, _ = ran
        by_rank: dict[int, list[Any]] = {}
        for forwards in found.shared:
            by_rank.setdefault(forwards[0]["process"] % 2, []).append(forwards)
        for one, other in by_rank.values():
            both = list(zip(one, other, strict=False))  # the last is under way when the servers end
            assert abs(len(one) - len(other)) <= 1
            assert [a["stage"] for a, _ in both] == [b["stage"] for _, b in both]
            pairs = {(a["dummy"], b["dummy"]) for a, b in both if not a["profiling"]}
            assert {(True, False), (False, True), (False, False)} <= pairs

    def test_prompts_are_fetched_from_each_stage(self, ran: tuple[Found, list[Made]]) -> None:
        """By a server without a pipeline, of vLLM-Ascend's as it is, which decodes them as stock vLLM does."""
        found, stock = ran
        assert found.fetched == [made.tokens for made in stock]

    def test_batches_of_the_older_scheduler(self, ran: tuple[Found, list[Made]]) -> None:
        """Those that the newer one makes, see test_vllm_fold.py, asked in the place that the older one has for it."""
        usual, planned = ran[0].batches
        assert usual == [{0: 64}, {0: 36, 1: 28}, {1: 2, 2: 50, 3: 12}, {3: 64}, {3: 54}]
        chunks = [{0: 48}, {0: 32}, {0: 20}, {1: 30, 2: 18}, {2: 30}, {2: 2, 3: 30}, {3: 64}, {3: 36}]
        assert planned == chunks

    def test_what_is_refused_at_the_start(self, ran: tuple[Found, list[Made]]) -> None:
        """Dynamic chunks by the server; CPUs by our own loop, where vLLM-Ascend has taken vLLM over."""
        message, on_cpus = ran[0].refused
        assert "vppc-run: --device: vLLM here is built for npu, not cpu\n  hint: --device npu" in on_cpus
        assert message.startswith(
            "--additional-config: cannot run in stages on vLLM-Ascend: dynamic chunks replace planned ones"
        )


def a_config(asked: Mapping[str, Any] | None = None, **changed: Any) -> SimpleNamespace:
    model = {"enforce_eager": True, "is_moe": True, "enable_sleep_mode": False}
    parallel = {"data_parallel_size": 1, "prefill_context_parallel_size": 1, "decode_context_parallel_size": 1}
    return SimpleNamespace(
        additional_config=asked,
        kv_transfer_config=changed.get("kv_transfer_config"),
        model_config=SimpleNamespace(**{key: changed.get(key, value) for key, value in model.items()}),
        parallel_config=SimpleNamespace(**{key: changed.get(key, value) for key, value in parallel.items()}),
    )


class TestRefusals:
    @pytest.mark.parametrize("sharded", [False, True])
    @pytest.mark.parametrize(
        "asked", [None, {}, {"xlite_graph_config": {"enabled": False}, "eplb_config": {"dynamic_eplb": False}}], ids=str
    )
    def test_what_runs(self, asked: Mapping[str, Any] | None, sharded: bool) -> None:
        refuse(a_config(asked), "--additional-config", sharded=sharded)

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            ({"profiling_chunk_config": {"enabled": True}}, "dynamic chunks replace planned ones"),
            ({"scheduler_config": {"profiling_chunk_config": {"enabled": True}}}, "dynamic chunks"),
            ({"enable_balance_scheduling": True}, "balance scheduling holds batches back"),
            ({"scheduler_config": {"enable_balance_scheduling": True}}, "balance scheduling"),
            ({"scheduler_config": {"batch_job_sched_config": {"enabled": True}}}, "batches by job"),
            ({"scheduler_config": {"short_request_first_config": {"enabled": True}}}, "its queue"),
            ({"SLO_limits_for_dynamic_batch": 50}, "dynamic batches"),
            ({"xlite_graph_config": {"enabled": True}}, "Xlite has a model runner of its own"),
            ({"eplb_config": {"dynamic_eplb": True}}, "expert maps number layers"),
            ({"eplb_config": {"expert_map_path": "map.json"}}, "expert maps number layers"),
            ({"finegrained_tp_config": {"lmhead_tensor_parallel_size": 2}}, "data-parallel ranks"),
            ({"layer_sharding": ["o_proj"]}, "one run of layers"),
        ],
        ids=str,
    )
    def test_settings(self, asked: Mapping[str, Any], reason: str) -> None:
        with pytest.raises(InputError, match=f"cannot run in stages on vLLM-Ascend: .*{reason}") as refused:
            refuse(a_config(asked), "--runner vllm", sharded=False)
        assert refused.value.file == "--runner vllm"

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            ({"enforce_eager": False}, "graphs are of one model runner a process"),
            ({"data_parallel_size": 2}, "as many rows as the one with the most"),
            ({"prefill_context_parallel_size": 2}, "a chunk is not split over ranks"),
            ({"decode_context_parallel_size": 2}, "a chunk is not split over ranks"),
            ({"enable_sleep_mode": True}, "the pool that sleeps"),
            ({"is_moe": False}, "a dense model hands on all rows"),
        ],
        ids=lambda value: value if isinstance(value, str) else next(iter(value)),
    )
    def test_configurations(self, changed: Mapping[str, Any], reason: str) -> None:
        with pytest.raises(InputError, match=reason):
            refuse(a_config(**changed), "--runner vllm", sharded=True)

    def test_balance_scheduling_by_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_ASCEND_BALANCE_SCHEDULING", "1")
        with pytest.raises(InputError, match="balance scheduling"):
            refuse(a_config(), "--runner vllm", sharded=False)
        refuse(a_config({"enable_balance_scheduling": False}), "--runner vllm", sharded=False)


class TestTransferRefusals:
    """Of KV transfers what is not from stages."""

    @staticmethod
    def config(dp: int = 1, prefill: Any = PIPELINE, **changed: Any) -> SimpleNamespace:
        told = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer", **changed}
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(**told, get_from_extra_config=lambda name, default: prefill),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=dp),
        )

    def test_what_runs(self) -> None:
        refuse_transfer(self.config(), (3, 4, 5, LAYERS - 12), "file")
        refuse_transfer(SimpleNamespace(kv_transfer_config=None, parallel_config=None), (3, 4), "file")

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            ({"kv_connector": "MooncakeLayerwiseConnector"}, "MooncakeLayerwiseConnector counts the layers"),
            ({"kv_role": "kv_consumer"}, "who fetches prompts from Mooncake has no pipeline"),
            ({"dp": 2}, "replicas with a KV transfer"),
            ({"prefill": {**PIPELINE, "pp_size": 2}}, "are told {'pp_size': 2}"),
            ({"prefill": {"pp_size": 4, "tp_size": 1}}, "are told {'pp_layer_partition': None}"),
        ],
        ids=str,
    )
    def test_what_does_not(self, changed: Mapping[str, Any], reason: str) -> None:
        with pytest.raises(InputError, match=f"cannot transfer from stages on vLLM-Ascend: .*{reason}") as refused:
            refuse_transfer(self.config(**changed), (3, 4, 5, LAYERS - 12), "file")
        assert refused.value.remedy


class TestVersions:
    @pytest.mark.parametrize(
        ("ascend", "vllm", "made"),
        [
            ("0.23.0", "0.23.0", True),
            ("0.23.0", "0.23.0+empty", True),
            ("0.26.0rc1", "0.26.0", True),
            ("0.26.0rc1", "0.23.0", False),
            ("0.23.0", "0.28.0", False),
            ("0.24.0", "0.24.0", False),
        ],
    )
    def test_a_version_of_ascend_has_its_vllm(
        self, ascend: str, vllm: str, made: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(metadata, "version", lambda name: {"vllm-ascend": ascend}[name])
        assert made_for(vllm) == made
        if not made:
            with pytest.raises(InputError, match=f"and this is {ascend} on vLLM {vllm}"):
                check_version(vllm, "--runner vllm")
