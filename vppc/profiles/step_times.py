"""Where the time of a step went on one rank, in a profiler's terms and in the paper's.

A profiler adds up intervals in which a rank computes, communicates, does both or neither. torch_npu's columns mean

=================================================  ====================================================================
Computing                                          some kernel runs
Communication                                      some communication operator runs, receives and their waiting included
Overlapped                                         both: hidden communication
Communication(Not Overlapped)                      communication alone: the paper's exposed communication
Bubble                                             time in ``hcom_receive*``: waiting for the rank before, and its data
Communication(Not Overlapped and Exclude Receive)  exposed communication without Bubble
Free                                               neither: the paper's free time
Stage                                              from the first to the last kernel, without Bubble
Preparing                                          before the first kernel; the paper's launch stall (newer versions)
=================================================  ====================================================================

So the paper's *bubble* is Free and Preparing, not the column of that name, and what a rank waits in a receive is
exposed communication to both. In every real file, to rounding::

    Computing + Communication(Not Overlapped) + Free = Stage + Bubble
    Communication(Not Overlapped) + Overlapped = Communication
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ROUNDING = 1e-6
"""Seconds, and as much of a whole, by which identities may miss: profilers keep times since 1970 in 64-bit floats."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step of a rank; ``place`` is where they were read.

    ``exposed`` is all communication that no compute hides, ``receive`` the time in receives, ``overlapped`` the
    hidden communication. ``preparing`` is None where the profiler does not tell.
    """

    place: str
    step: str
    computing: float
    exposed: float
    overlapped: float
    communication: float
    free: float
    stage: float
    receive: float
    exposed_without_receive: float
    preparing: float | None = None

    @property
    def launch_stall(self) -> float:
        """Seconds before the first kernel; 0 where they are not known."""
        return self.preparing or 0.0

    @property
    def bubble(self) -> float:
        """The paper's bubble: launch stall and free."""
        return self.launch_stall + self.free

    @property
    def total(self) -> float:
        """All seconds of the step."""
        return self.computing + self.exposed + self.bubble

    @property
    def bubble_ratio(self) -> float:
        """The part of the step that is bubble."""
        return self.bubble / self.total if self.total else 0.0

    @property
    def overlap_ratio(self) -> float:
        """The part of communication that compute hides."""
        return self.overlapped / self.communication if self.communication else 0.0

    def broken_identities(self) -> Iterator[tuple[str, float]]:
        """The identities that do not hold, and by how many seconds."""
        whole = self.stage + self.receive
        for name, left, right in (
            (
                "Computing + Communication(Not Overlapped) + Free = Stage + Bubble",
                self.computing + self.exposed + self.free,
                whole,
            ),
            (
                "Communication(Not Overlapped) + Overlapped = Communication",
                self.exposed + self.overlapped,
                self.communication,
            ),
            (
                "Communication(Not Overlapped) = Bubble + Communication(Not Overlapped and Exclude Receive)",
                self.exposed,
                self.receive + self.exposed_without_receive,
            ),
        ):
            if abs(left - right) > ROUNDING * (1.0 + whole):
                yield name, left - right
