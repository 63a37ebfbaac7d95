"""Reads a Hugging Face ``config.json`` of a decoder-only language model by its fields.

The class that a config names is not asked for, so that new models of known parts need no new code. What is
*known* to be different (a sliding window, linear attention, state-space layers, ...) is refused: it would be
counted wrongly. Feed-forward networks are taken to be gated (three matrices), as in all of these models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.errors import InputError
from vppc.ir.instruction import LARGEST
from vppc.ir.schema import Layers
from vppc.json_text import shown
from vppc.models.spec import (
    Attention,
    Dense,
    Experts,
    FeedForward,
    GroupedQuery,
    Indexer,
    IndexerMode,
    Latent,
    LayerKind,
    ModelSpec,
)
from vppc.validation import OPEN, Count, Index, validate


@with_config(OPEN)
class Config(TypedDict):
    """The fields that matter; every other is ignored. Older and newer names of one thing stand side by side."""

    num_hidden_layers: Layers
    hidden_size: Count
    vocab_size: Count
    max_position_embeddings: NotRequired[Count]
    tie_word_embeddings: NotRequired[bool]
    torch_dtype: NotRequired[str]
    dtype: NotRequired[str]
    quantization_config: NotRequired[dict[str, Any]]
    rope_scaling: NotRequired[dict[str, Any]]
    rope_parameters: NotRequired[dict[str, Any]]
    model_type: NotRequired[str]
    num_nextn_predict_layers: NotRequired[Annotated[int, Field(ge=0, le=1000)]]

    num_attention_heads: Count
    num_key_value_heads: NotRequired[Count]
    head_dim: NotRequired[Count]
    attention_bias: NotRequired[bool]
    qkv_bias: NotRequired[bool]
    use_qk_norm: NotRequired[bool]
    layer_types: NotRequired[list[str]]
    sliding_window: NotRequired[Count]
    use_sliding_window: NotRequired[bool]

    q_lora_rank: NotRequired[Count]
    kv_lora_rank: NotRequired[Count]
    qk_nope_head_dim: NotRequired[Count]
    qk_rope_head_dim: NotRequired[Count]
    v_head_dim: NotRequired[Count]

    index_topk: NotRequired[Count]
    index_n_heads: NotRequired[Count]
    index_head_dim: NotRequired[Count]
    indexer_types: NotRequired[list[Literal["full", "shared"]]]
    index_topk_freq: NotRequired[Count]
    index_skip_topk_offset: NotRequired[Index]
    index_topk_pattern: NotRequired[str | list[str]]

    intermediate_size: NotRequired[Count]
    moe_intermediate_size: NotRequired[Count]
    num_experts: NotRequired[Index]
    n_routed_experts: NotRequired[Index]
    num_local_experts: NotRequired[Index]
    num_experts_per_tok: NotRequired[Count]
    n_shared_experts: NotRequired[Index]
    num_shared_experts: NotRequired[Index]
    shared_expert_intermediate_size: NotRequired[Index]
    topk_method: NotRequired[str]
    first_k_dense_replace: NotRequired[Index]
    moe_layer_freq: NotRequired[Count]
    decoder_sparse_step: NotRequired[Count]
    mlp_only_layers: NotRequired[list[Index]]
    mlp_layer_types: NotRequired[list[Literal["dense", "sparse"]]]


_CONFIG: TypeAdapter[Config] = TypeAdapter(Config)

_ATTENDS_TO_ALL = ("full_attention", "deepseek_sparse_attention")

_NOT_COUNTED = {
    "is_encoder_decoder": "an encoder",
    "linear_num_value_heads": "linear attention",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "compress_ratios": "compressed attention",
    "interleave_moe_layer_step": "chunked attention between expert layers",
    "linear_attn_config": "linear attention",
    "block_types": "recurrent layers",
}
"""Fields that only models with parts have which are not counted here, and what those parts are."""

_COUNT_OF_EXPERTS = re.compile(r"(^|_)n(um)?_(.*_)?experts$")
"""Of the names of fields, those that count experts."""

_OF_THE_WHOLE = ("quantization_config", "tie_word_embeddings")
"""What a multimodal config says beside its language model, and of it."""

_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "half": "bf16", "float32": "fp32", "float": "fp32"}
_METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "w8a8": "w8a8", "w8a8_int8": "w8a8"}
"""Values of ``quant_method`` whose weights have 8 bits."""


def parse_config(config: Any, name: str, file: str = "") -> ModelSpec:
    """The model that a parsed ``config.json`` describes; of a multimodal one, its language model.

    Raises InputError that names the field and what is allowed there.
    """
    prefix = ""
    beside: dict[str, Any] = {}
    if isinstance(config, dict) and "num_hidden_layers" not in config and "text_config" in config:
        beside = {key: config[key] for key in _OF_THE_WHOLE if config.get(key) is not None}
        config, prefix = config["text_config"], "text_config."
    if not isinstance(config, dict):
        raise InputError(
            f"{shown(config)} is not a model config", file=file, place=prefix[:-1], remedy="an object in { }"
        )
    stated = beside | {key: value for key, value in config.items() if value is not None}
    reader = _Reader(validate(_CONFIG, stated, file=file, prefix=prefix), file, prefix)
    return reader.spec(name)


class _Reader:
    """The fields of one config, and where it stands, for messages."""

    def __init__(self, config: Config, file: str, prefix: str) -> None:
        self._config, self._file, self._prefix = config, file, prefix
        self._by_key: dict[str, Any] = {**config}
        self._layers = config["num_hidden_layers"]

    def spec(self, name: str) -> ModelSpec:
        config = self._config
        self._refuse_what_is_not_counted()
        attention, indexer = self._attention(), self._indexer()
        rotary, trained, context = _rotary(config)
        return ModelSpec(
            name=name,
            hidden=config["hidden_size"],
            vocabulary=config["vocab_size"],
            attention=attention,
            kinds=_run_lengths(self._feed_forwards(), self._indexer_modes()),
            indexer=indexer,
            tied=config.get("tie_word_embeddings", False),
            mtp=config.get("num_nextn_predict_layers", 0),
            context=context,
            rotary=rotary,
            trained=trained,
            weight_dtype=_weight_dtype(config),
        )

    def _attention(self) -> Attention:
        config = self._config
        heads = config["num_attention_heads"]
        if "kv_lora_rank" in config:
            return Latent(
                heads=heads,
                q_rank=config.get("q_lora_rank", 0),
                kv_rank=config["kv_lora_rank"],
                nope_dim=self._needed("qk_nope_head_dim", "latent attention (kv_lora_rank)"),
                rope_dim=self._needed("qk_rope_head_dim", "latent attention (kv_lora_rank)"),
                v_dim=self._needed("v_head_dim", "latent attention (kv_lora_rank)"),
            )
        kv_heads = config.get("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self._error(
                "num_key_value_heads", f"{heads} heads cannot share {kv_heads} evenly", f"a divisor of {heads}"
            )
        if "head_dim" not in config and config["hidden_size"] % heads:
            raise self._error(
                "num_attention_heads",
                f"a hidden size of {config['hidden_size']} cannot be shared by {heads} heads",
                "a divisor of hidden_size, or the key head_dim",
            )
        family = config.get("model_type", "")
        return GroupedQuery(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.get("head_dim", config["hidden_size"] // heads),
            bias=config.get("attention_bias", config.get("qkv_bias", family.startswith("qwen2"))),
            qk_norm=config.get("use_qk_norm", family.startswith("qwen3")),
        )

    def _indexer(self) -> Indexer | None:
        config = self._config
        if "index_topk" not in config:
            return None
        if "kv_lora_rank" not in config:
            raise self._error("index_topk", "an indexer without latent attention is not known", "the key kv_lora_rank")
        if "q_lora_rank" not in config:
            raise self._error("index_topk", "an indexer reads the latent of the queries", "the key q_lora_rank")
        return Indexer(
            heads=self._needed("index_n_heads", "sparse attention (index_topk)"),
            head_dim=self._needed("index_head_dim", "sparse attention (index_topk)"),
            topk=config["index_topk"],
        )

    def _indexer_modes(self) -> list[IndexerMode]:
        config, layers = self._config, range(self._layers)
        if "index_topk" not in config:
            return ["none" for _ in layers]
        if "indexer_types" in config:
            place, modes = "indexer_types", list[IndexerMode](self._a_layer("indexer_types", config["indexer_types"]))
        elif "index_topk_pattern" in config:
            place = "index_topk_pattern"
            pattern = self._a_layer(place, config["index_topk_pattern"])
            modes = ["shared" if letter == "S" else "full" for letter in pattern]
        else:  # vLLM's rule, deepseek_v2.py; without these fields every layer is full
            place = "index_skip_topk_offset"
            skipped, every = config.get("index_skip_topk_offset", 2), config.get("index_topk_freq", 1)
            modes = ["shared" if max(layer - skipped + 1, 0) % every else "full" for layer in layers]
        if modes[0] != "full":
            raise self._error(place, "the first layer has no earlier selection to share", "a full first layer")
        return modes

    def _feed_forwards(self) -> list[FeedForward]:
        sparse = self._sparse_layers()
        experts = self._experts() if any(sparse) else None
        dense = None if all(sparse) else Dense(self._needed("intermediate_size", "a dense layer"))
        return [found for is_sparse in sparse if (found := experts if is_sparse else dense) is not None]

    def _sparse_layers(self) -> list[bool]:
        """For every layer, whether its feed-forward network is a mixture of experts."""
        config = self._config
        if not self._expert_count():
            return [False] * self._layers
        if "mlp_layer_types" in config:
            return [kind == "sparse" for kind in self._a_layer("mlp_layer_types", config["mlp_layer_types"])]
        first, every = config.get("first_k_dense_replace", 0), config.get("moe_layer_freq", 1)
        step, only = config.get("decoder_sparse_step", 1), set(config.get("mlp_only_layers", ()))
        return [
            layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in only
            for layer in range(self._layers)
        ]

    def _expert_count(self) -> int:
        config = self._config
        return config.get("n_routed_experts", config.get("num_experts", config.get("num_local_experts", 0)))

    def _experts(self) -> Experts:
        config = self._config
        count, per_token = self._expert_count(), self._needed("num_experts_per_tok", "a mixture of experts")
        if per_token > count:
            raise self._error("num_experts_per_tok", f"{per_token} of {count} experts", f"at most {count}")
        width = config.get("moe_intermediate_size") or self._needed("intermediate_size", "a mixture of experts")
        shared = config.get("n_shared_experts", config.get("num_shared_experts", 0)) * width
        gated = config.get("shared_expert_intermediate_size", 0)
        return Experts(
            count=count,
            per_token=per_token,
            width=width,
            shared_width=shared or gated,
            shared_gate=gated > 0,
            bias=config.get("topk_method") == "noaux_tc",
        )

    def _refuse_what_is_not_counted(self) -> None:
        config = self._config
        for key, part in _NOT_COUNTED.items():
            if self._by_key.get(key):
                raise self._error(key, f"the model has {part}, which is not counted", "a decoder with full attention")
        self._refuse_linear_layers()
        self._refuse_other_names()
        for layer, kind in enumerate(config.get("layer_types", ())):
            if kind not in _ATTENDS_TO_ALL:
                raise self._error(
                    f"layer_types[{layer}]", f"{shown(kind)} is not counted", " or ".join(_ATTENDS_TO_ALL)
                )
        window, context = config.get("sliding_window", 0), config.get("max_position_embeddings", 0)
        if window and config.get("use_sliding_window", True) and not 0 < context <= window:
            raise self._error("sliding_window", "a sliding window is not counted", "null, or use_sliding_window false")

    def _refuse_linear_layers(self) -> None:
        """Refuse what two families say of their layers: 0 for a linear one, or how many go with one that is not."""
        remedy = "a decoder with full attention"
        kinds = self._by_key.get("attn_type_list")
        if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
            raise self._error("attn_type_list", "the model has linear attention, which is not counted", remedy)
        if self._by_key.get("layer_group_size", 1) != 1:
            raise self._error("layer_group_size", "the model has linear attention, which is not counted", remedy)

    def _refuse_other_names(self) -> None:
        """Refuse experts and latents by other names than those that are read: they would be left out."""
        experts, latent = self._expert_count() > 0, "kv_lora_rank" in self._config
        for key, value in self._by_key.items():
            if key in Config.__annotations__ or not (type(value) is list or (type(value) is int and value > 1)):
                continue
            if not experts and _COUNT_OF_EXPERTS.search(key):
                raise self._error(
                    key, "experts by a name that is not read", "n_routed_experts, as in DeepSeek's configs"
                )
            if not latent and "kv_lora" in key:
                raise self._error(key, "a latent by a name that is not read", "kv_lora_rank, as in DeepSeek's configs")

    def _a_layer(self, key: str, values: Sequence[Any]) -> Sequence[Any]:
        if len(values) != self._layers:
            raise self._error(key, f"{len(values)} entries for {self._layers} layers", f"{self._layers} entries")
        return values

    def _needed(self, key: str, reason: str) -> int:
        if key not in self._by_key:
            raise self._error("", f'the key "{key}" is missing', f"{reason} needs it")
        value: int = self._by_key[key]
        return value

    def _error(self, key: str, problem: str, remedy: str) -> InputError:
        return InputError(problem, file=self._file, place=(self._prefix + key).rstrip("."), remedy=remedy)


def _run_lengths(feed_forwards: list[FeedForward], modes: list[IndexerMode]) -> tuple[LayerKind, ...]:
    groups = groupby(zip(feed_forwards, modes, strict=True))
    return tuple(LayerKind(len(list(same)), feed_forward, mode) for (feed_forward, mode), same in groups)


def _rotary(config: Config) -> tuple[str, int, int]:
    """The kind of rotary scaling, "" for none; the length that was trained for; and the longest prompt, of which YaRN
    makes more: ``factor`` times the trained length."""
    published = config.get("max_position_embeddings", 0)
    scaling = config.get("rope_parameters", config.get("rope_scaling", {}))
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "yarn":
        return "" if kind == "default" else shown(kind), published, published
    factor, trained = scaling.get("factor"), scaling.get("original_max_position_embeddings", published)
    if not isinstance(factor, int | float) or type(trained) is not int or not 0 < trained < LARGEST:
        return kind, published, published
    if not 1 <= trained * min(factor, LARGEST) < LARGEST:
        return kind, published, published
    return kind, trained, max(published, int(factor * trained))


def _weight_dtype(config: Config) -> str:
    """The weights' dtype as ``--weight-dtype`` calls it, or, of one that is not known, as the config does."""
    quantized = config.get("quantization_config")
    if quantized is None:
        stored = config.get("dtype", config.get("torch_dtype", "bfloat16")).removeprefix("torch.")
        return _DTYPES.get(stored, stored)
    method = str(quantized.get("quant_method", "quantized"))
    if method == "compressed-tensors":
        return _compressed_dtype(quantized.get("config_groups")) or method
    return _METHODS.get(method, method)


def _compressed_dtype(groups: Any) -> str:
    """What the layers of a compressed-tensors checkpoint are kept in, or "" when not all are 8 bits of one type."""
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    types = {f"{kind.get('type')}{kind.get('num_bits')}" for kind in weights if isinstance(kind, dict)}
    return {"float8": "fp8", "int8": "w8a8"}.get(types.pop(), "") if len(types) == 1 else ""
