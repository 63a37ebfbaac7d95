"""Tiny models of every architecture, as ``config.json`` documents."""

from __future__ import annotations

from typing import Any

_COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
_EXPERTS = {"moe_intermediate_size": 12, "num_experts_per_tok": 3}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
_YARN = {
    "type": "yarn",
    "factor": 8,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_COMMON},
    "llama-tied": {"model_type": "llama", **_COMMON, "tie_word_embeddings": True, "rope_scaling": _LLAMA3},
    "llama-linear": {"model_type": "llama", **_COMMON, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-yarn": {
        "model_type": "llama",
        **_COMMON,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.5,
            "truncate": False,
        },
    },
    "qwen3": {"model_type": "qwen3", **_COMMON, "head_dim": 16, "tie_word_embeddings": True},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        **_COMMON,
        **_EXPERTS,
        "head_dim": 16,
        "num_experts": 8,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "qwen3-moe-plain": {
        "model_type": "qwen3_moe",
        **_COMMON,
        **_EXPERTS,
        "head_dim": 16,
        "num_experts": 5,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "rope_scaling": {**_YARN, "type": None, "rope_type": "yarn", "mscale": None, "mscale_all_dim": None},
    },
    "deepseek": {"model_type": "deepseek_v3", **_COMMON, **_EXPERTS, **_LATENT, "rope_scaling": _YARN},
    "deepseek-plain": {
        "model_type": "deepseek_v3",
        **_COMMON,
        **_EXPERTS,
        **_LATENT,
        "q_lora_rank": None,
        "rope_interleave": False,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "v_head_dim": 24,
    },
}
