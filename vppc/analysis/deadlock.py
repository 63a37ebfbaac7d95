"""Whether programs run to their end, by blocking alone: who waits for what, and where nobody can go on.

A rank blocks only at a WAIT, and a WAIT needs only that something was posted: the other end of its transfer
(rendezvous), or, where sends complete alone (eager), the SEND of a receive. Posting never fails and nothing is
ever un-posted, so a rank that can go on stays able to (the programs are a Kahn network): every interleaving
comes to the same end, and running each rank as far as it goes, again when a rank it waits for has moved, finds
that end in time linear in the WAITs. What is needed of the channels' order is in the programs: whoever has
posted transfer i of a channel has posted all before it.

A program that ends under rendezvous ends under eager too, which needs less.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vppc.ir.instruction import SEND, WIDTH


@dataclass(frozen=True, slots=True)
class Track:
    """One rank: its ``code`` as in a Program, the indices of its ``waits``, ascending, and for every SEND and
    RECV its ``partner``, the index of the peer's instruction that posts the other end, or -1 if none does."""

    code: array[int]
    waits: array[int]
    partner: array[int]

    def needs(self, wait: int) -> tuple[int, int]:
        """What a WAIT needs: a rank, and the instruction that it must have posted (-1: one not in its list)."""
        of = self.code[wait * WIDTH + 3]
        return self.code[of * WIDTH + 4], self.partner[of]

    def __len__(self) -> int:
        return len(self.code) // WIDTH


class Blocked(NamedTuple):
    """``rank`` waits at instruction ``wait`` for ``peer`` to post its instruction ``post``."""

    rank: int
    wait: int
    peer: int
    post: int


@dataclass(slots=True)
class Progress:
    """How far every rank has come: it has run its first ``reached`` instructions.

    The tracks may grow between two runs.
    """

    tracks: Sequence[Track]
    reached: list[int] = field(init=False)
    passed: list[int] = field(init=False)  # how many of a rank's WAITs it has run

    def __post_init__(self) -> None:
        self.reached = [0] * len(self.tracks)
        self.passed = [0] * len(self.tracks)

    def run(self) -> list[tuple[int, int]]:
        """Run every rank as far as it goes; return one possible order of that, as (rank, reached) steps."""
        steps: list[tuple[int, int]] = []
        waiting: list[list[int]] = [[] for _ in self.tracks]  # rank -> ranks that wait for it
        ready = deque(range(len(self.tracks)))
        while ready:
            rank = ready.popleft()
            before = self.reached[rank]
            peer = self._advance(rank)
            if peer is not None:
                waiting[peer].append(rank)
            if self.reached[rank] > before:
                steps.append((rank, self.reached[rank]))
                ready.extend(waiting[rank])
                waiting[rank].clear()
        return steps

    def _advance(self, rank: int) -> int | None:
        """Run a rank to the next WAIT that blocks, and return whom that waits for; None at the end of the list."""
        track, reached = self.tracks[rank], self.reached
        code, waits, partner = track.code, track.waits, track.partner
        for number in range(self.passed[rank], len(waits)):
            wait = waits[number]
            of = code[wait * WIDTH + 3]
            post, peer = partner[of], code[of * WIDTH + 4]
            if post < 0 or reached[peer] <= post:
                self.passed[rank], reached[rank] = number, wait
                return peer
        self.passed[rank], reached[rank] = len(waits), len(track)
        return None

    def blocked(self) -> list[Blocked]:
        """The ranks that cannot go on, after a run, each with the one WAIT that holds it."""
        return [
            Blocked(rank, self.reached[rank], *track.needs(self.reached[rank]))
            for rank, track in enumerate(self.tracks)
            if self.reached[rank] < len(track)
        ]


def wait_cycles(blocked: Sequence[Blocked]) -> list[list[Blocked]]:
    """The circles in which ranks wait for each other, each from its lowest rank on.

    A blocked rank waits for exactly one other, so following that leads to a circle or to a rank that waits for
    a transfer nobody has posted.
    """
    at = {each.rank: each for each in blocked if each.post >= 0}
    cycles = []
    seen: set[int] = set()
    for start in at:
        path: list[int] = []
        rank = start
        while rank in at and rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = at[rank].peer
        if rank in path:
            circle = path[path.index(rank) :]
            first = circle.index(min(circle))
            cycles.append([at[each] for each in circle[first:] + circle[:first]])
    return cycles


def eager(track: Track) -> Track:
    """The same rank where a SEND completes alone: its WAIT never blocks."""
    code = track.code
    receives = (wait for wait in track.waits if code[code[wait * WIDTH + 3] * WIDTH] != SEND)
    return replace(track, waits=array("i", receives))
