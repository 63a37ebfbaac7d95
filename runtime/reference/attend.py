"""Causal attention of new tokens to themselves and to the prefix before them, without a mask where that is fast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right


def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Softmax attention, [n, heads, value dim].

    ``queries`` [n, heads, dim] are the last n of the m tokens of ``keys`` [m, kv heads, dim] and ``values``
    [m, kv heads, value dim]; each sees the keys up to its own. ``heads`` is a multiple of ``kv heads``.
    """
    n, value_dim = len(queries), values.shape[-1]
    width = max(queries.shape[-1], value_dim)  # the fused kernels want one width; zeros change no product
    q, k, v = (_heads_first(x, width) for x in (queries, keys, values))
    if n == len(keys):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    elif n == 1:
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
    elif q.device.type == "cpu":
        out = merged(q, k, v, scale)
    else:
        out = masked(q, k, v, scale)
    return out[0].transpose(0, 1)[..., :value_dim]


def masked(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[1, heads, n, dim] from [1, heads, tokens, dim] where the n queries are behind a prefix of m - n keys."""
    mask = causal_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def merged(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The same as :func:`masked` on CPU, where the kernel slows down to half its speed and less under a mask.

    So the prefix, which every query sees whole, and the new tokens, which are plainly causal, are attended to
    apart, and the two results weighed by their softmax sums, which is exact.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    prefix = k.shape[2] - q.shape[2]
    before, before_sum = flash(q, k[:, :, :prefix], v[:, :, :prefix], 0.0, False, scale=scale)
    new, new_sum = flash(q, k[:, :, prefix:], v[:, :, prefix:], 0.0, True, scale=scale)
    weight = torch.sigmoid(before_sum - new_sum)[..., None]  # the sums are logarithms
    out: Tensor = new.to(weight.dtype).lerp(before.to(weight.dtype), weight).to(q.dtype)
    return out


def _heads_first(x: Tensor, width: int) -> Tensor:
    padded = x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
    return padded.transpose(0, 1)[None]
