"""The worker of a folded server on CPUs."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from runtime.devices.cpu import CpuDevice
from runtime.devices.protocol import Device
from runtime.vllm_plugin.worker import Folded


class FoldWorker(Folded, CPUWorker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's worker for CPUs, with two stages."""

    def open_device(self) -> Device:
        return CpuDevice()
