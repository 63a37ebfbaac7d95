"""The decoder, or the part of it that a process holds: some layers, perhaps the embedding, perhaps the head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from runtime.reference.attention import GroupedQueryAttention, LatentQueryAttention
from runtime.reference.batch import Batch
from runtime.reference.cache import KvCache
from runtime.reference.config import LatentAttention, ModelConfig
from runtime.reference.feed_forward import MixtureOfExperts, Mlp
from runtime.reference.norm import RmsNorm
from runtime.reference.parallel import TensorParallel
from runtime.reference.weights import Loader

EMBEDDING = "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and feed-forward, each normalised before and added to the residual stream."""

    tp: TensorParallel
    attention_norm: RmsNorm
    attention: GroupedQueryAttention | LatentQueryAttention
    feed_forward_norm: RmsNorm
    feed_forward: Mlp | MixtureOfExperts

    @classmethod
    def load(cls, layer: int, config: ModelConfig, loader: Loader) -> Layer:
        """Layer number ``layer``, the loader's share."""
        name, spec, mixture = f"model.layers.{layer}", config.attention, config.mixture
        return cls(
            loader.tp,
            RmsNorm(loader.gain(f"{name}.input_layernorm", config.hidden), config.norm_eps),
            LatentQueryAttention.load(layer, config, spec, loader)
            if isinstance(spec, LatentAttention)
            else GroupedQueryAttention.load(layer, config, spec, loader),
            RmsNorm(loader.gain(f"{name}.post_attention_layernorm", config.hidden), config.norm_eps),
            MixtureOfExperts.load(f"{name}.mlp", config, mixture, loader)
            if mixture is not None and layer in mixture.layers
            else Mlp.load(f"{name}.mlp", config.hidden, config.intermediate, loader),
        )

    def __call__(self, hidden: Tensor, batch: Batch, cache: KvCache) -> Tensor:
        """The residual stream [n, hidden] after this layer."""
        hidden = hidden + self.tp.sum(self.attention(self.attention_norm(hidden), batch, cache))
        return hidden + self.tp.sum(self.feed_forward(self.feed_forward_norm(hidden)))


@dataclass(frozen=True, slots=True)
class Embedding:
    """The rows ``first``, ``first`` + 1, ... of the embedding, [held, hidden]."""

    tp: TensorParallel
    first: int
    matrix: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        """The residual stream [n, hidden] at the start, of token ids [n]."""
        if self.tp.size == 1:
            return F.embedding(tokens, self.matrix)
        local = tokens - self.first
        inside = (local >= 0) & (local < len(self.matrix))
        rows = F.embedding(local.where(inside, 0), self.matrix)
        return self.tp.sum(rows * inside[:, None])


@dataclass(frozen=True, slots=True)
class Head:
    """The last norm, and the rows ``first``, ``first`` + 1, ... of the head's matrix [vocabulary, hidden]."""

    tp: TensorParallel
    norm: RmsNorm
    vocabulary: int
    first: int
    matrix: Tensor

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocabulary] in float32 of residual streams [n, hidden]."""
        held = F.linear(self.norm(hidden), self.matrix).float()
        if self.tp.size == 1:
            return held
        logits = held.new_zeros(len(hidden), self.vocabulary)
        logits[:, self.first : self.first + held.shape[1]] = held
        return self.tp.sum(logits)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The layers that a process holds, by number; embedding and head where it has the first or the last stage."""

    layers: dict[int, Layer]
    embedding: Embedding | None
    head: Head | None

    @classmethod
    def load(
        cls, config: ModelConfig, layers: Iterable[int], loader: Loader, *, embedding: bool, head: bool
    ) -> Decoder:
        """Reads what is asked for and nothing else. Raises InputError for weights that do not fit the config."""
        tp, size = loader.tp, (config.vocabulary, config.hidden)
        rows = tp.share(config.vocabulary, "tokens of the vocabulary")
        wanted = {EMBEDDING} if embedding or (head and config.tied) else set()
        if head and not config.tied:
            wanted.add("lm_head")
        matrices = {name: loader.matrix(name, *size, row=rows) for name in sorted(wanted)}
        return cls(
            {layer: Layer.load(layer, config, loader) for layer in layers},
            Embedding(tp, rows.start, matrices[EMBEDDING]) if embedding else None,
            Head(
                tp,
                RmsNorm(loader.gain("model.norm", config.hidden), config.norm_eps),
                config.vocabulary,
                rows.start,
                matrices[EMBEDDING if config.tied else "lm_head"],
            )
            if head
            else None,
        )

    def run(self, layers: range, hidden: Tensor, batch: Batch, cache: KvCache) -> Tensor:
        """The residual stream [n, hidden] after these layers, which the process must hold."""
        for layer in layers:
            hidden = self.layers[layer](hidden, batch, cache)
        return hidden
