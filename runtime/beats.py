"""Beats: what a process says of where it stands, and whom that blames when it is not heard, or does not go on.

Who stops beating is dead or stopped. Who beats but stays at one place is stalled; if it waits there, somebody else is
to blame.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from runtime.faults import Position, State


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds."""

    interval: float
    """Between beats."""
    quick: float
    """Of silence, that tell of a death when there is a sign of one already."""
    silence: float
    """Of silence, that tell of a death without any sign."""
    stall: float
    """At one instruction."""

    @classmethod
    def of(cls, timeout: float) -> Limits:
        """Those by which every process has ended within ``timeout`` after a fault."""
        return cls.apart(timeout / 4, timeout * 3 / 4)

    @classmethod
    def apart(cls, silence: float, stall: float) -> Limits:
        """Those with these two."""
        interval = min(0.5, silence / 8)
        return cls(interval, 4 * interval, silence, stall)


class Standing(Protocol):
    """What is known of a process: how often it has beaten, and for how many seconds it has stood where it stands."""

    @property
    def count(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def since(self) -> float: ...


S = TypeVar("S", bound=Standing)


class Pulse:
    """What a process says of itself at each beat, by its ``position``."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._count, self._standing, self._arrived = 0, (State.WAITING, ""), time.monotonic()

    def beat(self) -> tuple[int, State, float]:
        """The next beat, as in :class:`Standing`."""
        standing, now = self._position.read(), time.monotonic()
        if standing != self._standing:
            self._standing, self._arrived = standing, now
        self._count += 1
        return self._count, standing[0], now - self._arrived


class Hearing(Generic[S]):
    """What was heard of all processes. ``spoke`` is when there was something to hear last.

    Who hears nothing for a while, because it was itself stopped, blames nobody for that while.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spoke = 0.0
        self._heard: list[tuple[S, float]] = []  # the newest beat of each process, and when it was new

    @property
    def newest(self) -> list[S]:
        """The newest beat of each process; none before the first."""
        return [beat for beat, _ in self._heard]

    def hear(self, beats: Sequence[S], now: float) -> None:
        """The beats of all processes, as they stand now."""
        known = self._heard
        if not known or now - self.spoke > self.limits.quick:  # this process heard nothing: no fault of the others
            self._heard = [(beat, now) for beat in beats]
        else:
            self._heard = [
                (beat, now if beat.count != old.count else heard)
                for beat, (old, heard) in zip(beats, known, strict=True)
            ]
        self.spoke = now

    def silent(self, seconds: float) -> list[int]:
        """The processes that were not heard for so long, while there was something to hear."""
        return [process for process, (_, heard) in enumerate(self._heard) if self.spoke - heard > seconds]

    def stalled(self) -> list[int]:
        """The processes to blame for no progress: those who are stuck; or, when all wait, everybody."""
        beats = [(process, beat) for process, beat in enumerate(self.newest) if beat.state != State.THROUGH]
        long = [
            (process, beat) for process, beat in beats if beat.state != State.IDLE and beat.since > self.limits.stall
        ]
        stuck = [process for process, beat in long if beat.state == State.BUSY]
        return stuck or ([process for process, _ in long] if len(long) == len(beats) else [])
