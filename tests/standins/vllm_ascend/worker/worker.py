"""vllm_ascend.worker.worker: a worker with one model runner, on a pretended NPU."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from vllm_ascend.ascend_config import init_ascend_config
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

# torch asks for it in a barrier, and the stand-in has named a device of which torch has nothing
torch._C._get_accelerator = lambda *_: torch.device("cpu")


class NPUWorker(WorkerBase):
    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
        **kwargs: Any,
    ) -> None:
        init_ascend_config(vllm_config)
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        self.profiler: Any = None
        self.use_v2_model_runner = False

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        torch_npu.npu.set_device(self.local_rank)
        parallel = self.parallel_config
        init_distributed_environment(
            parallel.world_size, self.rank, self.distributed_init_method, self.local_rank, "hccl"
        )
        ensure_model_parallel_initialized(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
        set_random_seed(self.model_config.seed)
        self.requested_memory = torch_npu.npu.mem_get_info()[0] * self.cache_config.gpu_memory_utilization
        self.model_runner: Any = NPUModelRunner(self.vllm_config, self.device)

    def load_model(self) -> None:
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.load_model()

    def determine_available_memory(self) -> int:
        self.model_runner.profile_run()
        if self.cache_config.kv_cache_memory_bytes:
            return int(self.cache_config.kv_cache_memory_bytes)
        return int(self.requested_memory - self.model_runner.model_memory_usage)

    def get_kv_connector_handshake_metadata(self) -> dict[tuple[int, ...], Any] | None:
        """Of a server without a pipeline that fetches."""
        return None

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.model_runner.get_kv_cache_spec()
        return found

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        self.model_runner.initialize_kv_cache(kv_cache_config)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(language_model=0.0, encoder=0.0)

    @torch.inference_mode()
    def execute_model(self, scheduler_output: Any) -> Any:
        """Of a server without a pipeline."""
        return self.model_runner.execute_model(scheduler_output, None)

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        return self.model_runner.sample_tokens(grammar_output)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return tuple(self.model_runner.get_supported_tasks())

    def check_health(self) -> None: ...
