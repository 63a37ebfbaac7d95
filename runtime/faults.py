"""How a run ends when something goes wrong: one message that names the rank, its instruction and its request."""

from __future__ import annotations

from vppc.errors import VppcError
from vppc.ir.assembly import instruction_lines
from vppc.ir.instruction import WAIT
from vppc.ir.schedule import Schedule


class RunFailed(VppcError):
    """A run that cannot go on; the message names who failed where."""

    exit_status = 1


class Places:
    """Says in words where a rank stands in its program."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __call__(self, rank: int, index: int) -> str:
        """For example ``rank 1 at instruction 17 of 61, FORWARD c3 s2 b0 -> b1 (request r0)``."""
        program = self.schedule.programs[rank]
        if index < 0:
            return f"rank {rank} before its first instruction"
        if index >= len(program):
            return f"rank {rank} at the end of its program"
        words = " ".join(next(instruction_lines(self.schedule, program, index, index + 1)).split()[1:])
        text = f"rank {rank} at instruction {index} of {len(program)}, {words}"
        requests = self._requests(rank, index)
        return f"{text} ({'requests' if len(requests) > 1 else 'request'} {', '.join(requests)})" if requests else text

    def waits(self, rank: int, index: int) -> bool:
        """Whether the rank is at a WAIT, so that whoever it waits for is to blame."""
        program = self.schedule.programs[rank]
        return 0 <= index < len(program) and program.row(index)[0] == WAIT

    def _requests(self, rank: int, index: int) -> list[str]:
        program = self.schedule.programs[rank]
        op, chunk, _, of, _, _ = program.row(index)
        if op == WAIT:
            chunk = program.row(of)[1]
        parts = self.schedule.chunks[chunk].parts
        return list(dict.fromkeys(self.schedule.requests[part.request].id for part in parts))
