"""vllm_ascend.platform: vLLM's platform for CPUs, by the name of an NPU."""

from __future__ import annotations

import os
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
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # CPUs ask for processes that all import vLLM anew

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm_ascend.distributed.device_communicators.npu_communicator.NPUCommunicator"
