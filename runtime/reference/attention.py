"""The two kinds of attention: grouped queries (Llama, Qwen3) and DeepSeek's latent one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.reference.attend import attend
from runtime.reference.batch import Batch
from runtime.reference.cache import KvCache
from runtime.reference.config import GroupedAttention, LatentAttention, ModelConfig
from runtime.reference.norm import RmsNorm
from runtime.reference.parallel import TensorParallel, length
from runtime.reference.rope import rotate
from runtime.reference.weights import Loader
from vppc.errors import InputError

LATENT_NORM_EPS = 1e-6
"""What DeepSeek's norms inside attention use, whatever the config says of the others."""


def cache_rows(config: ModelConfig, tp: TensorParallel) -> tuple[tuple[int, ...], ...]:
    """The shapes of what one token leaves in one layer's KV cache, in this process."""
    spec = config.attention
    if isinstance(spec, LatentAttention):
        return (spec.kv_rank,), (spec.rope_dim,)
    heads = length(_grouped_shares(spec, tp)[1])
    return (heads, spec.head_dim), (heads, spec.head_dim)


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """This process's heads; ``query``, ``key`` and ``value`` are split by rows, ``output`` by columns."""

    layer: int
    head_dim: int
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None

    @classmethod
    def load(cls, layer: int, config: ModelConfig, spec: GroupedAttention, loader: Loader) -> GroupedQueryAttention:
        """The share of layer ``layer`` that belongs to the loader's process."""
        name, hidden, dim = f"model.layers.{layer}.self_attn", config.hidden, spec.head_dim
        query, kv = (_times(share, dim) for share in _grouped_shares(spec, loader.tp))

        def norm(of: str) -> RmsNorm | None:
            return RmsNorm(loader.gain(f"{name}.{of}", dim), config.norm_eps) if spec.norms else None

        return cls(
            layer,
            dim,
            loader.matrix(f"{name}.q_proj", spec.heads * dim, hidden, row=query),
            loader.matrix(f"{name}.k_proj", spec.kv_heads * dim, hidden, row=kv),
            loader.matrix(f"{name}.v_proj", spec.kv_heads * dim, hidden, row=kv),
            loader.matrix(f"{name}.o_proj", hidden, spec.heads * dim, column=query),
            norm("q_norm"),
            norm("k_norm"),
        )

    def __call__(self, hidden: Tensor, batch: Batch, cache: KvCache) -> Tensor:
        """What this process's heads add to the residual stream: [n, hidden] from [n, hidden]."""
        query, key, value = (
            torch.unflatten(F.linear(hidden, matrix), -1, (-1, self.head_dim))
            for matrix in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, batch.rope), rotate(key, batch.rope)
        mixed = torch.empty_like(query)
        for span in batch.spans:
            keys, values = cache.extend(self.layer, span, (key[span.rows], value[span.rows]))
            mixed[span.rows] = attend(query[span.rows], keys, values, self.head_dim**-0.5)
        return F.linear(mixed.flatten(1), self.output)


@dataclass(frozen=True, slots=True)
class LatentQueryAttention:
    """This process's heads of MLA. Latents are the same in all processes of the group; heads are split.

    The cache holds latents and rotary keys only: keys and values of the whole prefix are rebuilt once a chunk.
    """

    layer: int
    spec: LatentAttention
    query: tuple[Tensor, RmsNorm, Tensor] | Tensor
    latent: Tensor
    latent_norm: RmsNorm
    rebuild: Tensor
    output: Tensor

    @classmethod
    def load(cls, layer: int, config: ModelConfig, spec: LatentAttention, loader: Loader) -> LatentQueryAttention:
        """The share of layer ``layer`` that belongs to the loader's process."""
        name, hidden = f"model.layers.{layer}.self_attn", config.hidden
        heads = loader.tp.share(spec.heads, "attention heads")

        def norm(of: str, size: int) -> RmsNorm:
            return RmsNorm(loader.gain(f"{name}.{of}", size), LATENT_NORM_EPS)

        def by_head(of: str, dim: int, inputs: int) -> Tensor:
            return loader.matrix(f"{name}.{of}", spec.heads * dim, inputs, row=_times(heads, dim))

        query_dim, rank = spec.nope_dim + spec.rope_dim, spec.query_rank
        return cls(
            layer,
            spec,
            by_head("q_proj", query_dim, hidden)
            if rank is None
            else (
                loader.matrix(f"{name}.q_a_proj", rank, hidden),
                norm("q_a_layernorm", rank),
                by_head("q_b_proj", query_dim, rank),
            ),
            loader.matrix(f"{name}.kv_a_proj_with_mqa", spec.kv_rank + spec.rope_dim, hidden),
            norm("kv_a_layernorm", spec.kv_rank),
            by_head("kv_b_proj", spec.nope_dim + spec.value_dim, spec.kv_rank),
            loader.matrix(f"{name}.o_proj", hidden, spec.heads * spec.value_dim, column=_times(heads, spec.value_dim)),
        )

    def __call__(self, hidden: Tensor, batch: Batch, cache: KvCache) -> Tensor:
        """What this process's heads add to the residual stream: [n, hidden] from [n, hidden]."""
        spec = self.spec
        query = torch.unflatten(self._queries(hidden), -1, (-1, spec.nope_dim + spec.rope_dim))
        plain, turned = torch.split(query, [spec.nope_dim, spec.rope_dim], dim=-1)
        query = torch.cat((plain, rotate(turned, batch.rope, interleaved=spec.interleaved)), dim=-1)
        latent, rotary = torch.split(F.linear(hidden, self.latent), [spec.kv_rank, spec.rope_dim], dim=-1)
        latent = self.latent_norm(latent)
        rotary = rotate(rotary[:, None], batch.rope, interleaved=spec.interleaved)[:, 0]
        scale = spec.softmax_scale * query.shape[-1] ** -0.5
        mixed = query.new_empty(*query.shape[:-1], spec.value_dim)
        for span in batch.spans:
            keys, values = self._rebuilt(*cache.extend(self.layer, span, (latent[span.rows], rotary[span.rows])))
            mixed[span.rows] = attend(query[span.rows], keys, values, scale)
        return F.linear(mixed.flatten(1), self.output)

    def _queries(self, hidden: Tensor) -> Tensor:
        if isinstance(self.query, Tensor):
            return F.linear(hidden, self.query)
        down, norm, up = self.query
        return F.linear(norm(F.linear(hidden, down)), up)

    def _rebuilt(self, latents: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [m, heads, nope + rope] and values [m, heads, value] of the m tokens so far."""
        spec = self.spec
        both = torch.unflatten(F.linear(latents, self.rebuild), -1, (-1, spec.nope_dim + spec.value_dim))
        plain, values = torch.split(both, [spec.nope_dim, spec.value_dim], dim=-1)
        shared = rotary[:, None].expand(-1, plain.shape[1], -1)
        return torch.cat((plain, shared), dim=-1), values


def _grouped_shares(spec: GroupedAttention, tp: TensorParallel) -> tuple[slice, slice]:
    """This process's query heads and the key-value heads they use; these are repeated when there are too few."""
    if spec.heads % tp.size or (spec.kv_heads % tp.size and tp.size % spec.kv_heads):
        raise InputError(
            f"{spec.heads} heads over {spec.kv_heads} key-value heads cannot be split over {tp.size} processes",
            file="--tp",
            remedy=f"a divisor of {spec.heads} that divides {spec.kv_heads} or is a multiple of it",
        )
    heads = tp.share(spec.heads, "attention heads")
    group = spec.heads // spec.kv_heads
    return heads, slice(heads.start // group, (heads.stop - 1) // group + 1)


def _times(share: slice, dim: int) -> slice:
    return slice(share.start * dim, share.stop * dim)
