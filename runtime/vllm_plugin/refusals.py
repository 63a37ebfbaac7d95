"""What folded workers do not serve: refused at the start, with the reason."""

from __future__ import annotations

from typing import Any

from runtime.vllm_plugin.settings import FILE
from vppc.errors import InputError


def refuse(config: Any, *, replicas: bool = False) -> None:
    """Raises InputError for a configuration that folded workers do not serve, with the reason.

    ``replicas`` says whether the build has data parallelism.
    """
    parallel = config.parallel_config
    reasons = (
        (parallel.pipeline_parallel_size < 2, "one pipeline rank has nothing to fold", "-pp 2 or more"),
        (parallel.distributed_executor_backend != "mp", "ranks are processes", "--distributed-executor-backend mp"),
        (parallel.nnodes > 1, "ranks see each other's beats in this machine's memory", "--nnodes 1"),
        (
            parallel.data_parallel_size > 1 and not replicas,
            "this build of vLLM's has no exchange of experts between replicas",
            "-dp 1",
        ),
        (
            parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1,
            "a chunk is not split over ranks",
            "no context parallelism",
        ),
        (not config.model_config.enforce_eager, "stages are not compiled", "--enforce-eager"),
        (not config.scheduler_config.enable_chunked_prefill, "prompts are not chunked", "--enable-chunked-prefill"),
        (bool(config.scheduler_config.async_scheduling), "batches are scheduled in step", "--no-async-scheduling"),
        (config.speculative_config is not None, "drafts are not carried between stages", "no speculative decoding"),
        (config.lora_config is not None, "adapters are not loaded by stages", "no LoRA"),
        (config.model_config.is_multimodal_model, "only text is carried", "a text model"),
        (config.model_config.runner_type != "generate", "only generation is folded", "a generating model"),
    )  # fmt: skip
    for found, why, remedy in reasons:
        if found:
            raise InputError(f"cannot fold: {why}", file=FILE, remedy=remedy)
