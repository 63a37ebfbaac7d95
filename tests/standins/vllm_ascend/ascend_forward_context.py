"""vllm_ascend.ascend_forward_context: what layers ask about the batch that runs, and what is the process's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from vllm.forward_context import get_forward_context

from vllm_ascend.utils import enable_sp

_mc2_tokens_capacity: int | None = None
_reserved_mc2_mask: torch.Tensor | None = None


class MoECommType(Enum):
    MC2 = 1
    ALLTOALL = 2


def set_mc2_tokens_capacity(vllm_config: Any, max_num_reqs: int, uniform_decode_query_len: int) -> None:
    global _mc2_tokens_capacity
    if _mc2_tokens_capacity is None:
        tp = vllm_config.parallel_config.tensor_parallel_size
        _mc2_tokens_capacity = -(-max_num_reqs * uniform_decode_query_len // tp) * tp


def get_mc2_tokens_capacity() -> int | None:
    return _mc2_tokens_capacity


def set_mc2_mask(vllm_config: Any, device: torch.device) -> None:
    global _reserved_mc2_mask
    if _reserved_mc2_mask is None and vllm_config.model_config.is_moe:
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        _reserved_mc2_mask = torch.zeros(tokens, dtype=torch.bool, device=device)


def get_mc2_mask() -> torch.Tensor | None:
    return _reserved_mc2_mask


def select_moe_comm_method(num_tokens: int, vllm_config: Any, is_draft_model: bool = False) -> MoECommType | None:
    """As on Atlas A3 with expert parallelism, which vLLM's build for CPUs has not."""
    if not vllm_config.model_config.is_moe:
        return None
    assert _mc2_tokens_capacity is not None
    return MoECommType.MC2 if num_tokens <= _mc2_tokens_capacity else MoECommType.ALLTOALL


@contextmanager
def set_ascend_forward_context(
    attn_metadata: Any,
    vllm_config: Any,
    num_tokens: int = 0,
    num_tokens_across_dp: Any = None,
    in_profile_run: bool = False,
    num_actual_tokens: int | None = None,
    model_instance: Any = None,
) -> Iterator[None]:
    context = get_forward_context()
    if hasattr(context, "moe_comm_type"):
        raise RuntimeError("the context of a forward is entered twice")
    context.moe_comm_type = select_moe_comm_method(num_tokens, vllm_config)
    context.flash_comm_v1_enabled = enable_sp(vllm_config)
    context.layer_idx = model_instance.model.start_layer
    mask = get_mc2_mask()
    if mask is not None:
        tp = vllm_config.parallel_config.tensor_parallel_size
        context.mc2_mask = mask[: -(-num_tokens // tp) * tp]
        context.mc2_mask[:num_actual_tokens] = True
        context.mc2_mask[num_actual_tokens:] = False
    yield
