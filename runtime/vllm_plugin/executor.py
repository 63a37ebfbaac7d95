"""The executor of folded workers, and what it does not take.

vLLM's engine calls ``execute_model`` for a batch and then ``sample_tokens``, and keeps a queue of the results. Here the
first is the batch's way in, up to the fold, and the second its way back, which is sent to the workers when the engine
asks for the result: when the queue is full, or nothing else is to be scheduled. So with a queue of d batches, d - 1
later ones have entered before one goes back: with 2, rank 0 of two runs ``in 0, in 1, out 0, in 2, out 1, ..``, the
blocking scheme's order; with 3 it enters one more, the asynchronous one's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from runtime.vllm_plugin.settings import FILE
from vppc.errors import InputError


class Later(Future[Any]):
    """A result that is made when somebody asks for it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self._make = make

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._make())
        return super().result(timeout)


class FoldExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's executor of processes, where the last stage is on rank 0, and a batch goes back when it is asked for."""

    supports_pp = True

    def _get_output_rank(self) -> int:
        return 0

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The way back of the oldest batch that has not gone back."""
        later = Later(lambda: MultiprocExecutor.sample_tokens(self, grammar_output, non_block=False))
        return later if non_block else later.result()


def refuse(config: Any) -> None:
    """Raises InputError for a configuration that folded workers do not serve, with the reason."""
    parallel = config.parallel_config
    reasons = (
        (parallel.pipeline_parallel_size < 2, "one pipeline rank has nothing to fold", "-pp 2 or more"),
        (parallel.distributed_executor_backend != "mp", "ranks are processes", "--distributed-executor-backend mp"),
        (parallel.tensor_parallel_size > 1 or parallel.data_parallel_size > 1, "a rank is one process", "-tp 1 -dp 1"),
        (not config.model_config.enforce_eager, "stages are not compiled", "--enforce-eager"),
        (bool(config.scheduler_config.async_scheduling), "batches are scheduled in step", "--no-async-scheduling"),
        (config.speculative_config is not None, "drafts are not carried between stages", "no speculative decoding"),
        (config.lora_config is not None, "adapters are not loaded by stages", "no LoRA"),
        (config.kv_transfer_config is not None, "a KV connector would be finished once a stage", "no KV transfer"),
        (config.model_config.is_multimodal_model, "only text is carried", "a text model"),
        (config.model_config.runner_type != "generate", "only generation is folded", "a generating model"),
    )  # fmt: skip
    for found, why, remedy in reasons:
        if found:
            raise InputError(f"cannot fold: {why}", file=FILE, remedy=remedy)
