"""The worker of a folded server on Ascend NPUs: what vLLM-Ascend's does for its one model runner, for two stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.parallel_state import get_tp_group
from vllm_ascend.worker.worker import NPUWorker

from runtime.devices.npu import open_npu
from runtime.devices.protocol import Device
from runtime.runners.vllm.upstream import StagePlace, part_of
from runtime.runners.vllm_ascend.mooncake import StagedConnector
from runtime.vllm_plugin.worker import Folded
from vppc.ir.segment import Segment


@dataclass(frozen=True, slots=True)
class BothStages:
    """Of a rank's two model runners what the worker asks of one when it counts memory."""

    runners: Mapping[int, Any]
    places: Mapping[int, StagePlace]

    @property
    def model_memory_usage(self) -> int:
        """Bytes of the weights."""
        return sum(int(runner.model_memory_usage) for runner in self.runners.values())

    def profile_run(self) -> None:
        """The largest batch, through one stage after the other: their activations are not held at once."""
        for stage, runner in self.runners.items():
            with self.places[stage].building(runner.vllm_config):
                runner.profile_run()


class AscendFoldWorker(Folded, NPUWorker):  # type: ignore[misc]  # it is not there when types are checked
    """vLLM-Ascend's worker, with two stages."""

    def open_device(self) -> Device:
        return replace(open_npu(self.device.index or 0), torch_device=self.device)

    def determine_available_memory(self) -> int:
        """The bytes that are left for the KV cache, as vLLM-Ascend counts them, less the activations in flight."""
        first, self.model_runner = self.model_runner, BothStages(self._stages, self._places)
        try:
            available = int(super().determine_available_memory())
        finally:
            self.model_runner = first
        asked_for = self.cache_config.kv_cache_memory_bytes
        return available if asked_for else available - self.in_flight_bytes()

    def in_flight_bytes(self) -> int:
        """Those of the buffers for activations in flight."""
        return sum(tensor.nbytes for buffer in self.buffers for tensor in buffer)

    def make_connector(self, kv_cache_config: Any) -> None:
        """A connector a stage, as Mooncake's other side sees a rank."""
        if self.vllm_config.kv_transfer_config is not None:
            parts = {stage: part_of(kv_cache_config, runner) for stage, runner in self._stages.items()}
            made = StagedConnector(self.vllm_config, kv_cache_config, self._places, parts)
            kv_transfer_state._KV_CONNECTOR_AGENT = made

    def get_kv_connector_handshake_metadata(self) -> dict[tuple[int, ...], Any] | None:
        """Where each stage listens, by its number and the TP rank."""
        connector = kv_transfer_state._KV_CONNECTOR_AGENT
        if connector is None:
            return None
        tp_rank = get_tp_group().rank_in_group
        return {(stage, tp_rank): said for stage, said in connector.handshakes().items()}

    @torch.inference_mode()
    def enter(self, scheduler_output: Any, segment: Segment | None) -> Any:
        if self.profiler is not None:
            self.profiler.step()
        return super().enter(scheduler_output, segment)
