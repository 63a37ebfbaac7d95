"""Costs from what devices can do, held against hand calculations and against measurements."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.plans import DEEPSEEK, compiled, price
from vppc.cli.model import command
from vppc.costs.devices import DEVICES, MULTIPLIED, find_device
from vppc.costs.document import cost_json, parse_cost, read_cost
from vppc.costs.model import CostModel, LayerCost, layer_seconds
from vppc.costs.roofline import Efficiency, roofline_cost
from vppc.errors import InputError
from vppc.ir.schedule import Part
from vppc.models import load_model, preset_names
from vppc.models.spec import Dense, LayerKind
from vppc.models.weights import WEIGHT_BYTES

SHARED = Path(__file__).resolve().parents[2] / "shared"
FULL = Efficiency(1.0, 1.0, 1.0, 1.0)
H100, H200, NPU = DEVICES["h100"], DEVICES["h200"], DEVICES["910c"]

CONSTANTS = ("fixed", "per_token", "per_pair", "per_prefix_token", "collective_fixed", "collective_per_token")


def measured(name: str) -> list[dict[str, str]]:
    path = SHARED / "measurements" / name
    if not path.exists():
        pytest.skip("the shared folder with measurements is not here")
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


class TestConstants:
    def test_a_dense_model_by_hand(self) -> None:
        cost = roofline_cost(load_model("llama-3.1-70b"), H100, tp=4, efficiency=FULL)
        matrices = 8192 * (8192 + 2 * 1024 + 8192) + 3 * 8192 * 28672
        weights, norms, hidden = 2 * matrices / 4, 2 * 2 * 8192, 2 * 8192
        [layer] = cost.layers
        assert layer.count == 80
        assert layer.fixed == pytest.approx((weights + norms) / 3.35e12)
        assert layer.per_token == pytest.approx(2 * matrices / 4 / 989.4e12 + 8 * hidden / 3.35e12)
        assert layer.per_pair == pytest.approx(2 * 64 * (128 + 128) / 4 / 989.4e12)
        assert layer.per_prefix_token == pytest.approx(2 * 2 * 128 * 2 / 3.35e12)
        assert layer.collective_fixed == 2 * 20e-6
        assert layer.collective_per_token == pytest.approx(2 * 2 * 3 / 4 * hidden / 450e9)
        assert (layer.indexer_per_pair, layer.topk) == (0, 0)
        assert (cost.transfer.fixed, cost.launch) == (10e-6, 0.5e-3)
        assert cost.transfer.per_token == pytest.approx(2 * hidden / 4 / 450e9)
        head = 2 * 128256 * 8192 / 4
        assert cost.head.fixed == pytest.approx((head + hidden) / 3.35e12 + 20e-6)
        assert cost.head.per_token == pytest.approx(head / 989.4e12)
        assert cost.embed.per_token == pytest.approx(2 * hidden / 3.35e12 + 2 * 3 / 4 * hidden / 450e9)
        assert cost.name == "llama-3.1-70b-h100-tp4-bf16"

    def test_one_device_talks_to_nobody(self) -> None:
        cost = roofline_cost(load_model("qwen3-coder-30b-a3b"), H100)
        assert {(layer.collective_fixed, layer.collective_per_token) for layer in cost.layers} == {(0, 0)}
        assert cost.embed.fixed == 0

    def test_kinds_in_layer_order(self) -> None:
        layers = roofline_cost(load_model("deepseek-v3.1"), NPU, tp=8, weight_dtype="w8a8").layers
        assert [layer.count for layer in layers] == [3, 58]
        assert layers[0].fixed < layers[1].fixed / 10  # few weights; as many are multiplied
        assert layers[0].per_token == pytest.approx(layers[1].per_token, rel=0.6)
        assert layers[0].per_pair == layers[1].per_pair

    def test_latent_attention_rebuilds_keys_and_values_once_a_chunk(self) -> None:
        spec = load_model("deepseek-v3.1")
        layer = roofline_cost(spec, NPU, tp=8, efficiency=FULL).layers[0]
        moved, rebuilt = 2 * 576 + 2 * 16 * (192 + 128), 2 * 512 * 128 * 256 / 8
        assert layer.per_prefix_token == pytest.approx(moved / 1.6e12 + rebuilt / 376e12)
        sparse = roofline_cost(load_model("deepseek-v3.2"), NPU, tp=8, efficiency=FULL).layers[0]
        assert sparse.per_prefix_token == pytest.approx((2 * 576 + 2 * 128) / 1.6e12)

    def test_full_and_shared_indexers(self) -> None:
        layers = roofline_cost(load_model("glm-5.2"), H200, tp=8, weight_dtype="fp8", efficiency=FULL).layers
        assert sum(layer.count for layer in layers) == 78
        assert {layer.topk for layer in layers} == {2048}
        full, shared = layers[0], layers[1]
        assert full.indexer_per_pair == pytest.approx(2 * 32 * 128 / 1978.8e12 + 12 / 4.8e12)
        assert shared.indexer_per_pair == 0
        assert sum(layer.count for layer in layers if layer.indexer_per_pair) == 21

    def test_an_indexer_without_fp8_works_in_bf16(self) -> None:
        layer = roofline_cost(load_model("deepseek-v3.2"), NPU, tp=8, efficiency=FULL).layers[0]
        assert layer.indexer_per_pair == pytest.approx(2 * 64 * 128 / 376e12 + 12 / 1.6e12)

    def test_sparse_kernels_work_on_idle_heads_too(self) -> None:
        spec = load_model("deepseek-v3.2")
        pairs = {tp: roofline_cost(spec, H200, tp=tp, efficiency=FULL).layers[0].per_pair for tp in (1, 2, 4, 8)}
        assert pairs[1] == 2 * pairs[2] == 2 * pairs[4] == 2 * pairs[8]

    @pytest.mark.parametrize(("ep", "talks"), [(1, 2), (8, 3)])
    def test_experts_talk_by_all_to_all(self, ep: int, talks: int) -> None:
        layers = roofline_cost(load_model("kimi-k2"), NPU, tp=8, ep=ep, efficiency=FULL).layers
        hidden = 2 * 7168
        reduced = 2 * 7 / 8 * hidden
        second = reduced if ep == 1 else 2 * 8 * 7 / 8 * hidden / 8
        assert layers[0].collective_fixed == 2 * 100e-6  # the dense layer
        assert layers[1].collective_fixed == pytest.approx(talks * 100e-6)
        assert layers[1].collective_per_token == pytest.approx((reduced + second) / 196e9)

    def test_whole_experts_copy_fewer_tokens(self) -> None:
        spec = load_model("qwen3-coder-30b-a3b")
        cut, whole = (roofline_cost(spec, NPU, tp=4, ep=ep).layers[0] for ep in (1, 4))
        assert cut.fixed == whole.fixed
        assert cut.per_token - whole.per_token == pytest.approx(4 * (8 - 2) * 2 * 2048 / (0.7 * 1.6e12))

    def test_replicas_that_share_experts_read_fewer_weights(self) -> None:
        spec = load_model("deepseek-v3.1")
        narrow, wide = (roofline_cost(spec, H200, tp=8, ep=ep, weight_dtype="fp8").layers[1] for ep in (8, 32))
        assert narrow.fixed > 3 * wide.fixed
        assert narrow.per_token == wide.per_token

    def test_pipeline_ranks_on_different_nodes(self) -> None:
        spec = load_model("llama-3.1-70b")
        near, far = (roofline_cost(spec, H100, tp=8, network=network).transfer for network in (False, True))
        assert far.per_token == pytest.approx(9 * near.per_token)

    @given(st.sampled_from(preset_names()), st.sampled_from(list(DEVICES)), st.sampled_from([1, 2, 4, 8]))
    def test_every_preset_on_every_device(self, name: str, device: str, tp: int) -> None:
        spec = load_model(name)
        cost = roofline_cost(spec, DEVICES[device], tp=tp)
        assert parse_cost(json.loads(json.dumps(cost_json(cost)))) == cost
        assert cost.layer_count == spec.layers
        assert all(layer.fixed > 0 and layer.per_token > 0 and layer.per_pair > 0 for layer in cost.layers)

    @given(st.integers(1, 100_000))
    def test_between_the_roofline_and_twice_it(self, n: int) -> None:
        [layer] = roofline_cost(load_model("llama-3.1-70b"), H100, tp=4).layers
        priced, roof = layer.fixed + layer.per_token * n, max(layer.fixed, layer.per_token * n)
        assert roof <= priced <= 2 * roof


class TestEfficiency:
    def test_each_scales_its_own(self) -> None:
        spec = load_model("deepseek-v3.1")
        base = roofline_cost(spec, NPU, tp=8, efficiency=FULL)

        def ratio(efficiency: Efficiency) -> dict[str, float]:
            other = roofline_cost(spec, NPU, tp=8, efficiency=efficiency)
            kinds = [(getattr(other.layers[1], name), getattr(base.layers[1], name)) for name in CONSTANTS]
            ratios = {name: a / b for name, (a, b) in zip(CONSTANTS, kinds, strict=True)}
            ratios["transfer"] = other.transfer.per_token / base.transfer.per_token
            return {name: value for name, value in ratios.items() if value != pytest.approx(1)}

        assert ratio(replace(FULL, link=0.5)) == {"collective_per_token": 2, "transfer": 2}
        assert ratio(replace(FULL, attention=0.5)) == {"per_pair": 2, "per_prefix_token": pytest.approx(1.61, abs=0.02)}
        assert set(ratio(replace(FULL, matmul=0.5))) == {"per_token"}
        assert set(ratio(replace(FULL, memory=0.5))) == {"fixed", "per_token", "per_prefix_token"}

    @pytest.mark.parametrize("value", [0, -1, 1.01, inf, nan])
    def test_what_is_not_possible(self, value: float) -> None:
        with pytest.raises(InputError, match=r"--efficiency memory: an efficiency of .* is not possible"):
            Efficiency(memory=value)


class TestDevices:
    @pytest.mark.parametrize(("name", "gb"), [("910c", 64), ("910b", 64), ("h100", 80), ("h200", 141), ("b200", 180)])
    def test_memory_is_between_the_published_gb_of_ten_and_of_two(self, name: str, gb: int) -> None:
        assert gb * 10**9 < find_device(name).memory <= gb * 2**30

    def test_names_in_any_case(self) -> None:
        assert find_device("910C") is NPU

    def test_unknown(self) -> None:
        with pytest.raises(InputError) as error:
            find_device("h20")
        assert str(error.value) == (
            "--device: unknown device 'h20'\n"
            "  hint: did you mean h200? the devices are 910c, 910b, h100, h200, b200, cpu"
        )

    def test_what_a_device_does_not_multiply_in(self) -> None:
        with pytest.raises(InputError) as error:
            roofline_cost(load_model("deepseek-v3.1"), NPU, tp=8, weight_dtype="fp8")
        assert str(error.value) == "--weight-dtype: 910c does not multiply in fp8\n  hint: one of bf16, w8a8"

    def test_every_weight_dtype_is_multiplied_in_one(self) -> None:
        assert set(MULTIPLIED) == set(WEIGHT_BYTES)

    def test_a_model_that_cannot_be_shared_out(self) -> None:
        with pytest.raises(InputError, match="64 heads cannot be shared by 6 devices"):
            roofline_cost(load_model("llama-3.1-70b"), H100, tp=6)


class TestMeasurements:
    """Nothing here was fitted: the efficiencies are round numbers."""

    def test_deepseek_on_910c_against_the_fitted_cost_file(self) -> None:
        """The table in docs/models.md."""
        fitted = read_cost(str(DEEPSEEK))
        cost = roofline_cost(load_model("deepseek-v3.1"), NPU, tp=8, ep=8, weight_dtype="w8a8")
        pairs = {name: (getattr(cost.layers[1], name), getattr(fitted.layers[0], name)) for name in CONSTANTS[:4]}
        pairs["transfer"] = (cost.transfer.per_token, fitted.transfer.per_token)
        ratios = {name: round(ours / theirs, 2) for name, (ours, theirs) in pairs.items()}
        assert ratios == {
            "fixed": 0.56,
            "per_token": 1.20,
            "per_pair": 0.99,
            "per_prefix_token": 0.74,
            "transfer": 0.36,
        }

    def test_collectives_are_under_what_was_measured(self) -> None:
        """The fit books what it cannot explain on them: a prior of hardware figures can only be lower."""
        path = SHARED / "costs" / "deepseek-v3.1-910c-tp8-comm.json"
        if not path.exists():
            pytest.skip("the shared folder with fitted costs is not here")
        fitted = read_cost(str(path)).layers[0]
        layer = roofline_cost(load_model("deepseek-v3.1"), NPU, tp=8, ep=8, weight_dtype="w8a8").layers[1]
        assert round(layer.collective_per_token / fitted.collective_per_token, 2) == 0.39
        assert round(layer.collective_fixed / fitted.collective_fixed, 2) == 0.11

    def test_a_long_prompt_on_910c(self) -> None:
        """512K tokens in chunks of 24K: the compute of the rank with 31 layers, 250.84 s measured."""
        cost = roofline_cost(load_model("deepseek-v3.1"), NPU, tp=8, ep=8, weight_dtype="w8a8")
        parts = [Part(0, start, min(24576, 524288 - start)) for start in range(0, 524288, 24576)]
        layer = replace(cost.layers[1], count=31, collective_fixed=0.0, collective_per_token=0.0)
        seconds = sum(layer_seconds(CostModel((layer,)), 0, 31, [part]) for part in parts)
        assert seconds == pytest.approx(250.84, rel=0.05)

    def test_sparse_attention_on_h200(self) -> None:
        """The attention block of DeepSeek-V3.2 at four TP sizes, chunks from 1K to 8K, prefixes up to 160K."""
        spec = replace(load_model("deepseek-v3.2"), kinds=(LayerKind(1, Dense(1), "full"),))
        errors = []
        for row in measured("dsa_context_h200_deepseek-v3.2.csv"):
            if row["kernel_source"] != "sglang_dsa_indexer_flashmla_sparse":
                continue  # short prompts attend densely; an fp8 cache is not modelled
            [layer] = roofline_cost(spec, H200, tp=int(row["tp_size"]), weight_dtype="fp8").layers
            block = replace(layer, collective_fixed=0.0, collective_per_token=0.0)
            part = Part(0, int(row["step"]), int(row["isl"]))
            errors.append(layer_seconds(CostModel((block,)), 0, 1, [part]) / (float(row["latency"]) / 1e3) - 1)
        assert len(errors) == 352
        assert median(map(abs, errors)) < 0.12
        assert max(map(abs, errors)) < 0.5

    def test_sends_over_nvlink_and_network(self) -> None:
        """Transfers of H100 priced with what the peaks and priors say, from 1 MB up."""
        for devices_per_node, bandwidth in (("2", H100.link), ("1", H100.network)):
            errors = []
            for row in measured("h100_dgx_send_recv.csv"):
                size = int(row["size"])
                if row["devices_per_node"] == devices_per_node and size > 1_000_000:
                    priced = H100.transfer_latency + size / (Efficiency().link * bandwidth)
                    errors.append(priced / (float(row["time_stats.send_recv.median"]) / 1e3) - 1)
            assert len(errors) > 100
            assert median(map(abs, errors)) < 0.2


class TestCommand:
    def test_the_cost_file_is_what_is_priced(self, tmp_path: Path) -> None:
        path = tmp_path / "cost.json"
        arguments = ["kimi-k2", "--tp", "8", "--ep", "8", "--device", "910C", "--weight-dtype", "w8a8"]
        result = CliRunner().invoke(command, [*arguments, "--efficiency", "matmul=0.25", "-o", str(path)])
        assert result.exit_code == 0
        assert "kimi-k2-910c-tp8-ep8-w8a8, by roofline: efficiencies are priors, not measurements" in result.output
        expected = roofline_cost(
            load_model("kimi-k2"), NPU, tp=8, ep=8, weight_dtype="w8a8", efficiency=Efficiency(matmul=0.25)
        )
        assert read_cost(str(path)) == expected
        piped = CliRunner().invoke(command, [*arguments, "--efficiency", "matmul=0.25", "-o", "-"])
        assert piped.output == path.read_text()
        with_json = CliRunner().invoke(command, [*arguments, "--efficiency", "matmul=0.25", "--json"])
        assert json.loads(with_json.output)["cost"] == json.loads(path.read_text())

    def test_network(self, tmp_path: Path) -> None:
        path = tmp_path / "cost.json"
        CliRunner().invoke(command, ["llama-3.1-70b", "--device", "h100", "--network", "-o", str(path)])
        assert read_cost(str(path)) == roofline_cost(load_model("llama-3.1-70b"), H100, network=True)

    def test_equal_kinds_are_shown_once(self) -> None:
        result = CliRunner().invoke(command, ["glm-5.2", "--device", "h200", "--tp", "8"])
        table = result.output.partition("by roofline")[2].splitlines()
        assert [line.split()[0] for line in table[4:7]] == ["3", "57", "18"]


def test_a_schedule_compiles_and_is_priced_by_roofline() -> None:
    cost = roofline_cost(load_model("glm-5.2"), NPU, tp=8, weight_dtype="w8a8")
    schedule = compiled("vpp-async", (65536,), 2, cost, chunk_size=8192)
    assert 0.5 < price(schedule).efficiency <= 1
    assert isinstance(cost.layers[0], LayerCost)
