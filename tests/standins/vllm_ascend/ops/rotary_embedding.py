"""vllm_ascend.ops.rotary_embedding: the tables are the process's, and are written for every batch."""

from __future__ import annotations

from typing import Any

import torch

_cos: torch.Tensor | None = None


def set_cos_and_sin(
    vllm_config: Any, max_num_reqs: int, decode_token_per_req: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Room for a batch, by the first model runner; here the table has each token's position."""
    global _cos
    if _cos is None:
        _cos = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, dtype=torch.int64, device=device)


def update_cos_sin(positions: torch.Tensor) -> None:
    assert _cos is not None
    _cos[: positions.size(0)] = positions


def get_cos_and_sin_slice(tokens: int) -> torch.Tensor:
    assert _cos is not None
    return _cos[:tokens]
