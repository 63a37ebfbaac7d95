"""The executor of folded workers.

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
