"""How a run ends when something goes wrong: one message that names the rank, its instruction and its request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import TypeVar

from runtime.devices.protocol import Progress
from runtime.plan import Plan
from vppc.errors import VppcError
from vppc.ir.assembly import instruction_words
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT

T = TypeVar("T")
LOOKS = 100
"""At a program that drops what it has run."""


class RunFailed(VppcError):
    """A run that cannot go on; the message names who failed where."""

    def __init__(self, message: str, status: int = 1) -> None:
        self.exit_status = status
        super().__init__(message, status)

    def __str__(self) -> str:
        return str(self.args[0])


class State(IntEnum):
    """What it means that a process does not go on."""

    BUSY = 0
    """It is stuck."""
    WAITING = 1
    """Whoever it waits for is to blame."""
    IDLE = 2
    """Nothing: it reads a model, or waits for a request to come, and that takes as long as it takes."""
    THROUGH = 3
    """Nothing: it has finished."""


class Position:
    """Where a process stands. Its main thread writes, the watchdog's threads read and put it in words.

    Before a program ``doing`` says what is done, and ``state`` how long that may take; in a program the
    interpreter sets ``index``, and ``idle`` while it waits for a request to arrive. ``more`` is to come behind a
    program that grows; it drops what it has run, perhaps between two looks of a watchdog's thread, which then looks
    again.
    """

    __slots__ = ("doing", "idle", "index", "more", "plan", "progress", "rank", "state", "tp", "tp_rank")

    def __init__(self, rank: int, tp_rank: int = 0, tp: int = 1) -> None:
        self.rank, self.tp_rank, self.tp = rank, tp_rank, tp
        self.plan: Plan | None = None
        self.progress: Progress | None = None
        self.index, self.idle, self.more = -1, False, False
        self.doing, self.state = "meeting the others", State.WAITING

    def prepare(self, doing: str, state: State) -> None:
        """The process does something that is not in the program."""
        self.index, self.doing, self.state = -1, doing, state

    def enter(self, plan: Plan, progress: Progress | None) -> None:
        """The process begins the rank's program of ``plan``; a device that queues it tells how far it is."""
        self.plan, self.progress, self.index = plan, progress, 0

    def where(self) -> int | None:
        """The index of the instruction, as many as there are at the end of the program, None before it."""
        index, progress = self.index, self.progress
        if index < 0 or self.plan is None:
            return None
        queued = progress.unfinished() if progress is not None else None
        return index if queued is None else queued

    def read(self) -> tuple[State, str]:
        """The state, and where, for example ``instruction 17 of 61, FORWARD c3 s2 b0 -> b1 (request r0)``."""
        return _again(self._look)

    def _look(self) -> tuple[State, str]:
        index, plan = self.where(), self.plan
        if index is None or plan is None:
            return self.state, f"its start, {self.doing}"
        program = plan.programs[self.rank]
        length = len(program)
        if index >= length:
            if self.more:
                return State.IDLE, f"instruction {length}, which has not come yet"
            return State.THROUGH, "the end of its program"
        row = program.row(index)
        state = State.WAITING if row[0] == WAIT else State.IDLE if self.idle else State.BUSY
        words = instruction_words(row, program.row(row[3]) if row[0] == WAIT else None)
        names = [plan.requests[request].id for request in requests_at(plan, self.rank, index)]
        named = f" ({'request' if len(names) == 1 else 'requests'} {', '.join(names)})" if names else ""
        return state, f"instruction {index} of {length}, {words}{named}"

    def __str__(self) -> str:
        """For example ``rank 1 at instruction 17 of 61, FORWARD c3 s2 b0 -> b1 (request r0)``."""
        who = f"rank {self.rank}" if self.tp == 1 else f"rank {self.rank} (tp rank {self.tp_rank})"
        return f"{who} at {self.read()[1]}"

    @property
    def requests(self) -> tuple[int, ...]:
        """The requests that the current instruction is about."""
        return _again(self._requests)

    def _requests(self) -> tuple[int, ...]:
        index, plan = self.where(), self.plan
        if index is None or plan is None or index >= len(plan.programs[self.rank]):
            return ()
        return requests_at(plan, self.rank, index)

    @property
    def depends(self) -> bool:
        """Whether other processes can make what is done here fail. Asked by the thread that runs the program."""
        index, plan = self.where(), self.plan
        if self.tp > 1 or not self.running or index is None or plan is None:
            return True
        return plan.programs[self.rank].row(index)[0] not in (FORWARD, SAMPLE)

    @property
    def running(self) -> bool:
        """Whether an instruction of the program is under way."""
        index, plan = self.where(), self.plan
        return index is not None and plan is not None and index < len(plan.programs[self.rank])


def _again(look: Callable[[], T]) -> T:
    """What ``look`` sees of a program that may drop what it looks at; by the next look it has gone on."""
    for _ in range(LOOKS):
        with suppress(LookupError):
            return look()
    return look()


def requests_at(plan: Plan, rank: int, index: int) -> tuple[int, ...]:
    """The requests, by index, with parts in the chunk of a rank's instruction, or of the transfer it waits for."""
    program = plan.programs[rank]
    op, chunk, _, of, _, _ = program.row(index)
    if op == WAIT:
        chunk = program.row(of)[1]
    return tuple(dict.fromkeys(part.request for part in plan.chunks[chunk].parts))


def described(error: BaseException) -> str:
    """What happened, in a line or two."""
    if isinstance(error, VppcError):
        return str(error)
    if out_of_memory(error):
        first = (str(error).splitlines() or [""])[0]
        return f"out of memory{f': {first}' if first else ''}\n  hint: smaller chunks, or fewer in flight"
    return f"{type(error).__name__}: {error}"


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python's, the CPU allocator's or a device's."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (
            isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))
        )
    )
