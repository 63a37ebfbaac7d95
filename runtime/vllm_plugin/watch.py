"""What a rank shows of itself while it runs its instructions: on the page, and in the message of what fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from runtime.stream import Growing
from runtime.vllm_plugin.page import Doing, Page, RankRow, instruction
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT

_DOING = {FORWARD: Doing.FORWARD, SEND: Doing.SEND, RECV: Doing.RECV, SAMPLE: Doing.SAMPLE}


class Step(NamedTuple):
    """The instruction with that number."""

    number: int
    doing: Doing
    chunk: int
    stage: int


class Watch:
    """Watches one process, number ``process`` of the server's and of pipeline rank ``rank``, run ``program``.

    :meth:`mark` is the interpreter's mark, and :meth:`add` is told when each instruction ran: at once, or later where a
    device queues them; then the page says what it has done last, and when.
    """

    def __init__(self, page: Page, process: int, rank: int, program: Growing) -> None:
        self._page, self._process, self._rank, self._program = page, process, rank, program
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
        self._row = row
        self._page.put_rank(self._process, row)
        self._page.put_ran(self._process, step.number, start, end)

    def _step(self, index: int) -> Step:
        op, chunk, stage, of, _, _ = self._program.row(index)
        if op == WAIT:
            op, chunk, stage, _, _, _ = self._program.row(of)
        if op == SAMPLE:
            stage = len(self._program.stage_ranks) - 1
        return Step(index, _DOING[op], chunk, stage)
