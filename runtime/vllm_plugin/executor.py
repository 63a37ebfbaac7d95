"""The executor of folded workers, with the compiler of what they run.

vLLM's engine calls ``execute_model`` for a batch and then ``sample_tokens``, and keeps a queue of the results. Here a
batch with tokens is the next chunk of a stream (:mod:`vppc.serving.batch_order`). With its first call goes a segment
until the chunk has entered, and with the second one until it is through: that is sent when our compiler's order has
it so before a later batch enters, or when the engine asks for the result, because its queue is full or nothing else is
to be scheduled. The calls arrive in this order at all workers, each of which has run one before it takes the next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing.connection import wait
from typing import Any

from vllm import envs
from vllm.logger import init_logger
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from runtime.vllm_plugin.correction import Correction, send_with
from runtime.vllm_plugin.order import batch_compiler
from runtime.vllm_plugin.page import EngineRow, Page, page_path
from runtime.vllm_plugin.settings import Fold, read_settings
from runtime.vllm_plugin.traffic import Traffic
from runtime.vllm_plugin.whereabouts import Whereabouts
from runtime.vllm_plugin.witness import Witness, limits_of
from vppc.ir.segment import Segment
from vppc.serving.batch_order import Leg

log = init_logger("vllm.vppc")  # a name in whose messages vLLM shows process and time


OURS = {"execute_model": "enter", "sample_tokens": "leave"}
"""What workers are called for vLLM's two calls, with a segment."""


class Later(Future[Any]):
    """What a batch makes. The workers are asked for it, in the order of the batches, at the latest when the engine is
    to have it. ``chunk`` is whether the batch has tokens."""

    def __init__(self, executor: FoldExecutor, grammar: Any, *, chunk: bool) -> None:
        super().__init__()
        self.grammar, self.chunk = grammar, chunk
        self.reply: Any = None
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            while self.reply is None:
                self._executor.ask()
            made = self.reply.result()
            self.set_result(self._executor.with_news(made) if self.chunk else made)
            self._executor.count(-self.chunk)
        return super().result(timeout)


class FoldExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's executor of processes, where the last stage is on rank 0, and a batch goes back when it is asked for."""

    supports_pp = True
    page: Page | None = None
    witness: Witness | None = None
    correction: Correction | None = None

    def _init_executor(self) -> None:
        self._flight = EngineRow(0, 0.0, 0.0)
        self.page = Page(page_path(self.vllm_config), self.parallel_config.world_size, create=True)
        self._segment: Segment | None = None  # which goes with vLLM's next call
        self._traffic, self._due = Traffic(), deque[Later]()
        self._whereabouts = Whereabouts(self.page, self.parallel_config.tensor_parallel_size)
        try:
            super()._init_executor()
            settings = read_settings(self.vllm_config.additional_config)
            if not isinstance(settings, Fold):
                raise ValueError("the executor of a folded server needs its settings")
            self._compiler = batch_compiler(settings, self.vllm_config)
            cost = settings.cost(self.model_config.get_total_num_hidden_layers())
            if cost is not None and self.parallel_config.data_parallel_size == 1:  # replicas keep to one order
                tp = self.parallel_config.tensor_parallel_size
                self.correction = Correction(self._compiler, cost, self.page, tp, log.warning)
            limits = limits_of(settings, envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
            self.collective_rpc("open_stream", args=(self._compiler.opening, limits))
            self.witness = Witness(self.page, limits, self._end)
            self.witness.start()
        except BaseException:
            self.page.remove()
            raise

    def _get_output_rank(self) -> int:
        return 0

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Any = (), *more: Any, **options: Any
    ) -> Any:
        if method in OURS:
            if self.correction is not None and self._segment is not None:
                self.correction.sent(self._segment)
            method, args, self._segment = OURS[method], (*args, self._segment), None
        return super().collective_rpc(method, timeout, args, *more, **options)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """The way in of a batch. One without tokens is no chunk, and asked for only where a KV connector has to say."""
        entry = self._traffic.entry(scheduler_output)
        if entry is not None:
            for leg in self._compiler.enter(entry):
                if leg.leaves is not None:
                    self.ask(leg)
            self._segment = leg.segment
            self._whereabouts.enter(entry)
            self.count(1)
        entered = super().execute_model(scheduler_output, non_block=non_block)
        if entry is not None or self.kv_output_aggregator is None:
            return entered
        return self._later(None, non_block, chunk=False)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The way back of the batch that has entered last."""
        return self._later(grammar_output, non_block, chunk=True)

    def _later(self, grammar: Any, non_block: bool, *, chunk: bool) -> Any:
        later = Later(self, grammar, chunk=chunk)
        self._due.append(later)
        return later if non_block else later.result()

    def ask(self, leg: Leg | None = None) -> None:
        """Ask the workers for what the next batch makes; with a leg, for that of the next chunk, which ends it."""
        while True:
            due = self._due.popleft()
            if due.chunk:
                self._segment = (leg or self._compiler.leave()).segment
            due.reply = super().sample_tokens(due.grammar, non_block=True)
            if due.chunk or leg is None:
                return

    def with_news(self, made: Any) -> Any:
        """What a chunk has made, on its way to the scheduler; with it go costs that have been corrected by now."""
        cost = None if self.correction is None else self.correction.look()
        return made if cost is None else send_with(made, cost)

    def count(self, change: int) -> None:
        """So many chunks more are in flight."""
        before, now = self._flight, time.monotonic()
        active = before.active + (now - before.since if before.in_flight else 0.0)
        in_flight = before.in_flight + change
        self._flight = EngineRow(in_flight, active, now if in_flight else 0.0)
        if change < 0:
            self._whereabouts.leave()
        if self.page is not None:
            self.page.put_engine(self._flight)

    def shutdown(self) -> None:
        """vLLM calls this first when it finds that a worker has died; later the others are gone, too."""
        if self.witness is not None:
            self.witness.stop()
        page, self.page = self.page, None
        if page is not None:
            if getattr(self, "is_failed", False):
                self._tell()
            page.remove()
        super().shutdown()

    def _end(self, accused: Mapping[int, str]) -> None:
        """Kill the workers that are accused, by number, which neither go on nor would end themselves: then vLLM finds
        that they have died."""
        for number, what in accused.items():
            log.error("%s", self._whereabouts.of(number, what))
        for number in accused:
            self.workers[number].proc.kill()

    def _tell(self) -> None:
        processes = [worker.proc for worker in self.workers]
        died = wait([process.sentinel for process in processes], timeout=0.0)
        for number, process in enumerate(processes):
            dead = process.sentinel in died
            if dead:
                process.join(1.0)  # it is seen to be dead a little before its exit code is
            what = f"died (exit code {process.exitcode})" if dead else "is alive"
            log.error("%s", self._whereabouts.of(number, what))
