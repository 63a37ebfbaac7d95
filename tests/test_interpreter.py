"""The interpreter by itself: what it asks of runner, links, buffers and clock, instruction by instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.edits import by_hand
from vppc.ir.instruction import Forward, Instruction, Program, Recv, Sample, Wait
from vppc.ir.schedule import Chunk, Part, Request, Schedule

torch = pytest.importorskip("torch")

from runtime import interpreter as module  # noqa: E402
from runtime.clock import Clock  # noqa: E402
from runtime.faults import Position, RunFailed  # noqa: E402
from runtime.interpreter import Cancellation, Interpreter, Load, Token, loads_of  # noqa: E402

ROWS = 4


class Recorder:
    """A runner, links and a device's progress in one, that write down what they are asked."""

    payload = ()

    def __init__(self, position: Position) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.position = position
        self.fill = 1.0

    def prepare(self, chunk: int, skip: frozenset[int]) -> tuple[int, frozenset[int]]:
        self.log.append(("prepare", chunk, set(skip)))
        return chunk, skip

    def forward(self, stage: int, prepared: Any, inputs: Any, outputs: Any) -> None:
        self.log.append(("forward", prepared[0], stage, shape(inputs), shape(outputs)))
        if outputs is not None:
            outputs[0].fill_(self.fill)

    def sample(self, prepared: Any, inputs: Any) -> Sequence[tuple[int, int]]:
        self.log.append(("sample", prepared[0], shape(inputs)))
        return [(0, 41), (0, 42)]

    def release(self, request: int) -> None:
        self.log.append(("release", request))


class Link:
    """One end of a channel."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def send(self, tensors: Any) -> Link:
        return self._post("send", tensors)

    def recv(self, tensors: Any) -> Link:
        return self._post("recv", tensors)

    def wait(self) -> None:
        self.recorder.log.append(("wait", self.name, self.recorder.position.index))

    def _post(self, what: str, tensors: Any) -> Link:
        self.recorder.log.append((what, self.name, shape(tensors)))
        return Link(self.recorder, f"{self.name}{what}@{self.recorder.position.index}")


def shape(buffer: Any) -> Any:
    """(which buffer, how many of its rows), None for none."""
    return None if buffer is None else (int(buffer[0].untyped_storage().nbytes() // 4 // ROWS), len(buffer[0]))


def built(schedule: Schedule, rank: int, **more: Any) -> tuple[Interpreter, Recorder]:
    position = Position(rank)
    recorder = Recorder(position)
    # buffer b has b + 1 numbers a row, by which shape() knows it
    buffers = [(torch.zeros(ROWS, number + 1),) for number in range(schedule.programs[rank].buffers)]
    links: Mapping[int, Any] = {channel.id: Link(recorder, f"c{channel.id}") for channel in schedule.channels}
    loads = more.pop("loads", None) or loads_of(schedule, rank)
    clock = more.pop("clock", Clock(0.0, 0.0))
    made = Interpreter(
        schedule,
        rank,
        recorder,
        loads,
        links,
        buffers,
        clock,
        position=position,
        **more,  # type: ignore[arg-type]
    )
    return made, recorder


def ran(schedule: Schedule, rank: int, **more: Any) -> tuple[Interpreter, list[tuple[Any, ...]]]:
    interpreter, recorder = built(schedule, rank, **more)
    interpreter.run(interpreter.clock.now())
    return interpreter, recorder.log


def test_every_instruction_of_a_program() -> None:
    interpreter, log = ran(by_hand(), 0)
    assert log == [
        ("prepare", 0, set()),
        ("forward", 0, 0, None, (1, 2)),
        ("send", "c0", (1, 2)),
        ("recv", "c1", (2, 2)),
        ("prepare", 1, set()),
        ("forward", 1, 0, None, (3, 1)),
        ("wait", "c0send@1", 4),
        ("send", "c0", (3, 1)),
        ("wait", "c1recv@2", 6),
        ("forward", 0, 3, (2, 2), None),
        ("recv", "c1", (2, 1)),
        ("wait", "c0send@5", 9),
        ("wait", "c1recv@8", 10),
        ("forward", 1, 3, (2, 1), (1, 1)),
        ("sample", 1, (1, 1)),
        ("release", 0),
    ]
    assert [(token.request, token.token) for token in interpreter.tokens] == [(0, 41), (0, 42)]
    assert interpreter.posted == {}
    assert interpreter.position.index == 13
    assert not interpreter.position.running
    assert str(interpreter.position) == "rank 0 at the end of its program"


def test_the_rank_that_samples_nothing_lets_a_request_go_with_its_last_stage() -> None:
    _, log = ran(by_hand(), 1)
    assert log[-4:] == [
        ("forward", 1, 2, (1, 1), (2, 1)),
        ("release", 0),
        ("send", "c1", (2, 1)),
        ("wait", "c1send@10", 11),
    ]
    assert sum(each[0] == "release" for each in log) == 1


def test_what_was_prepared_is_let_go_with_the_chunk() -> None:
    for rank in (0, 1):
        interpreter, _ = ran(by_hand(), rank)
        assert interpreter._prepared == {}


class Hands:
    """A clock for the interpreter: every look at it takes a second."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        self.now += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands(100.0)
    monkeypatch.setattr(module, "time", made)
    return made


def test_tokens_are_delivered_with_their_time_since_the_arrival(hands: Hands) -> None:
    schedule = replace(by_hand(), requests=(Request("r0", 4, 1, arrival=0.5),))
    given: list[Token] = []
    interpreter, _ = built(schedule, 0, deliver=given.append, loads=loads_of(by_hand(), 0))
    interpreter.run(90.0)
    assert given == [Token(0, 41, 10.5), Token(0, 42, 10.5)]
    assert interpreter.tokens == []
    assert interpreter.seconds == 12.0


def test_times_count_from_an_origin_on_the_clock_of_process_0(hands: Hands) -> None:
    interpreter, _ = built(by_hand(), 0, clock=Clock(1000.0, 0.0))
    interpreter.run(1090.0)
    assert [token.seconds for token in interpreter.tokens] == [11.0, 11.0]
    assert interpreter.seconds == 12.0


def test_a_first_stage_waits_for_its_request_to_arrive(hands: Hands) -> None:
    loads = loads_of(by_hand(), 0)
    loads = {0: loads[0]._replace(arrival=11.5), 1: loads[1]._replace(arrival=30.0)}
    interpreter, recorder = built(by_hand(), 0, loads=loads)
    idle: list[bool] = []
    plain, sleep = recorder.forward, hands.sleep

    def forward(*arguments: Any) -> None:
        idle.append(interpreter.position.idle)
        plain(*arguments)

    def sleeping(seconds: float) -> None:
        idle.append(interpreter.position.idle)
        sleep(seconds)

    recorder.forward, hands.sleep = forward, sleeping  # type: ignore[method-assign]
    interpreter.run(90.0)
    assert hands.slept == [0.5, 17.5]  # at 101 until 101.5, and at 102.5 until 120
    assert idle == [True, False, True, False, False, False]
    exactly, _ = built(by_hand(), 0, loads={**loads, 1: loads[0]})
    exactly.run(hands.now + 1 - 11.5)
    assert hands.slept == [0.5, 17.5]


def test_only_first_stages_wait() -> None:
    schedule = replace(by_hand(), requests=(Request("r0", 4, 1, arrival=1e6),))
    interpreter, _ = ran(schedule, 1)
    assert interpreter.position.index == 12


class Kept:
    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def add(self, start: float, end: float) -> None:
        self.times.append((start, end))


def test_the_times_of_instructions(hands: Hands) -> None:
    times = Kept()
    interpreter, _ = built(by_hand(), 0, times=times)
    interpreter.run(100.0)
    sampled = (125.0, 127.0)  # which looks at the clock itself
    assert times.times == [*((float(at), at + 1.0) for at in range(101, 125, 2)), sampled]


class Device:
    """A progress that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append("end")

    def drain(self) -> None:
        self.calls.append("drain")

    def unfinished(self) -> int | None:
        return None


def test_a_device_that_queues_is_told_of_each_instruction_and_tells_the_times_itself() -> None:
    device, times = Device(), Kept()
    interpreter, log = ran(by_hand(), 0, progress=device, times=times)
    assert interpreter.position.progress is device
    assert device.calls == ["begin", "end"] * 13 + ["drain"]
    assert times.times == []
    assert log == ran(by_hand(), 0)[1]


def test_every_instruction_runs_in_its_mark() -> None:
    marked: list[Any] = []

    @contextmanager
    def mark(index: int) -> Iterator[None]:
        marked.append(index)
        yield
        marked.append(-index)

    _, log = ran(by_hand(), 1, mark=mark)
    assert marked == [each for index in range(12) for each in (index, -index)]
    assert log == ran(by_hand(), 1)[1]


def two_requests() -> Schedule:
    """One rank, one stage; chunk 0 ends r0 and begins r1, chunk 1 ends r1."""
    return replace(
        by_hand(),
        pp=1,
        vp=1,
        stages=(replace(by_hand().stages[0], layers=(0, 4)),),
        channels=(),
        requests=(Request("r0", 1), Request("r1", 3)),
        chunks=(Chunk((Part(0, 0, 1), Part(1, 0, 1))), Chunk((Part(1, 1, 2),))),
        programs=(Program.of(0, 1, [Forward(0, 0, None, 0), Sample(0, 0), Forward(1, 0, None, 0), Sample(1, 0)]),),
    )


def test_what_a_rank_has_to_know_of_chunks() -> None:
    assert loads_of(two_requests(), 0) == {
        0: Load(2, frozenset((0, 1)), [0], True),
        1: Load(2, frozenset((1,)), [1], True),
    }
    assert [load.sampled for load in loads_of(by_hand(), 0).values()] == [False, True]
    assert [load.sampled for load in loads_of(by_hand(), 1).values()] == [False, False]
    assert [load.leaving for load in loads_of(by_hand(), 1).values()] == [(), [0]]
    late = replace(by_hand(), requests=(Request("r0", 4, 1, arrival=3.0),))
    assert [load.arrival for load in loads_of(late, 0).values()] == [3.0, 3.0]


def test_a_cancelled_request_is_left_out_from_its_chunk_on() -> None:
    _, log = ran(two_requests(), 0, cancellation=Cancellation({1: 1}))
    assert log == [
        ("prepare", 0, set()),
        ("forward", 0, 0, None, (1, 2)),
        ("sample", 0, (1, 2)),
        ("release", 0),
        ("prepare", 1, {1}),
        ("release", 1),
    ]


def test_a_chunk_of_which_some_is_cancelled_is_computed() -> None:
    _, log = ran(two_requests(), 0, cancellation=Cancellation({0: 0}))
    assert [each[:3] for each in log] == [
        ("prepare", 0, {0}),
        ("forward", 0, 0),
        ("sample", 0, (1, 2)),
        ("release", 0),
        ("prepare", 1, set()),
        ("forward", 1, 0),
        ("sample", 1, (1, 2)),
        ("release", 1),
    ]


def test_cancelled_while_the_chunk_is_under_way() -> None:
    """What was prepared is prepared again without it."""
    cancellation = Cancellation()
    interpreter, recorder = built(by_hand(), 0, cancellation=cancellation)
    plain = recorder.forward

    def forward(stage: int, prepared: Any, *others: Any) -> None:
        plain(stage, prepared, *others)
        if stage == 0 and prepared[0] == 1:
            cancellation.now(0)

    recorder.forward = forward  # type: ignore[method-assign]
    interpreter.run(interpreter.clock.now())
    assert [each for each in recorder.log if each[0] in ("prepare", "forward", "sample", "release")] == [
        ("prepare", 0, set()),
        ("forward", 0, 0, None, (1, 2)),
        ("prepare", 1, set()),
        ("forward", 1, 0, None, (3, 1)),
        ("prepare", 0, {0}),
        ("prepare", 1, {0}),
        ("release", 0),
    ]


def test_what_the_first_of_several_processes_says_is_left_out() -> None:
    asked: list[list[bool]] = []

    def agree(flags: list[bool]) -> list[bool]:
        asked.append(flags)
        return [False, True]

    cancellation = Cancellation({0: 0}, agree)
    assert cancellation.skipped(frozenset((5, 3)), 7) == {5}
    assert asked == [[False, False]]
    cancellation.at[5] = 7
    assert Cancellation({5: 7}).skipped(frozenset((5, 3)), 7) == {5}
    assert Cancellation({5: 8}).skipped(frozenset((5, 3)), 7) == set()
    cancellation.skipped(frozenset((5, 3)), 7)
    assert asked[1:] == [[False, True]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_not_finite(wrong: float) -> None:
    interpreter, recorder = built(by_hand(), 0, check_finite=True)
    recorder.fill = wrong
    with pytest.raises(RunFailed, match="wrote 2 values of 2 that are not finite"):
        interpreter.run(interpreter.clock.now())
    assert interpreter.position.index == 0
    unchecked, recorder = built(by_hand(), 0)
    recorder.fill = wrong
    unchecked.run(unchecked.clock.now())
    ran(by_hand(), 0, check_finite=True)


def test_slices_are_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = tuple(Chunk((Part(0, sum(range(size)), size),)) for size in (1, 2, 3, 4))
    program: list[Instruction] = []
    for chunk in range(4):
        program += Recv(chunk, 1, 0, 0, 0), Wait(3 * chunk), Forward(chunk, 1, 0, None)
    schedule = replace(
        by_hand(),
        vp=1,
        stages=tuple(replace(stage, stage=rank, rank=rank) for rank, stage in enumerate(by_hand().stages[:2])),
        requests=(Request("r0", 11),),
        chunks=chunks,
        programs=(Program.of(0, 0, []), Program.of(1, 1, program)),
    )
    monkeypatch.setattr(module, "MOST_VIEWS", 2)
    interpreter, recorder = built(schedule, 1)
    views = []
    plain = recorder.forward

    def forward(*arguments: Any) -> None:
        views.append((len(interpreter._views), arguments[2]))
        plain(*arguments)

    recorder.forward = forward  # type: ignore[method-assign]
    interpreter.run(interpreter.clock.now())
    assert [shape(view) for _, view in views] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert [count for count, _ in views] == [1, 2, 1, 2]
    assert all(view[0].data_ptr() == interpreter.buffers[0][0].data_ptr() for _, view in views)
    assert interpreter._view(0, 3) is views[3][1]
