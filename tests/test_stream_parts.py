"""The parts of a rank's side of a stream by themselves, in one process: what is fed, what grows, what is reported."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.edits import by_hand
from tests.serving_streams import Stream, stream
from vppc.errors import InputError
from vppc.ir.document import digest, schedule_text, segment_text
from vppc.ir.schedule import Chunk, Part, Request
from vppc.ir.segment import Segment

pytest.importorskip("torch")

from runtime.clock import Clock
from runtime.faults import Position, RunFailed, State
from runtime.interpreter import Cancellation, Token
from runtime.stream import BEAT, CANCEL, CLOSE, Feed, Growing, Report, Reporter


class Mail:
    """An inbox with these messages, and then silence; an outbox that keeps what is sent."""

    def __init__(self, messages: Sequence[str] = ()) -> None:
        self.messages = [message.encode() for message in messages]
        self.count = 0
        self.sent: list[Report] = []

    def receive(self, seconds: float) -> bytes:
        if self.count == len(self.messages):
            raise RuntimeError(f"nothing within {seconds} s")
        self.count += 1
        return self.messages[self.count - 1]

    def send(self, data: bytes) -> None:
        self.sent.append(Report.decode(data))


def texts(each: Stream) -> list[str]:
    """The opening schedule and the segments, as they are sent."""
    return ["".join(schedule_text(each.compiler.opening())), *("".join(segment_text(one)) for one in each.segments)]


def fed(messages: Sequence[str], cancelled: list[int] | None = None) -> Feed:
    mail: Any = Mail(messages)
    return Feed(mail, 5.0, (cancelled if cancelled is not None else []).append)


def served() -> Stream:
    each = stream("cpp", 2)
    for number in range(3):
        each.compiler.add(Request(f"r{number}", 20), 1000.0 * number)
        each.advance(1000.0 * number + 900.0)
    each.close()
    assert len(each.segments) >= 3
    return each


def test_what_is_fed() -> None:
    each = served()
    opening, *segments = texts(each)
    cancelled: list[int] = []
    feed = fed([BEAT, BEAT, opening, segments[0], BEAT, f"{CANCEL}12", *segments[1:], CLOSE], cancelled)
    loaded = feed.open()
    assert loaded.schedule == replace(each.compiler.opening(), order=None)
    assert loaded.digest == digest(opening.encode())
    assert [feed.take() for _ in each.segments] == each.segments
    assert feed.take() is None
    assert cancelled == [12]
    assert feed.count == len(segments) + 6


def test_a_coordinator_that_says_nothing_more() -> None:
    with pytest.raises(RunFailed, match=r"^the coordinator is dead or stopped: it has said nothing for 5 s$"):
        fed([BEAT]).open()
    each = served()
    feed = fed(texts(each)[:2])
    feed.open()
    assert feed.take() == each.segments[0]
    with pytest.raises(RunFailed, match="said nothing for 5 s"):
        feed.take()


def test_what_is_no_segment_ends_what_is_fed() -> None:
    opening, first, *_ = texts(served())
    feed = fed([opening, first.replace('"tokens"', '"token"'), CLOSE])
    feed.open()
    feed._thread.join()  # it has said why it ends, or the rank would wait for ever
    assert not feed._segments.empty()
    with pytest.raises(InputError, match=r"^the stream: is no segment that can be run: KeyError\('tokens'\)"):
        feed.take()


def test_who_waits_for_more_looks_what_a_device_has_finished() -> None:
    each = served()
    feed = fed([*texts(each)[:2], CLOSE])
    looks: list[int] = []
    feed.settled = lambda: bool(looks.append(len(looks)) or len(looks) > 3)  # type: ignore[func-returns-value]
    feed.open()
    feed._thread.join()
    assert feed.take() == each.segments[0] and len(looks) == 1  # there is one already
    feed._segments.get()
    threading.Timer(0.2, feed._segments.put, [None]).start()
    assert feed.take() is None and len(looks) == 4


def test_what_does_not_follow() -> None:
    each = served()
    opening, first, second, *_ = texts(each)
    other = "".join(segment_text(replace(each.segments[1], previous="0" * 64)))
    name, last = digest(opening.encode())[:12], digest(first.encode())[:12]
    for messages, said in (
        ([second], f"segment 2 behind {last} was sent, where segment 1 behind {name} comes next"),
        ([first, first], f"segment 1 behind {name} was sent, where segment 2 behind {last} comes next"),
        ([first, other], f"segment 2 behind 000000000000 was sent, where segment 2 behind {last} comes next"),
    ):
        feed = fed([opening, *messages, CLOSE])
        feed.open()
        for _ in messages[1:]:
            feed.take()
        with pytest.raises(RunFailed) as caught:
            feed.take()
        assert str(caught.value) == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("vppc.segment", "vppc.segments", "it is not a vppc.segment of version 1"),
        ('"previous": "', '"previous": 7, "was": "', "7 is no text"),
    ],
    ids=["format", "previous"],
)
def test_what_is_no_segment(old: str, new: str, said: str) -> None:
    opening, segment, *_ = texts(served())
    feed = fed([opening, segment.replace(old, new, 1)])
    feed.open()
    with pytest.raises(InputError) as refused:
        feed.take()
    assert str(refused.value) == f"the stream: is no segment that can be run: ValueError('{said}')"


def test_decodes_are_streamed_where_the_opening_says_so() -> None:
    growing, _ = grown([Segment(1, "", (), (Chunk((Part(0, 4, 1, True),)),))])
    with pytest.raises(RunFailed, match="chunk 2 decodes, which is not streamed"):
        list(growing.rows())


def test_an_opening_must_say_how_large_buffers_are() -> None:
    opening = served().compiler.opening()
    extra = {key: value for key, value in opening.extra.items() if key != "buffer_tokens"}
    with pytest.raises(InputError, match="buffer_tokens"):
        fed(["".join(schedule_text(replace(opening, extra=extra)))]).open()


def grown(segments: Sequence[Segment], cancellation: Cancellation | None = None) -> tuple[Growing, list[int]]:
    """Rank 0 of the schedule by hand, behind which these segments come, and what it has released."""
    rest, released = iter(segments), []  # type: tuple[Any, list[int]]
    position = Position(0)
    growing = Growing(by_hand(), 0, lambda: next(rest, None), position, cancellation or Cancellation())
    growing.attach(released.append, None)
    position.enter(growing, None)
    return growing, released


def test_what_an_opening_holds_is_run() -> None:
    growing, _ = grown([])
    assert (len(growing), len(growing.requests), len(growing.chunks)) == (13, 1, 2)
    assert growing.loads[0].rows == 2 and growing.loads[1].sampled
    assert list(growing.rows()) == list(by_hand().programs[0].rows())


def test_cancelled_before_it_is_in_a_chunk() -> None:
    """It is released and forgotten at once, whatever is said of it again."""
    come = Segment(1, "", requests=(Request("a", 8), Request("b", 8)))
    growing, released = grown([come, *(Segment(number, "", extra={"cancelled": [2, 0]}) for number in (2, 3))])
    list(growing.rows())
    assert released == [2]
    assert [request.id for request in growing.requests] == ["a"]
    assert 0 not in growing.requests and 1 in growing.requests and 2 not in growing.requests
    assert growing._ended == set()


def test_who_has_gone_is_no_longer_noted_as_cancelled() -> None:
    cancellation = Cancellation()
    for request in (0, 1, 9):
        cancellation.now(request)
    growing, _ = grown([Segment(1, "", requests=(Request("a", 8),)), Segment(2, "")], cancellation)
    list(growing.rows())
    assert cancellation.at == {1: 0, 9: 0}  # one is there, one has not come yet


def test_where_a_growing_rank_stands() -> None:
    growing, _ = grown([])
    position = growing._position
    rows = growing.rows()
    next(rows)
    assert position.more and position.read()[0] is State.BUSY
    list(rows)
    assert not position.more and position.index == 13
    assert position.read() == (State.THROUGH, "the end of its program")


def reported(mail: Mail, origin: float) -> Reporter:
    anything: Any = mail
    reporter = Reporter(anything, 3, 1, Clock(100.0, 0.5), anything)
    reporter.origin, reporter.prefixes, reporter.longest = origin, True, 8
    return reporter


def test_what_is_reported() -> None:
    mail = Mail()
    mail.count = 7
    reporter = reported(mail, 50.0)
    reporter.add(1.0000126, 2.0)  # on this process's clock
    reporter.report(103.0, 104.0)  # on that of all
    reporter.deliver(Token(5, 17, 0.0))
    reporter.close()
    told = [time for report in mail.sent for time in report.times]
    assert told == [51.000013, 52.0, 53.0, 54.0]
    for before, after in zip(mail.sent, mail.sent[1:], strict=False):
        assert after.first == before.first + len(before.times) // 2
    assert mail.sent[0].first == 0
    assert [report.done for report in mail.sent] == [False] * (len(mail.sent) - 1) + [True]
    ((request, token, when),) = [token for report in mail.sent for token in report.tokens]
    assert (request, token) == (5, 17)
    assert when <= mail.sent[-1].now and round(when, 6) == when
    last = mail.sent[-1]
    assert (last.process, last.rank, last.read, last.clock) == (3, 1, 7, [100.0, 0.5])
    assert last.running and last.prefixes and last.longest == 8


def test_before_the_start_nothing_runs() -> None:
    mail = Mail()
    reported(mail, 0.0).close()
    assert not mail.sent[-1].running


def test_half_of_an_instruction_is_not_told() -> None:
    mail = Mail()
    reporter = reported(mail, 50.0)
    reporter._times += [1.0, 2.0, 3.0]
    report = reporter._said(False)
    assert (report.times, report.first, reporter._first) == ([51.0, 52.0], 0, 1)
    assert reporter._times == [3.0]
    reporter._times.clear()
    reporter.close()


def test_a_coordinator_that_hears_nothing_more() -> None:
    mail = Mail()

    def lost(data: bytes) -> None:
        raise RuntimeError("connection reset")

    mail.send = lost  # type: ignore[method-assign]
    with pytest.raises(RunFailed, match="the coordinator is dead or stopped: connection reset"):
        reported(mail, 50.0).close()
