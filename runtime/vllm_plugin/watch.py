"""What a rank shows of itself while it runs its instructions: on the page, and in the message of what fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from runtime.stream import Growing
from runtime.vllm_plugin.page import Doing, Page, RankRow, instruction
from runtime.vllm_plugin.pricing import BatchDrift
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT

_DOING = {FORWARD: Doing.FORWARD, SEND: Doing.SEND, RECV: Doing.RECV, SAMPLE: Doing.SAMPLE}


class Step(NamedTuple):
    """An instruction; ``planned`` are its seconds, where there are costs."""

    doing: Doing
    chunk: int
    stage: int
    planned: float | None


class Watch:
    """Watches one process, number ``process`` of the server's and of pipeline rank ``rank``, run ``program``.

    :meth:`mark` is the interpreter's mark, and :meth:`add` is told when each instruction ran: at once, or later where a
    device queues them; then the page says what it has done last.
    """

    def __init__(self, page: Page, process: int, rank: int, program: Growing, drift: BatchDrift | None) -> None:
        self._page, self._process, self._rank, self._program, self._drift = page, process, rank, program, drift
        self._under_way: deque[Step] = deque()
        self._row = RankRow(Doing.IDLE, -1, -1, 0.0, None)

    @contextmanager
    def mark(self, index: int) -> Iterator[None]:
        """Say that the instruction is about to run. What fails in it is raised as a RuntimeError that names it."""
        step = self._step(index)
        self._under_way.append(step)
        self._page.put_rank(self._process, replace(self._row, doing=step.doing, chunk=step.chunk, stage=step.stage))
        try:
            yield
        except Exception as error:
            words = instruction(step.doing, step.chunk, step.stage)
            raise RuntimeError(f"rank {self._rank}, {words}: {error}") from error

    def add(self, start: float, end: float) -> None:
        """The oldest instruction under way ran from ``start`` to ``end``, in seconds."""
        step = self._under_way.popleft()
        row = replace(self._row, doing=Doing.IDLE)
        if step.doing in (Doing.FORWARD, Doing.SAMPLE):
            row = replace(row, chunk=step.chunk, stage=step.stage, busy=row.busy + end - start)
        if self._drift is not None and step.planned is not None:
            self._drift.window.add(end - start, step.planned)
            row = replace(row, drift=self._drift.window.drift)
        self._row = row
        self._page.put_rank(self._process, row)

    def _step(self, index: int) -> Step:
        op, chunk, stage, of, _, _ = self._program.row(index)
        if op == WAIT:
            op, chunk, stage, _, _, _ = self._program.row(of)
        if op == SAMPLE:
            stage = len(self._program.stage_ranks) - 1
        planned = self._planned(chunk, stage) if op == FORWARD else None
        return Step(_DOING[op], chunk, stage, planned)

    def _planned(self, chunk: int, stage: int) -> float | None:
        if self._drift is None:
            return None
        held = self._program.chunks[chunk]
        ends = {part.request: self._program.requests[part.request].prompt_tokens for part in held.parts}
        return self._drift.seconds(held, ends)[stage]
