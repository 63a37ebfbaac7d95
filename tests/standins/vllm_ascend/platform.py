"""vllm_ascend.platform: vLLM's platform for CPUs, by the name of an NPU."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform

from vllm_ascend.ascend_config import init_ascend_config


class NPUPlatform(CpuPlatform):
    device_name = "npu"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        ascend = init_ascend_config(vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            xlite = ascend.xlite_graph_config.get("enabled", False)
            parallel.worker_cls = (
                "vllm_ascend.xlite.xlite_worker.XliteWorker" if xlite else "vllm_ascend.worker.worker.NPUWorker"
            )
        super().check_and_update_config(vllm_config)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
