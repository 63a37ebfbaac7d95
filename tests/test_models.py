"""What is read from a config, and what is counted from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from vppc.cli.model import command
from vppc.errors import InputError
from vppc.models import ModelSpec, load_model, preset_names
from vppc.models.config import parse_config
from vppc.models.describe import describe, distinct_kinds
from vppc.models.flops import kv_bytes, layer_flops, model_flops
from vppc.models.payload import payload, payload_bytes, widest_payload
from vppc.models.spec import Dense, Experts, GroupedQuery, Indexer, Latent, LayerKind
from vppc.models.weights import (
    Sharding,
    active_parameters,
    embedding_weights,
    layer_weights,
    mtp_weights,
    parameters,
    total_active,
    total_parameters,
    weight_bytes,
)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"

TINY: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 8,
    "intermediate_size": 96,
}
TINY_MLA = {
    **TINY,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}
TINY_DSA = {**TINY_MLA, "index_topk": 6, "index_n_heads": 2, "index_head_dim": 8}
TINY_EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 20}


def tiny(config: dict[str, Any] = TINY, **changed: Any) -> ModelSpec:
    return parse_config({**config, **changed}, "tiny")


class TestPresets:
    @pytest.mark.parametrize(
        ("name", "total"),
        [  # what the published checkpoints hold, their layers for multi-token prediction left out
            ("qwen3-coder-30b-a3b", 30_532_122_624),
            ("qwen3-235b-a22b", 235_093_634_560),
            ("deepseek-v3.1", 671_026_419_200),
            ("kimi-k2", 1_026_408_232_448),
            ("llama-3.1-70b", 70_553_706_496),
            ("llama-3.1-8b", 8_030_261_248),
            ("qwen3-8b", 8_190_735_360),
            ("qwen3-14b", 14_768_307_200),
            ("qwen3-32b", 32_762_123_264),
        ],
    )
    def test_every_parameter_is_counted(self, name: str, total: int) -> None:
        assert total_parameters(load_model(name)) == total

    @pytest.mark.parametrize(
        ("name", "total", "active"),
        [
            ("deepseek-v3.1", 671e9, 37e9),
            ("glm-5.2", 744e9, 40e9),
            ("kimi-k2", 1.026e12, 32e9),
            ("qwen3-235b-a22b", 235e9, None),
            ("qwen3-coder-30b-a3b", 30.5e9, None),
            ("llama-3.1-70b", 70.6e9, None),
        ],
    )
    def test_published_totals_within_one_and_a_half_percent(
        self, name: str, total: float, active: float | None
    ) -> None:
        spec = load_model(name)
        assert total_parameters(spec) == pytest.approx(total, rel=0.015)
        if active is not None:
            assert total_active(spec) == pytest.approx(active, rel=0.015)

    @pytest.mark.parametrize(
        ("name", "active", "digit"), [("qwen3-coder-30b-a3b", 3.3, 0.1), ("qwen3-235b-a22b", 22, 1)]
    )
    def test_qwen_counts_the_embedding_as_active_too(self, name: str, active: float, digit: float) -> None:
        """The published figure has so few digits that it says no more than an interval."""
        spec = load_model(name)
        ours = (total_active(spec) + parameters(embedding_weights(spec))) / 1e9
        assert abs(ours - active) < digit / 2 + 0.015 * active

    def test_the_layers_for_multi_token_prediction_come_on_top(self) -> None:
        assert parameters(mtp_weights(load_model("glm-5.2"))) == 753_329_940_480 - 743_377_019_904
        assert mtp_weights(load_model("kimi-k2")) == []

    @pytest.mark.parametrize("name", ["deepseek-v3.1", "glm-5.2", "qwen3-235b-a22b", "qwen3-coder-30b-a3b"])
    def test_presets_are_the_published_configs(self, name: str) -> None:
        path = SHARED / f"{name}.config.json"
        if not path.exists():
            pytest.skip("the shared folder with published configs is not here")
        assert load_model(str(path)) == replace(load_model(name), published_dtype="")

    def test_kinds_of_layers(self) -> None:
        deepseek, glm, qwen = (load_model(name) for name in ("deepseek-v3.1", "glm-5.2", "qwen3-coder-30b-a3b"))
        assert [(kind.count, type(kind.feed_forward)) for kind in deepseek.kinds] == [(3, Dense), (58, Experts)]
        assert [kind.count for kind in qwen.kinds] == [48]
        assert [(kind.count, kind.indexer) for kind in distinct_kinds(glm)] == [
            (3, "full"),
            (57, "shared"),
            (18, "full"),
        ]
        assert [spec.attention_kind for spec in (deepseek, glm, qwen)] == ["MLA", "MLA + DSA", "GQA"]
        assert [spec.layers for spec in map(load_model, preset_names())] == [36, 40, 64, 48, 94, 61, 61, 78, 61, 32, 80]

    def test_glm_queries_are_wider_than_its_head_dim(self) -> None:
        attention = load_model("glm-5.2").attention
        assert isinstance(attention, Latent)
        assert (attention.qk_dim, attention.v_dim) == (256, 256)

    def test_names_in_any_case(self) -> None:
        assert load_model("GLM-5.2").name == "glm-5.2"

    @pytest.mark.parametrize(
        ("published", "preset"),
        [
            ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
            ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
            ("zai-org/GLM-5.2", "glm-5.2"),
        ],
    )
    def test_published_names(self, published: str, preset: str) -> None:
        assert load_model(published) == load_model(preset)

    def test_a_published_name_that_is_no_preset(self) -> None:
        with pytest.raises(
            InputError, match=r"unknown model 'Qwen/Qwen3-235B'\n  hint: .* the nearest names are .*qwen3-235b-a22b"
        ):
            load_model("Qwen/Qwen3-235B")

    def test_a_folder_here_is_no_published_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("qwen/glm-5.2").mkdir(parents=True)
        with pytest.raises(InputError, match=r"qwen/glm-5\.2/config\.json: cannot be read"):
            load_model("qwen/glm-5.2")

    def test_an_unknown_name_is_told_the_names(self) -> None:
        with pytest.raises(InputError) as error:
            load_model("deepseek-v3-1")
        assert str(error.value) == (
            "unknown model 'deepseek-v3-1'\n  hint: give the path of its config.json, or a preset; the nearest names "
            "are deepseek-v3.1, deepseek-v3.2; all: qwen3-8b, qwen3-14b, qwen3-32b, qwen3-coder-30b-a3b, "
            "qwen3-235b-a22b, deepseek-v3.1, deepseek-v3.2, glm-5.2, kimi-k2, llama-3.1-8b, llama-3.1-70b"
        )


class TestConfig:
    @pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
    def test_yarn_makes_more_of_the_context(self, key: str) -> None:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        assert tiny(max_position_embeddings=40960, **{key: yarn}).context == 131072
        assert tiny(max_position_embeddings=163840, **{key: {**yarn, "factor": 2}}).context == 163840
        assert tiny(max_position_embeddings=40960, **{key: {"type": "yarn", "factor": 2}}).context == 81920
        older = {"rope_type": None, "type": "yarn", "factor": 2}
        assert tiny(max_position_embeddings=40960, **{key: older}).context == 81920
        for other in ({**yarn, "rope_type": "llama3"}, {**yarn, "factor": "4"}, {**yarn, "factor": 1e300}):
            assert tiny(max_position_embeddings=40960, **{key: other}).context == 40960

    @pytest.mark.parametrize("trained", [-4096, 0, 10**400, True, "4096", None, [4096], 1e-9])
    @pytest.mark.parametrize("factor", [-2.0, 0, 1e308, 10**400, None, {}])
    def test_odd_values_of_yarn_make_nothing_of_the_context(self, factor: object, trained: object) -> None:
        yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
        spec = tiny(max_position_embeddings=40960, rope_scaling=yarn)
        assert (spec.context, spec.trained) == (40960, 40960)

    def test_the_kind_of_rotary_scaling_is_short(self) -> None:
        assert len(tiny(rope_scaling={"rope_type": "x" * 1000}).rotary) < 100

    def test_attention(self) -> None:
        assert tiny().attention == GroupedQuery(8, 8, 8)
        assert tiny().attention_kind == "MHA"
        assert tiny(num_key_value_heads=2, head_dim=16).attention == GroupedQuery(8, 2, 16)
        assert tiny(model_type="qwen3").attention == GroupedQuery(8, 8, 8, qk_norm=True)
        assert tiny(model_type="qwen2_moe").attention == GroupedQuery(8, 8, 8, bias=True)
        assert tiny(TINY_MLA, head_dim=99).attention == Latent(8, 24, 16, 12, 4, 10)
        assert tiny(TINY_MLA, q_lora_rank=None).attention == Latent(8, 0, 16, 12, 4, 10)

    @pytest.mark.parametrize("key", ["num_experts", "n_routed_experts", "num_local_experts"])
    def test_experts_by_any_of_their_names(self, key: str) -> None:
        spec = tiny(**{key: 6}, num_experts_per_tok=2, moe_intermediate_size=20)
        assert spec.kinds == (LayerKind(4, Experts(6, 2, 20)),)

    def test_experts_without_a_width_of_their_own(self) -> None:
        assert tiny(num_local_experts=6, num_experts_per_tok=2).kinds[0].feed_forward == Experts(6, 2, 96)

    def test_shared_experts(self) -> None:
        config = {**TINY, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
        assert tiny(config, n_shared_experts=2).kinds[0].feed_forward == Experts(6, 2, 20, shared_width=40)
        gated = tiny(config, shared_expert_intermediate_size=50).kinds[0].feed_forward
        assert gated == Experts(6, 2, 20, shared_width=50, shared_gate=True)
        assert tiny(config, topk_method="noaux_tc").kinds[0].feed_forward == Experts(6, 2, 20, bias=True)

    @pytest.mark.parametrize(
        ("changed", "sparse"),
        [
            ({}, "1111"),
            ({"first_k_dense_replace": 1}, "0111"),
            ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "0010"),
            ({"decoder_sparse_step": 2}, "0101"),
            ({"mlp_only_layers": [0, 3]}, "0110"),
            ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "first_k_dense_replace": 3}, "0101"),
            ({"first_k_dense_replace": 4}, "0000"),
            ({"n_routed_experts": 0}, "0000"),
        ],
    )
    def test_which_layers_have_experts(self, changed: dict[str, Any], sparse: str) -> None:
        kinds = tiny(TINY | TINY_EXPERTS, **changed).kinds
        assert "".join(str(int(isinstance(kind.feed_forward, Experts))) * kind.count for kind in kinds) == sparse

    @pytest.mark.parametrize(
        ("changed", "modes"),
        [
            ({}, "ffff"),
            ({"index_topk_freq": 2}, "ffsf"),
            ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "fffs"),
            ({"index_topk_pattern": "FSSF"}, "fssf"),
            ({"indexer_types": ["full", "full", "shared", "full"], "index_topk_freq": 1}, "ffsf"),
        ],
    )
    def test_which_layers_have_an_indexer(self, changed: dict[str, Any], modes: str) -> None:
        spec = tiny(TINY_DSA, **changed)
        assert spec.indexer == Indexer(2, 8, 6)
        assert "".join(kind.indexer[0] * kind.count for kind in spec.kinds) == modes

    @pytest.mark.parametrize(
        ("changed", "dtype"),
        [
            ({}, "bf16"),
            ({"torch_dtype": "float16"}, "bf16"),
            ({"dtype": "float32"}, "fp32"),
            ({"dtype": "torch.bfloat16", "torch_dtype": "float32"}, "bf16"),
            ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
            ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
            (
                {
                    "quantization_config": {
                        "quant_method": "compressed-tensors",
                        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
                    }
                },
                "w8a8",
            ),
            (
                {
                    "quantization_config": {
                        "quant_method": "compressed-tensors",
                        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                    }
                },
                "compressed-tensors",
            ),
        ],
    )
    def test_weight_dtype(self, changed: dict[str, Any], dtype: str) -> None:
        assert tiny(**changed).weight_dtype == dtype

    def test_the_language_model_of_a_multimodal_one(self) -> None:
        assert parse_config({"text_config": TINY, "vision_config": {}}, "tiny") == tiny()

    def test_a_multimodal_config_says_some_of_its_language_model_beside_it(self) -> None:
        beside = {"quantization_config": {"quant_method": "fp8"}, "tie_word_embeddings": True, "hidden_size": 1}
        spec = parse_config({**beside, "text_config": TINY}, "tiny")
        assert spec == tiny(quantization_config={"quant_method": "fp8"}, tie_word_embeddings=True)
        own = {**TINY, "quantization_config": None, "tie_word_embeddings": False}
        spec = parse_config({**beside, "text_config": own}, "tiny")
        assert (spec.weight_dtype, spec.tied) == ("fp8", False)

    def test_layers_and_experts_that_are_there_are_not_refused(self) -> None:
        none = {"attn_type_list": [1] * 4, "layer_group_size": 1, "num_extra_experts": 0, "attention_kv_lora_dim": None}
        assert tiny(**none) == tiny()
        other = {"num_redundant_experts": 8, "num_local_experts": 6}
        assert tiny(TINY | TINY_EXPERTS, **other) == tiny(TINY | TINY_EXPERTS)

    def test_what_costs_nothing_is_ignored(self) -> None:
        assert tiny(rope_theta=1e4, hidden_act="silu", unheard_of=[1, {}], sliding_window=None) == tiny()
        assert tiny(sliding_window=4096, use_sliding_window=False) == tiny()
        assert tiny(sliding_window=4096, max_position_embeddings=4096).context == 4096

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"hidden_size": None}, 'config.json: the key "hidden_size" is missing'),
            ({"hidden_size": "64"}, 'config.json: hidden_size: "64" is not an integer\n  hint: an integer, without'),
            ({"hidden_size": 64.0}, "config.json: hidden_size: 64.0 is not an integer"),
            ({"hidden_size": True}, "config.json: hidden_size: true is not an integer"),
            ({"vocab_size": -1}, "config.json: vocab_size: -1 is too small\n  hint: at least 1"),
            ({"num_hidden_layers": 0}, "config.json: num_hidden_layers: 0 is too small"),
            ({"num_hidden_layers": 10**9}, "config.json: num_hidden_layers: 1000000000 is too large"),
            ({"num_nextn_predict_layers": 10**6}, "config.json: num_nextn_predict_layers: 1000000 is too large"),
            ({"intermediate_size": None}, 'config.json: the key "intermediate_size" is missing\n  hint: a dense layer'),
            ({"num_key_value_heads": 3}, "config.json: num_key_value_heads: 8 heads cannot share 3 evenly"),
            ({"num_attention_heads": 7}, "config.json: num_attention_heads: a hidden size of 64 cannot be shared by 7"),
            ({"kv_lora_rank": 16}, 'config.json: the key "qk_nope_head_dim" is missing\n  hint: latent attention'),
            ({"index_topk": 4}, "config.json: index_topk: an indexer without latent attention is not known"),
            (
                {**TINY_DSA, "q_lora_rank": None},
                "config.json: index_topk: an indexer reads the latent of the queries\n  hint: the key q_lora_rank",
            ),
            ({"num_experts": 4}, 'config.json: the key "num_experts_per_tok" is missing'),
            ({"num_experts": 4, "num_experts_per_tok": 5}, "config.json: num_experts_per_tok: 5 of 4 experts"),
            (
                {"num_experts": 4, "num_experts_per_tok": 1, "mlp_layer_types": ["dense"]},
                "mlp_layer_types: 1 entries for 4",
            ),
            ({"mlp_layer_types": ["odd"] * 4}, 'config.json: mlp_layer_types[0]: "odd" is not allowed'),
            ({"sliding_window": 4096}, "config.json: sliding_window: a sliding window is not counted"),
            (
                {"layer_types": ["full_attention", "linear_attention"]},
                'layer_types[1]: "linear_attention" is not counted',
            ),
            ({"compress_ratios": [0, 4]}, "config.json: compress_ratios: the model has compressed attention"),
            ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config: the model has linear attention"),
            ({"attn_type_list": [0, 0, 0, 1]}, "attn_type_list: the model has linear attention, which is not counted"),
            ({"layer_group_size": 5}, "layer_group_size: the model has linear attention, which is not counted"),
            ({"block_types": ["recurrent", "attention"]}, "block_types: the model has recurrent layers"),
            ({"moe_num_experts": 64}, "moe_num_experts: experts by a name that is not read\n  hint: n_routed_experts"),
            ({"num_routed_experts": 256}, "num_routed_experts: experts by a name that is not read"),
            ({"moe_num_experts": [64, 64]}, "moe_num_experts: experts by a name that is not read"),
            ({"attention_kv_lora_dim": 512}, "attention_kv_lora_dim: a latent by a name that is not read"),
            (
                {**TINY_DSA, "index_topk_pattern": "SFFF"},
                "index_topk_pattern: the first layer has no earlier selection",
            ),
            ({**TINY_DSA, "index_topk_pattern": "FF"}, "config.json: index_topk_pattern: 2 entries for 4 layers"),
            ({**TINY_DSA, "index_n_heads": None}, 'config.json: the key "index_n_heads" is missing'),
        ],
    )
    def test_what_is_wrong_is_named(self, changed: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            parse_config({**TINY, **changed}, "tiny", "config.json")
        assert message in str(error.value)

    def test_places_in_a_multimodal_config(self) -> None:
        with pytest.raises(InputError, match=r"^c.json: text_config\.hidden_size: 0 is too small"):
            parse_config({"text_config": {**TINY, "hidden_size": 0}}, "tiny", "c.json")
        with pytest.raises(InputError, match=r"^c.json: text_config: a list is not a model config"):
            parse_config({"text_config": []}, "tiny", "c.json")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"hidden_size": NaN}', "line 1, column 17: NaN is not a finite number"),
            ('{"hidden_size": 64', "the JSON text ends too early"),
            ("not json", "not JSON"),
            ("[]", "a list is not a model config"),
            ('{"vocab_size": 1, "vocab_size": 2}', 'the key "vocab_size" appears twice'),
        ],
    )
    def test_files_that_are_no_config(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "odd.json"
        path.write_text(text)
        with pytest.raises(InputError) as error:
            load_model(str(path))
        assert message in str(error.value)
        assert error.value.file == str(path)

    def test_a_file_is_called_after_its_folder_or_itself(self, tmp_path: Path) -> None:
        folder = tmp_path / "My-Model"
        folder.mkdir()
        for path in (folder / "config.json", tmp_path / "other.config.json"):
            path.write_text(json.dumps(TINY))
        assert load_model(str(folder)) == replace(tiny(), name="My-Model")
        assert load_model(str(folder / "config.json")).name == "My-Model"
        assert load_model(str(tmp_path / "other.config.json")).name == "other"

    def test_a_missing_file_is_not_taken_for_a_name(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read"):
            load_model(str(tmp_path / "nothing.json"))


SPECS = [tiny(), tiny(num_key_value_heads=2), tiny(TINY_MLA | TINY_EXPERTS), tiny(TINY_DSA | TINY_EXPERTS)]


class TestFlops:
    def test_by_hand(self) -> None:
        llama = load_model("llama-3.1-70b")
        [kind] = llama.kinds
        matrices = 8192 * (8192 + 2 * 1024 + 8192) + 3 * 8192 * 28672
        assert layer_flops(llama, kind, 1, 0) == 2 * matrices + 4 * 64 * 128
        assert layer_flops(llama, kind, 10, 100) == 20 * matrices + 4 * 64 * 128 * (10 * 100 + 55)

    def test_latent_attention_rebuilds_its_prefix(self) -> None:
        spec = load_model("deepseek-v3.1")
        kind = spec.kinds[1]
        more = layer_flops(spec, kind, 1, 1000) - layer_flops(spec, kind, 1, 0)
        assert more == 1000 * (2 * 512 * 128 * (128 + 128) + 2 * 128 * (192 + 128))

    def test_sparse_attention_stops_growing_but_its_indexer_does_not(self) -> None:
        spec = load_model("deepseek-v3.2")
        kind = spec.kinds[1]
        more = layer_flops(spec, kind, 1, 100_000) - layer_flops(spec, kind, 1, 10_000)
        assert more == 90_000 * 2 * 64 * 128

    def test_a_shared_selection_costs_no_indexer(self) -> None:
        spec = load_model("glm-5.2")
        full, shared = (next(kind for kind in spec.kinds[1:] if kind.indexer == mode) for mode in ("full", "shared"))
        saved = layer_flops(spec, full, 7, 50) - layer_flops(spec, shared, 7, 50)
        assert saved == 2 * 32 * 128 * (7 * 50 + 28) + 2 * 7 * (2048 * 4096 + 6144 * 128 + 6144 * 32)

    def test_a_token_takes_two_operations_for_each_active_parameter(self) -> None:
        spec = load_model("deepseek-v3.1")
        attention = sum(kind.count for kind in spec.kinds) * 2 * 128 * 320
        head = spec.vocabulary * spec.hidden
        assert model_flops(spec, 1) - attention == 2 * (total_active(spec) - head)

    @given(st.sampled_from(SPECS), st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
    def test_two_chunks_cost_one_and_a_rebuilt_prefix(self, spec: ModelSpec, n: int, m: int, p: int) -> None:
        for kind in spec.kinds:
            apart = layer_flops(spec, kind, n, p) + layer_flops(spec, kind, m, p + n)
            rebuilt = isinstance(spec.attention, Latent) and kind.indexer == "none"
            extra = (p + n) * 2 * 16 * 8 * (12 + 10) if rebuilt else 0
            assert apart == layer_flops(spec, kind, n + m, p) + extra


class TestFlopCounter:
    """The same layers written in torch and run, counted by torch."""

    @pytest.mark.parametrize("spec", SPECS, ids=["MHA", "GQA", "MLA + experts", "DSA + experts"])
    @pytest.mark.parametrize(("n", "p"), [(1, 0), (5, 0), (3, 11), (9, 4)])
    def test_layer(self, spec: ModelSpec, n: int, p: int) -> None:
        torch = pytest.importorskip("torch")
        from torch.utils.flop_counter import FlopCounterMode

        for kind in spec.kinds:
            counter = FlopCounterMode(display=False)
            with counter, torch.device("meta"):
                run_layer(torch, spec, kind, n, p)
            assert counter.get_total_flops() == layer_flops(spec, kind, n, p)


def run_layer(torch: Any, spec: ModelSpec, kind: LayerKind, n: int, p: int) -> None:
    """The matrix products of a layer, as an inference engine makes them: causal, query by query."""

    def linear(x: Any, width: int) -> Any:
        return x @ torch.zeros(x.shape[-1], width)

    def attend(queries: Any, keys: Any, values: Any, most: int) -> Any:
        """[n, heads, ..] queries on [p + n, heads, ..] keys and values; each sees its past, at most ``most``."""
        rows = []
        for row in range(n):
            seen = min(p + row + 1, most)
            scores = queries[row, :, None] @ keys[:seen].permute(1, 2, 0)
            rows.append((scores @ values[:seen].transpose(0, 1))[:, 0])
        return torch.stack(rows)

    def gated(x: Any, width: int) -> Any:
        return linear(linear(x, width) * linear(x, width), x.shape[-1])

    x = torch.zeros(n, spec.hidden)
    a = spec.attention
    if isinstance(a, GroupedQuery):
        q = linear(x, a.heads * a.head_dim).view(n, a.heads, a.head_dim)
        k, v = (linear(x, a.kv_heads * a.head_dim) for _ in range(2))
        assert k.shape == v.shape == (n, a.kv_heads * a.head_dim)
        cache = torch.zeros(p + n, a.heads, a.head_dim)  # repeated for the heads that share it
        out = attend(q, cache, cache, p + n)
    else:
        latent_q = linear(x, a.q_rank)
        q = linear(latent_q, a.heads * a.qk_dim).view(n, a.heads, a.qk_dim)
        linear(x, a.cached)
        cache = torch.zeros(p + n, a.cached)
        if kind.indexer == "none":
            linear(cache[:, : a.kv_rank], a.heads * (a.nope_dim + a.v_dim))  # prefix and chunk, rebuilt
            keys = torch.zeros(p + n, a.heads, a.qk_dim)
            out = attend(q, keys, torch.zeros(p + n, a.heads, a.v_dim), p + n)
        else:
            assert spec.indexer is not None
            heads, width = spec.indexer.heads, spec.indexer.head_dim
            index_q = linear(latent_q, heads * width).view(n, heads, width)
            linear(x, width)
            linear(x, heads)
            for row in range(n):
                index_q[row] @ torch.zeros(width, p + row + 1)
            absorbed = q[:, :, None, : a.nope_dim] @ torch.zeros(a.heads, a.nope_dim, a.kv_rank)
            wide = torch.cat([absorbed[:, :, 0], q[:, :, a.nope_dim :]], dim=-1)
            shared = cache[:, None].expand(-1, a.heads, -1)
            seen = attend(wide, shared, shared[..., : a.kv_rank], spec.indexer.topk)
            out = (seen[:, :, None] @ torch.zeros(a.heads, a.kv_rank, a.v_dim))[:, :, 0]
    x = linear(out.reshape(n, -1), spec.hidden)
    match kind.feed_forward:
        case Dense(width):
            gated(x, width)
        case Experts() as e:
            linear(x, e.count)
            for _ in range(e.per_token):
                gated(x, e.width)
            gated(x, e.shared_width)


class TestSharding:
    @pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (8, 1), (8, 2), (8, 8), (2, 8), (1, 64)])
    def test_devices_hold_the_model_and_copies_of_little(self, tp: int, ep: int) -> None:
        spec, sharding = load_model("deepseek-v3.1"), Sharding(tp, ep)
        sharding.check(spec)
        weights = layer_weights(spec, spec.kinds[1])
        routed = sum(weight.elements for weight in weights if weight.split == "experts")
        one = weight_bytes(spec, weights, sharding, "bf16") / 2
        assert one >= (parameters(weights) - routed) / tp + routed / max(tp, ep)
        assert one < (parameters(weights) - routed) / tp + routed / max(tp, ep) + 20e6

    def test_eight_bits_halve_what_is_quantised(self) -> None:
        spec = load_model("deepseek-v3.1")
        weights = layer_weights(spec, spec.kinds[1])
        plain = sum(weight.elements for weight in weights if not weight.quantized)
        assert weight_bytes(spec, weights, Sharding(), "bf16") == 2 * parameters(weights)
        for dtype in ("fp8", "w8a8"):
            assert weight_bytes(spec, weights, Sharding(), dtype) == parameters(weights) + plain
        assert weight_bytes(spec, weights, Sharding(), "fp32") == 4 * parameters(weights)
        assert plain == 7168 * 256 + 256 + 2 * 7168 + 1536 + 512

    def test_what_is_not_even_is_rounded_up(self) -> None:
        spec = tiny(vocab_size=101, num_attention_heads=8, hidden_size=8)
        assert weight_bytes(spec, embedding_weights(spec), Sharding(tp=8), "bf16") == 2 * 101
        assert (
            weight_bytes(replace(spec, vocabulary=103, hidden=1), embedding_weights(spec), Sharding(8), "bf16") == 202
        )

    def test_cache(self) -> None:
        qwen, deepseek = load_model("qwen3-coder-30b-a3b"), load_model("deepseek-v3.1")
        sizes = {tp: kv_bytes(qwen, qwen.kinds[0], Sharding(tp)) for tp in (1, 2, 4, 8)}
        assert sizes == {1: 2048, 2: 1024, 4: 512, 8: 512}  # four KV heads: beyond, they are copied
        assert {kv_bytes(deepseek, deepseek.kinds[1], Sharding(tp)) for tp in (1, 8)} == {1152}
        glm = load_model("glm-5.2")
        assert [kv_bytes(glm, kind, Sharding(8)) for kind in glm.kinds[:2]] == [1152 + 256, 1152]

    @pytest.mark.parametrize(
        ("name", "tp", "ep", "message"),
        [
            ("llama-3.1-70b", 3, 1, "--tp: 64 heads cannot be shared by 3 devices"),
            ("llama-3.1-70b", 0, 1, "--tp: 0 is too small"),
            ("llama-3.1-70b", 1, -1, "--ep: -1 is too small"),
            ("llama-3.1-70b", 8, 8, "--ep: llama-3.1-70b has no experts to share"),
            ("kimi-k2", 8, 5, "--ep: 384 experts cannot be shared by 5 devices"),
            ("kimi-k2", 8, 12, "--ep: expert parallelism over 12 devices does not fit tensor parallelism over 8"),
        ],
    )
    def test_what_cannot_be_shared_out(self, name: str, tp: int, ep: int, message: str) -> None:
        with pytest.raises(InputError) as error:
            Sharding(tp, ep).check(load_model(name))
        assert str(error.value).startswith(message)

    def test_kv_heads_that_do_not_divide(self) -> None:
        spec = tiny(num_attention_heads=24, num_key_value_heads=6, head_dim=4)
        Sharding(12).check(spec)
        with pytest.raises(InputError, match="6 KV heads cannot be shared by 8 devices"):
            Sharding(8).check(spec)

    def test_an_unknown_weight_dtype(self) -> None:
        with pytest.raises(InputError) as error:
            weight_bytes(tiny(), embedding_weights(tiny()), Sharding(), "awq")
        assert str(error.value) == (
            "--weight-dtype: the weight dtype 'awq' is not known\n  hint: one of fp32, bf16, fp8, w8a8"
        )


class TestPayload:
    def test_hidden_and_residual(self) -> None:
        assert payload(load_model("deepseek-v3.1")) == [
            {"name": "hidden", "shape": ["tokens", 7168], "dtype": "bfloat16", "layout": "replicated"},
            {"name": "residual", "shape": ["tokens", 7168], "dtype": "bfloat16", "layout": "replicated"},
        ]

    def test_tensor_parallel_ranks_send_their_share(self) -> None:
        tensors = payload(load_model("deepseek-v3.1"), tp=8)
        assert {tensor["layout"] for tensor in tensors} == {"sharded"}
        assert payload_bytes(tensors, 8) == 2 * 2 * 7168 / 8

    def test_a_shared_selection_comes_along(self) -> None:
        glm = load_model("glm-5.2")
        wide = {cut for cut in range(glm.layers) if len(payload(glm, cut=cut)) == 3}
        assert wide == {cut for cut in range(3, 78) if cut % 4 != 2}
        assert payload_bytes(widest_payload(glm)) == 2 * 2 * 6144 + 4 * 2048
        assert widest_payload(glm, tp=8)[-1] == {
            "name": "topk_indices",
            "shape": ["tokens", 2048],
            "dtype": "int32",
            "layout": "sharded",
        }

    def test_an_unknown_dtype(self) -> None:
        tensor = {"name": "x", "shape": ["tokens", 3], "dtype": "complex", "layout": "replicated"}
        with pytest.raises(InputError, match="the dtype 'complex' has no known size"):
            payload_bytes([tensor])


class TestCommand:
    def test_text(self) -> None:
        result = CliRunner().invoke(command, ["glm-5.2", "--tp", "8"])
        assert result.exit_code == 0
        golden = Path(__file__).parent / "golden" / "model_glm.txt"
        assert result.output == golden.read_text()

    def test_a_config_from_a_pipe_is_called_stdin(self) -> None:
        result = CliRunner().invoke(command, ["-"], input=json.dumps(TINY))
        assert result.exit_code == 0, result.output
        assert result.output.startswith("model       stdin: 4 layers, hidden 64\n")

    def test_json(self) -> None:
        result = CliRunner().invoke(command, ["deepseek-v3.1", "--json", "--tp", "8", "--weight-dtype", "w8a8"])
        facts = json.loads(result.output)
        assert facts == describe(load_model("deepseek-v3.1"), Sharding(8), "w8a8")
        assert facts["parameters"] == 671_026_419_200
        assert [kind["flops_per_pair"] for kind in facts["kinds"]] == [81920, 81920]

    def test_active_parameters_are_those_of_layers_and_head(self) -> None:
        for name in preset_names():
            spec = load_model(name)
            layers = sum(kind.count * active_parameters(layer_weights(spec, kind)) for kind in spec.kinds)
            assert total_active(spec) - layers == spec.vocabulary * spec.hidden

    def test_a_tied_head_is_counted_once(self) -> None:
        both = total_parameters(tiny())
        assert total_parameters(tiny(tie_word_embeddings=True)) == both - 100 * 64

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["tiny"], "unknown model 'tiny'"),
            (["kimi-k2", "--device", "910d"], "--device: unknown device '910d'\n  hint: did you mean 910c?"),
            (["kimi-k2", "-o", "cost.json"], "-o: costs need a device"),
            (["kimi-k2", "--efficiency", "link=0.1"], "--efficiency: costs need a device"),
            (
                ["kimi-k2", "--device", "h100", "--efficiency", "speed=0.1"],
                "--efficiency: 'speed=0.1' is not understood",
            ),
            (
                ["kimi-k2", "--device", "h100", "--efficiency", "link=fast"],
                "--efficiency: 'link=fast' is not understood",
            ),
            (["kimi-k2", "--device", "h100", "--efficiency", "link=2"], "--efficiency link: an efficiency of 2.0"),
            (["kimi-k2", "--device", "910c", "--weight-dtype", "fp8"], "--weight-dtype: 910c does not multiply in fp8"),
        ],
    )
    def test_bad_usage(self, arguments: list[str], message: str) -> None:
        with pytest.raises(InputError) as error:
            CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert str(error.value).startswith(message)
