"""A model's ``config.json`` as Hugging Face writes it, old and new spellings, to a :class:`ModelConfig`.

What this decoder does not compute (sliding windows, biases, quantized weights, other activations) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtime.reference.config import (
    GroupedAttention,
    LatentAttention,
    Mixture,
    ModelConfig,
    SigmoidGate,
    SoftmaxGate,
)
from runtime.reference.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling, yarn_mscale
from vppc.errors import InputError
from vppc.files import read_text
from vppc.json_text import loads, shown

T = TypeVar("T")
LARGEST = 2**31 - 1


def read_config(folder: str) -> ModelConfig:
    """The config of a model folder. Raises InputError that names the file and the key."""
    path = str(Path(folder) / "config.json")
    return parse_config(loads(read_text(path), path), path)


def parse_config(document: Any, file: str = "") -> ModelConfig:
    """The config in a parsed ``config.json``. Raises InputError that names the key and what is allowed."""
    if not isinstance(document, Mapping):
        raise InputError(f"{shown(document)} is not a model's config", file=file, remedy='an object with "model_type"')
    keys = _Keys(document, file)
    architecture = keys.choice("model_type", _ARCHITECTURES)
    keys.refuse("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        keys.refuse(key, False)
    keys.refuse("quantization_config", None)
    return architecture(keys)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of one object of the file; null is as good as absent."""

    values: Mapping[str, Any]
    file: str
    prefix: str = ""

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.error(key, f"{shown(value)} is no integer from {least} up")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e12:
            raise self.error(key, f"{shown(value)} is no positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.error(key, f"{shown(value)} is neither true nor false")
        return value

    def choice(self, key: str, choices: Mapping[str, T], default: str | None = None) -> T:
        value = self._get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"{shown(value)} is not supported", f"one of {', '.join(choices)}")
        return choices[value]

    def within(self, key: str) -> _Keys | None:
        """The keys of an object under a key, or None when it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"{shown(value)} is not an object")
        return _Keys(value, self.file, f"{self.prefix}{key}.")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def refuse(self, key: str, only: Any) -> None:
        """Refuses every value but this one, and absence."""
        value = self.values.get(key)
        if value is not None and value != only:
            raise self.error(key, f"{shown(value)} is not supported", f"{shown(only)}, or leave it out")

    def error(self, key: str, problem: str, remedy: str = "") -> InputError:
        return InputError(problem, file=self.file, place=f"{self.prefix}{key}", remedy=remedy)

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


def _llama(keys: _Keys) -> ModelConfig:
    return _model(keys, _grouped(keys, norms=False), None)


def _qwen3(keys: _Keys) -> ModelConfig:
    kinds = keys.values.get("layer_types") or ()
    if not isinstance(kinds, list | tuple) or any(kind != "full_attention" for kind in kinds):
        raise keys.error("layer_types", "is not supported", 'a list of "full_attention"')
    return _model(keys, _grouped(keys, norms=True), None)


def _qwen3_moe(keys: _Keys) -> ModelConfig:
    layers, step = keys.integer("num_hidden_layers"), keys.integer("decoder_sparse_step", 1)
    dense = keys.values.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple):
        raise keys.error("mlp_only_layers", f"{shown(dense)} is no list of layers")
    experts = keys.integer("num_local_experts" if keys.has("num_local_experts") else "num_experts")
    mixture = Mixture(
        experts=experts,
        intermediate=keys.integer("moe_intermediate_size"),
        shared=0,
        gate=SoftmaxGate(_top_k(keys, experts), keys.flag("norm_topk_prob", False)),
        layers=frozenset(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0),
    )
    return _model(keys, _grouped(keys, norms=True), mixture)


def _deepseek_v3(keys: _Keys) -> ModelConfig:
    layers, first = keys.integer("num_hidden_layers"), keys.integer("first_k_dense_replace", 3, least=0)
    keys.refuse("moe_layer_freq", 1)
    experts = keys.integer("n_routed_experts")
    mixture = Mixture(
        experts=experts,
        intermediate=keys.integer("moe_intermediate_size"),
        shared=keys.integer("n_shared_experts", 1, least=0),
        gate=_sigmoid_gate(keys, experts),
        layers=frozenset(range(first, layers)),
    )
    rope = keys.within("rope_parameters") or keys.within("rope_scaling")
    mscale = 1.0
    if rope is not None and rope.has("mscale_all_dim") and rope.has("factor"):
        mscale = yarn_mscale(rope.number("factor"), rope.number("mscale_all_dim"))
    attention = LatentAttention(
        heads=keys.integer("num_attention_heads"),
        kv_rank=keys.integer("kv_lora_rank"),
        nope_dim=keys.integer("qk_nope_head_dim"),
        rope_dim=_even(keys, "qk_rope_head_dim"),
        value_dim=keys.integer("v_head_dim"),
        query_rank=keys.integer("q_lora_rank") if keys.has("q_lora_rank") else None,
        interleaved=keys.flag("rope_interleave", True),
        softmax_scale=mscale**2,
    )
    return _model(keys, attention, mixture)


_ARCHITECTURES: Mapping[str, Callable[[_Keys], ModelConfig]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
}


def _model(keys: _Keys, attention: GroupedAttention | LatentAttention, mixture: Mixture | None) -> ModelConfig:
    dim = attention.rope_dim if isinstance(attention, LatentAttention) else attention.head_dim
    return ModelConfig(
        name=keys.values["model_type"],
        layers=keys.integer("num_hidden_layers"),
        hidden=keys.integer("hidden_size"),
        intermediate=keys.integer("intermediate_size"),
        vocabulary=keys.integer("vocab_size"),
        attention=attention,
        rope=_rope(keys, dim),
        mixture=mixture,
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        tied=keys.flag("tie_word_embeddings", False),
    )


def _grouped(keys: _Keys, *, norms: bool) -> GroupedAttention:
    heads = keys.integer("num_attention_heads")
    kv_heads = keys.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads, {heads}")
    if keys.has("head_dim"):
        return GroupedAttention(heads, kv_heads, _even(keys, "head_dim"), norms)
    hidden = keys.integer("hidden_size")
    if hidden % (2 * heads):
        raise keys.error("head_dim", f"is missing, and {hidden} does not make {heads} heads of an even size")
    return GroupedAttention(heads, kv_heads, hidden // heads, norms)


def _even(keys: _Keys, key: str) -> int:
    value = keys.integer(key)
    if value % 2:
        raise keys.error(key, f"{value} is odd", "an even size: rotary embeddings turn pairs")
    return value


def _top_k(keys: _Keys, experts: int) -> int:
    top_k = keys.integer("num_experts_per_tok")
    if top_k > experts:
        raise keys.error("num_experts_per_tok", f"{top_k} is more than the {experts} experts")
    return top_k


def _sigmoid_gate(keys: _Keys, experts: int) -> SigmoidGate:
    groups = keys.integer("n_group", 1)
    if experts % groups:
        raise keys.error("n_group", f"{groups} does not divide the {experts} experts")
    top_groups = keys.integer("topk_group", groups)
    top_k = _top_k(keys, experts)
    if top_groups > groups or top_k > top_groups * (experts // groups):
        raise keys.error(
            "topk_group", f"{top_groups} of {groups} groups of {experts // groups} cannot give {top_k} experts"
        )
    return SigmoidGate(
        top_k,
        keys.flag("norm_topk_prob", True),
        groups,
        top_groups,
        keys.number("routed_scaling_factor", 1.0),
    )


def _rope(keys: _Keys, dim: int) -> Rope:
    """Rotary settings: ``rope_parameters``, or the older ``rope_theta`` beside ``rope_scaling``."""
    inner = keys.within("rope_parameters") or keys.within("rope_scaling")
    outer_theta = keys.number("rope_theta", 10000.0)
    if inner is None:
        return Rope(dim, outer_theta)
    theta = inner.number("rope_theta", outer_theta)
    if inner.has("partial_rotary_factor") and inner.number("partial_rotary_factor") != 1:
        raise inner.error("partial_rotary_factor", "is not supported", "1, or leave it out")
    make = inner.choice("rope_type" if inner.has("rope_type") else "type", _SCALINGS, "default")
    return Rope(dim, theta, make(inner, keys))


def _no_scaling(inner: _Keys, outer: _Keys) -> None:
    return None


def _linear(inner: _Keys, outer: _Keys) -> LinearScaling:
    return LinearScaling(inner.number("factor"))


def _llama3(inner: _Keys, outer: _Keys) -> Llama3Scaling:
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.error("high_freq_factor", f"{high} is not above low_freq_factor, {low}")
    return Llama3Scaling(inner.number("factor"), low, high, _original(inner, outer))


def _yarn(inner: _Keys, outer: _Keys) -> YarnScaling:
    original = _original(inner, outer)
    factor = inner.number("factor", outer.integer("max_position_embeddings", original) / original)
    if inner.has("attention_factor"):
        amplitude = inner.number("attention_factor")
    elif inner.has("mscale") and inner.has("mscale_all_dim"):
        amplitude = yarn_mscale(factor, inner.number("mscale")) / yarn_mscale(factor, inner.number("mscale_all_dim"))
    else:
        amplitude = yarn_mscale(factor)
    return YarnScaling(
        factor,
        original,
        amplitude,
        inner.number("beta_fast", 32.0),
        inner.number("beta_slow", 1.0),
        inner.flag("truncate", True),
    )


_SCALINGS: Mapping[str, Callable[[_Keys, _Keys], LinearScaling | Llama3Scaling | YarnScaling | None]] = {
    "default": _no_scaling,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _original(inner: _Keys, outer: _Keys) -> int:
    key = "original_max_position_embeddings"
    return inner.integer(key) if inner.has(key) else outer.integer("max_position_embeddings")
