"""The witness of a folded server: whom it accuses of what, by the beats on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue

import pytest
from worlds import eventually

from runtime.beats import Limits
from runtime.faults import Position, State
from runtime.vllm_plugin.page import Page, RankBeat
from runtime.vllm_plugin.settings import Fold
from runtime.vllm_plugin.witness import Witness, limits_of, start_beating

BUSY, WAITING, IDLE, THROUGH = State
LIMITS = Limits.apart(8.0, 20.0)


class Told:
    """Three processes, which a witness looks at twice a second. Each says where it stands, and since when."""

    def __init__(self, folder: Path) -> None:
        self.page = Page(folder / "page", 3, create=True)
        self.witness = Witness(self.page, LIMITS, lambda accused: None)
        self.now, self._count = 100.0, 0

    def after(self, seconds: float, *states: State | None) -> dict[int, str]:
        """What the witness says when they have stood there for so long; who is None does not beat."""
        start = self.now
        while True:
            self._count += 1
            for process, state in enumerate(states):
                if state is not None:
                    self.page.put_beat(process, RankBeat(self._count, state, self.now - start))
            found = self.witness.look(self.now)
            if found or self.now - start >= seconds:
                return found
            self.now += 0.5


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.page.remove()


def test_who_is_stopped(told: Told) -> None:
    """Whatever it did, and whatever the others do."""
    assert told.after(3.0, BUSY, BUSY, BUSY) == {}
    assert told.after(8.0, IDLE, None, WAITING) == {}
    assert told.after(0.5, IDLE, None, WAITING) == {1: "has given no sign of life for 8 s"}


def test_who_is_stuck(told: Told) -> None:
    """A long FORWARD beats, and may take as long as the limit; who waits for it is not to blame."""
    assert told.after(20.0, WAITING, BUSY, THROUGH) == {}
    assert told.after(21.0, WAITING, BUSY, THROUGH) == {1: "has not gone on for 20 s"}


def test_who_waits_for_nobody(told: Told) -> None:
    """All of those that have something to run, or else somebody is going to end it."""
    assert told.after(21.0, WAITING, WAITING, IDLE) == {}
    assert told.after(21.0, WAITING, THROUGH, WAITING) == dict.fromkeys((0, 2), "has not gone on for 20 s")


def test_nobody_has_anything_to_run(told: Told) -> None:
    assert told.after(100.0, THROUGH, IDLE, THROUGH) == {}


def test_it_was_itself_stopped(told: Told) -> None:
    """Or all of the machine was: then nobody has beaten, and nobody is to blame."""
    assert told.after(1.0, BUSY, BUSY, BUSY) == {}
    told.now += 1000.0
    assert told.after(8.0, BUSY, None, BUSY) == {}
    assert told.after(0.5, BUSY, None, BUSY) == {1: "has given no sign of life for 8 s"}


def test_processes_beat_and_are_accused_when_they_do_not(tmp_path: Path) -> None:
    page, limits = Page(tmp_path / "page", 2, create=True), Limits.apart(0.4, 100.0)
    heard: SimpleQueue[Mapping[int, str]] = SimpleQueue()
    position = Position(0)
    position.prepare("computing", State.BUSY)
    start_beating(page, 0, position, limits)
    witness = Witness(page, limits, heard.put)
    witness.start()
    assert heard.get(timeout=60.0) == {1: "has given no sign of life for 0.4 s"}
    eventually(lambda: page.beats()[0].since > 0.1 or None)
    before = page.beats()[0]
    assert before.state == State.BUSY
    position.prepare("computing on", State.WAITING)
    eventually(lambda: page.beats()[0].state == State.WAITING or None)
    assert page.beats()[0].count > before.count


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Fold(), Limits(0.5, 2.0, 30.0, 240.0)),
        (Fold(silence=2.0, stall=3.0), Limits(0.25, 1.0, 2.0, 3.0)),
    ],
    ids=["as many as vLLM's own limit lets be known", "asked for"],
)
def test_limits(asked: Fold, expected: Limits) -> None:
    assert limits_of(asked, 300) == expected
