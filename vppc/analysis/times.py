"""When everything happens: what every simulation, and every measured run, results in.

Times are seconds on one clock that starts at 0; requests arrive on the same clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vppc.errors import CheckFailed, Finding
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Transfers:
    """The transfers of one channel; every list is indexed by the transfer's number on the channel.

    ``sends`` and ``recvs`` are the instructions that post it, as indices in the programs of the channel's
    source and destination, and ``send_posted`` and ``recv_posted`` when they do. It is under way from
    ``starts`` to ``ends``. A transfer that only one end has posted, at the end of an open stream, has no start.
    """

    sends: list[int] = field(default_factory=list)
    recvs: list[int] = field(default_factory=list)
    send_posted: list[float] = field(default_factory=list)
    recv_posted: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timing:
    """Start and end of every instruction, ``[rank][index]``, and the transfers of every channel.

    A SEND or RECV starts and ends when it is posted; a WAIT starts when its rank reaches it.
    """

    starts: tuple[list[float], ...]
    ends: tuple[list[float], ...]
    transfers: tuple[Transfers, ...]

    @classmethod
    def empty(cls, schedule: Schedule) -> Timing:
        """A timing with a place for every rank and channel of a schedule, for a simulator to fill."""
        ranks = range(len(schedule.programs))
        return cls(tuple([] for _ in ranks), tuple([] for _ in ranks), tuple(Transfers() for _ in schedule.channels))


def stopped(schedule: Schedule, waiting: Sequence[int | None]) -> CheckFailed:
    """The error for programs that cannot go on: ``waiting[rank]`` is the instruction a rank's WAIT is of, if any.

    A simulation presumes a verified schedule and says only where it stopped; the verifier explains why.
    """
    return CheckFailed(
        tuple(
            Finding(
                "D1",
                f"rank {rank}",
                f"waits forever for the transfer of its instruction {of}, {schedule.programs[rank][of]}",
                "run `vppc verify` on the schedule: it names the cycle of waits, and what breaks it",
            )
            for rank, of in enumerate(waiting)
            if of is not None
        )
    )
