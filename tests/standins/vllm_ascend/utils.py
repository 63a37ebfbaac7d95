"""vllm_ascend.utils."""

from __future__ import annotations

from typing import Any

_ENABLE_SP: bool | None = None


def enable_sp(vllm_config: Any = None, enable_shared_expert_dp: bool = False) -> bool:
    """Whether FlashComm is on, as the first configuration said that was asked about."""
    global _ENABLE_SP
    if _ENABLE_SP is None:
        if vllm_config is None:
            from vllm.config import get_current_vllm_config

            vllm_config = get_current_vllm_config()
        _ENABLE_SP = bool(vllm_config.additional_config.get("enable_flashcomm1", False))
    return _ENABLE_SP
