"""Tiny models of every architecture as ``config.json`` documents, and their weights as files, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from runtime.reference.config_json import parse_config
from runtime.reference.decoder import Decoder
from runtime.reference.parallel import ALONE
from runtime.reference.weights import Loader, SeededWeights

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


@dataclass(frozen=True)
class _Recorder:
    """Seeded weights that remember what was asked of them: all the tensors of a model, by name."""

    source: SeededWeights
    read_so_far: dict[str, Tensor] = field(default_factory=dict)

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        self.read_so_far[name] = self.source.read(name, shape, share)
        return self.read_so_far[name]


def tensors(document: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """The weights of a model that :class:`SeededWeights` makes, by Hugging Face's names, in float32."""
    config = parse_config(document)
    recorder = _Recorder(SeededWeights(seed))
    loader = Loader(recorder, ALONE, torch.float32, torch.device("cpu"))
    Decoder.load(config, range(config.layers), loader, embedding=True, head=True)
    return recorder.read_so_far


def write_checkpoint(
    folder: Path, document: dict[str, Any], seed: int = 0, *, shards: int = 1, dtype: torch.dtype = torch.float32
) -> Path:
    """A model folder in Hugging Face layout: ``config.json`` and the seeded weights in ``shards`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    named = {
        name: tensor if name.endswith("bias") else tensor.to(dtype) for name, tensor in tensors(document, seed).items()
    }
    if shards == 1:
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = sorted(named)[shard::shards]
        save_file({name: named[name] for name in mine}, folder / file, metadata={"format": "pt"})
        files.update(dict.fromkeys(mine, file))
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tokenizer(folder: Path, size: int) -> None:
    """Add a tokenizer of ``size`` tokens, of which the first 256 are the bytes and the last one ends a text."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the other bytes have no character of their own
    others = [byte for byte in range(256) if byte not in kept]
    characters = {byte: chr(byte) for byte in kept} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    vocabulary = {characters.get(token, f"<{token}>"): token for token in range(size)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": size - 1, "content": f"<{size - 1}>", "special": True, **flags}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    made = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": level, "decoder": level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end["content"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
