"""The coordinator by itself, on a clock of the test's: what it makes of reports, and that nothing keeps it busy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from runtime.stream import Report
from tests.serving_streams import COST, header, stream
from vppc.ir.schedule import Request
from vppc.serving import coordinator as coordinator_module
from vppc.serving.batching import Limits
from vppc.serving.coordinator import CLOCK_DRIFT, Coordinator
from vppc.serving.drift import Drift
from vppc.serving.lines import Line


class Absent:
    """Two ranks that are told everything, and do nothing."""

    size, timeout = 2, 60.0

    def send(self, text: str) -> None: ...
    def cancel(self, request: int) -> None: ...
    def heard(self, report: Report) -> None: ...
    def beat(self) -> None: ...
    def check(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The coordinator's clock, in seconds."""
    now = [0.0]
    monkeypatch.setattr(coordinator_module.time, "monotonic", lambda: now[0])
    return now


def coordinated(out: list[Mapping[str, Any]]) -> Coordinator:
    ranks: Any = Absent()
    compiler = stream("cpp", 2, Limits(chunk_size=8)).compiler
    return Coordinator(compiler, ranks, Drift(header("cpp", 2), COST), out.append, lambda text: None)


def test_the_clock_of_a_rank_that_drifts_away_from_that_of_the_others_is_followed(clock: list[float]) -> None:
    """Rank 0's is ahead by more and more: what rank 1 says is nevertheless taken for when it was."""
    out: list[Mapping[str, Any]] = []
    each = coordinated(out)

    def say(rank: int, tokens: list[tuple[int, int, float]]) -> None:
        theirs = 1000.0 + clock[0] * (1.0 + (rank == 0) * CLOCK_DRIFT)
        each._handle(Report(rank, rank, 0, 0, [], tokens, theirs, (0.0, 0.0), True, False, True))

    for second in range(10_000):  # after which it is a second
        clock[0] = float(second)
        say(0, [])
        say(1, [])
    each._add(Request("a", 8, arrival=clock[0]), clock[0])
    each._send(each._compiler.advance(clock[0]))
    made = 1000.0 + clock[0] + 0.25
    clock[0] += 0.5
    say(1, [(0, 7, made)])
    assert out == [{"id": "a", "token": 7, "ttft": pytest.approx(0.25, abs=2 * CLOCK_DRIFT)}]


def test_who_says_more_and_more_does_not_keep_the_ranks_waiting(clock: list[float]) -> None:
    """Of one pass is what was there; what is said meanwhile is of the next."""
    out: list[Mapping[str, Any]] = []
    each = coordinated(out)

    def more(document: Mapping[str, Any]) -> None:
        out.append(document)
        if len(out) < 50:
            each._events.put(Line(len(out), b"wrong"))

    each._write = more
    for number in range(3):
        each._events.put(Line(number, b"wrong"))
    clock[0] = 1.0
    each._pass(0.0)
    assert len(out) <= 4 and each._events.qsize() == 3
    assert each._beat == 1.0


def test_a_prompt_that_the_ranks_do_not_take_is_refused(clock: list[float]) -> None:
    out: list[Mapping[str, Any]] = []
    each = coordinated(out)
    for process, longest in enumerate((100, None)):
        each._handle(Report(process, process, 0, 0, [], [], 0.0, (0.0, 0.0), True, False, True, longest))
    for tokens in (101, 100):
        each._handle(Line(tokens, b'{"id": "a", "prompt_tokens": %d}' % tokens))
        each._take_due(0.0)
    error = "101 tokens are more than the 100 that these ranks' model takes\n  hint: a shorter prompt"
    assert out == [{"line": 101, "id": "a", "error": error}]
    assert each.served.accepted == 1
