"""The executor of folded workers.

vLLM's engine calls ``execute_model`` for a batch and then ``sample_tokens``, and keeps a queue of the results. Here the
first is the batch's way in, up to the fold, and the second its way back, which is sent to the workers when the engine
asks for the result: when the queue is full, or nothing else is to be scheduled. So with a queue of d batches, d - 1
later ones have entered before one goes back: with 2, rank 0 of two runs ``in 0, in 1, out 0, in 2, out 1, ..``, the
blocking scheme's order; with 3 it enters one more, the asynchronous one's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import wait
from typing import Any

from vllm.logger import init_logger
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from runtime.vllm_plugin.page import EngineRow, Page, page_path

log = init_logger("vllm.vppc")  # a name in whose messages vLLM shows process and time


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
    page: Page | None = None

    def _init_executor(self) -> None:
        self._flight = EngineRow(0, 0.0, 0.0)
        self.page = Page(page_path(self.vllm_config), self.parallel_config.world_size, create=True)
        try:
            super()._init_executor()
        except BaseException:
            self.page.remove()
            raise

    def _get_output_rank(self) -> int:
        return 0

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """The way in of a batch. Of one without tokens the way back, too, unless a KV connector has to see that."""
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            self._count(1)
        entered = super().execute_model(scheduler_output, non_block=non_block)
        if tokens or self.kv_output_aggregator is None:
            return entered
        later = Later(lambda: MultiprocExecutor.sample_tokens(self, None, non_block=False))
        return later if non_block else later.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The way back of the oldest batch that has not gone back."""
        later = Later(lambda: self._sampled(grammar_output))
        return later if non_block else later.result()

    def _sampled(self, grammar_output: Any) -> Any:
        made = MultiprocExecutor.sample_tokens(self, grammar_output, non_block=False)
        self._count(-1)
        return made

    def _count(self, change: int) -> None:
        before, now = self._flight, time.monotonic()
        active = before.active + (now - before.since if before.in_flight else 0.0)
        in_flight = before.in_flight + change
        self._flight = EngineRow(in_flight, active, now if in_flight else 0.0)
        if self.page is not None:
            self.page.put_engine(self._flight)

    def shutdown(self) -> None:
        """vLLM calls this first when it finds that a worker has died; later the others are gone, too."""
        page, self.page = self.page, None
        if page is not None:
            if getattr(self, "is_failed", False):
                self._tell(page)
            page.remove()
        super().shutdown()

    def _tell(self, page: Page) -> None:
        processes = [worker.proc for worker in self.workers]
        died = wait([process.sentinel for process in processes], timeout=0.0)
        tp = self.parallel_config.tensor_parallel_size
        for number, (process, row) in enumerate(zip(processes, page.ranks(), strict=True)):
            what = f"died (exit code {process.exitcode})" if process.sentinel in died else "is alive"
            who = f"{number // tp}" if tp == 1 else f"{number // tp} (tp rank {number % tp})"
            log.error("rank %s %s, %s", who, what, row)
