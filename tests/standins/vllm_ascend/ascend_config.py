"""vllm_ascend.ascend_config."""

from __future__ import annotations

from typing import Any


class AscendConfig:
    def __init__(self, vllm_config: Any) -> None:
        asked = vllm_config.additional_config or {}
        self.vllm_config = vllm_config
        self.enable_balance_scheduling = asked.get("enable_balance_scheduling", False)
        self.profiling_chunk_config = asked.get("profiling_chunk_config", {})
        self.xlite_graph_config = asked.get("xlite_graph_config", {})


_ASCEND_CONFIG: AscendConfig | None = None


def init_ascend_config(vllm_config: Any) -> AscendConfig:
    global _ASCEND_CONFIG
    _ASCEND_CONFIG = AscendConfig(vllm_config)
    return _ASCEND_CONFIG


def get_ascend_config() -> AscendConfig:
    if _ASCEND_CONFIG is None:
        raise RuntimeError("the configuration is not initialized")
    return _ASCEND_CONFIG
