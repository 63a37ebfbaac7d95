"""How a run ends when something goes wrong: one message that names the rank, its instruction and its request."""

from __future__ import annotations

from enum import IntEnum

from runtime.devices.protocol import Progress
from vppc.errors import VppcError
from vppc.ir.assembly import instruction_lines
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.ir.schedule import Schedule


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
    """Nothing: it reads a model, or waits for a request to arrive, and that takes as long as it takes."""
    THROUGH = 3
    """Nothing: it has finished."""


class Position:
    """Where a process stands. Its main thread writes, the watchdog's threads read and put it in words.

    Before a program ``doing`` says what is done, and ``state`` how long that may take; in a program the
    interpreter sets ``index``, and ``idle`` while it waits for a request to arrive.
    """

    __slots__ = ("doing", "idle", "index", "progress", "rank", "schedule", "state", "tp", "tp_rank")

    def __init__(self, rank: int, tp_rank: int = 0, tp: int = 1) -> None:
        self.rank, self.tp_rank, self.tp = rank, tp_rank, tp
        self.schedule: Schedule | None = None
        self.progress: Progress | None = None
        self.index, self.idle = -1, False
        self.doing, self.state = "meeting the others", State.WAITING

    def prepare(self, doing: str, state: State) -> None:
        """The process does something that is not in the program."""
        self.index, self.doing, self.state = -1, doing, state

    def enter(self, schedule: Schedule, progress: Progress | None) -> None:
        """The process begins the rank's program of ``schedule``; a device that queues it tells how far it is."""
        self.schedule, self.progress, self.index = schedule, progress, 0

    def where(self) -> int | None:
        """The index of the instruction, as many as there are at the end of the program, None before it."""
        index, progress = self.index, self.progress
        if index < 0 or self.schedule is None:
            return None
        queued = progress.unfinished() if progress is not None else None
        return index if queued is None else queued

    def read(self) -> tuple[State, str]:
        """The state, and where, for example ``instruction 17 of 61, FORWARD c3 s2 b0 -> b1 (request r0)``."""
        index, schedule = self.where(), self.schedule
        if index is None or schedule is None:
            return self.state, f"its start, {self.doing}"
        program = schedule.programs[self.rank]
        if index >= len(program):
            return State.THROUGH, "the end of its program"
        state = State.WAITING if program.row(index)[0] == WAIT else State.IDLE if self.idle else State.BUSY
        words = " ".join(next(instruction_lines(schedule, program, index, index + 1)).split()[1:])
        names = [schedule.requests[request].id for request in requests_at(schedule, self.rank, index)]
        named = f" ({'request' if len(names) == 1 else 'requests'} {', '.join(names)})" if names else ""
        return state, f"instruction {index} of {len(program)}, {words}{named}"

    def __str__(self) -> str:
        """For example ``rank 1 at instruction 17 of 61, FORWARD c3 s2 b0 -> b1 (request r0)``."""
        who = f"rank {self.rank}" if self.tp == 1 else f"rank {self.rank} (tp rank {self.tp_rank})"
        return f"{who} at {self.read()[1]}"

    @property
    def requests(self) -> tuple[int, ...]:
        """The requests that the current instruction is about."""
        index, schedule = self.where(), self.schedule
        if index is None or schedule is None or index >= len(schedule.programs[self.rank]):
            return ()
        return requests_at(schedule, self.rank, index)

    @property
    def depends(self) -> bool:
        """Whether other processes can make what is done here fail."""
        index, schedule = self.where(), self.schedule
        if self.tp > 1 or not self.running or index is None or schedule is None:
            return True
        return schedule.programs[self.rank].row(index)[0] not in (FORWARD, SAMPLE)

    @property
    def running(self) -> bool:
        """Whether an instruction of the program is under way."""
        index, schedule = self.where(), self.schedule
        return index is not None and schedule is not None and index < len(schedule.programs[self.rank])


def requests_at(schedule: Schedule, rank: int, index: int) -> tuple[int, ...]:
    """The requests, by index, with parts in the chunk of a rank's instruction, or of the transfer it waits for."""
    program = schedule.programs[rank]
    op, chunk, _, of, _, _ = program.row(index)
    if op == WAIT:
        chunk = program.row(of)[1]
    return tuple(dict.fromkeys(part.request for part in schedule.chunks[chunk].parts))


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
