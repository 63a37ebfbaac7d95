"""The board: what the processes of a run tell each other, in the store that they share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from runtime.faults import State
from runtime.peers import Peer


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process last said of itself.

    ``count`` is how often it has beaten, ``place`` where it stands in words, ``since`` for how many seconds it has
    stood there.
    """

    count: int
    state: State
    since: float
    place: str
    peer: Peer

    def encode(self) -> str:
        peer = self.peer
        return json.dumps([self.count, self.state, self.since, self.place, [peer.machine, peer.pid, peer.started]])

    @classmethod
    def decode(cls, text: bytes) -> Beat:
        count, state, since, place, peer = json.loads(text)
        return cls(count, State(state), since, place, Peer(*peer))


class Verdict(NamedTuple):
    """Why a run ends early, and the exit status of all its processes."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Notices:
    """What stands on the board: everybody's last beat, why the run ends (None while it goes on), and the requests to
    cancel, each as (number of the run, request)."""

    beats: tuple[Beat, ...]
    verdict: Verdict | None
    cancelled: tuple[tuple[int, int], ...]


class Board:
    """One process's access to the board. ``store`` is a connection that nobody else uses; every call may block."""

    def __init__(self, store: Any, process: int, size: int) -> None:
        self._store, self._process = store, process
        self._keys = [f"beat/{each}" for each in range(size)] + ["verdict", "cancel"]

    def open(self, beat: Beat) -> None:
        """Write this process's first beat; when all have, :meth:`exchange` finds them."""
        self._store.set(f"beat/{self._process}", beat.encode())
        self._store.append("verdict", "")
        self._store.append("cancel", "")

    def arrived(self) -> list[bool]:
        """For every process, whether it has opened the board."""
        return [bool(self._store.check([key])) for key in self._keys[:-2]]

    def exchange(self, beat: Beat) -> Notices:
        """Write this process's beat and read what stands there, in two messages."""
        self._store.set(f"beat/{self._process}", beat.encode())
        *beats, verdict, cancel = self._store.multi_get(self._keys)
        pairs = (pair.split(":") for pair in cancel.decode().split())
        return Notices(
            tuple(map(Beat.decode, beats)),
            Verdict(*json.loads(verdict)) if verdict else None,
            tuple((int(run), int(request)) for run, request in pairs),
        )

    def settle(self, verdict: Verdict) -> None:
        """Say why the run ends, unless somebody has said so before."""
        self._store.compare_set("verdict", "", json.dumps(verdict))

    def verdict(self) -> Verdict | None:
        """Why the run ends, None while it goes on or has not begun; for a launcher."""
        said = self._store.get("verdict") if self._store.check(["verdict"]) else b""
        return Verdict(*json.loads(said)) if said else None

    def cancel(self, run: int, requests: tuple[int, ...]) -> None:
        """Ask all to cancel requests of the run with that number."""
        self._store.append("cancel", "".join(f"{run}:{request} " for request in requests))

    def leave(self) -> None:
        """Say that this process needs the board no more."""
        self._store.add("left", 1)

    def left(self) -> int:
        """How many processes have left."""
        return int(self._store.add("left", 0))
