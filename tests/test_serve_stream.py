"""A rank's side of a stream: it runs what it is sent, drops what it has run, and refuses what does not follow."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_worlds import HOST, Server, Serving, cost, held_up
from test_serve_requests import one_process
from torch.distributed.distributed_c10d import PrefixStore
from worlds import LIMIT, eventually, succeeded

from runtime.faults import Position, RunFailed, State
from runtime.interpreter import Cancellation
from runtime.mailbox import Outbox
from runtime.stream import STREAM, UP, Growing, Report
from tests.serving_streams import Stream, stream
from tests.test_serving_compiler import Event, events, limits, played
from vppc.errors import InputError
from vppc.ir.document import digest, schedule_text, segment_text
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.ir.schedule import Model, Request
from vppc.ir.segment import Segment
from vppc.passes.strategies import STRATEGIES, Options
from vppc.serving.batching import Limits
from vppc.serving.clock import header_of
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.policy import POLICIES, policy
from vppc.serving.ranks import Ranks


def of_rank(each: Stream, rank: int, position: Position, released: list[int]) -> Growing:
    """The rank's part of a stream, behind which another segment comes that is empty."""
    segments = iter([*each.segments, Segment(len(each.segments) + 1, "")])
    growing = Growing(each.compiler.opening(), rank, lambda: next(segments, None), position, Cancellation())
    growing.attach(released.append, None)
    return growing


@given(st.sampled_from(STRATEGIES), st.integers(1, 3), st.sampled_from(POLICIES), limits(), events())
@settings(max_examples=100)
def test_a_rank_runs_all_releases_each_request_once_and_keeps_nothing(
    strategy: str, pp: int, queue: str, bounds: Limits, story: list[Event]
) -> None:
    each = stream(strategy, pp, bounds, queue)
    played(each, story)
    whole = each.close()
    for rank, program in enumerate(whole.programs):
        released: list[int] = []
        position = Position(rank)
        growing = of_rank(each, rank, position, released)
        position.enter(growing, None)
        last = growing.rank_stages[rank][-1]
        rows = []
        for position.index, row in enumerate(growing.rows()):
            rows.append(row)
            op, chunk, stage, _, _, _ = row
            assert position.read()[0] == (State.WAITING if op == WAIT else State.BUSY)
            if op != WAIT:
                assert growing.chunks[chunk] == whole.chunks[chunk]
                load = growing.loads[chunk]
                if op == SAMPLE or (op == FORWARD and stage == last and not load.sampled):
                    released += load.leaving
        assert rows == list(program.rows())
        assert sorted(released) == list(range(len(whole.requests)))
        assert len(growing) == len(program)
        assert (len(growing.requests), len(growing.chunks), growing.loads) == (0, 0, {})


def test_where_a_rank_is_said_to_stand() -> None:
    each = stream("cpp", 1, Limits(chunk_size=8), "fcfs")
    each.compiler.add(Request("a", 8), 0.0)
    each.close()
    position = Position(0)
    growing = of_rank(each, 0, position, [])
    assert str(position) == "rank 0 at its start, meeting the others"
    position.enter(growing, None)
    assert position.read() == (State.IDLE, "instruction 0, which has not come yet")
    rows = growing.rows()
    next(rows)
    assert str(position) == "rank 0 at instruction 0 of 2, FORWARD c0 s0 tokens -> b0 (request a)"
    assert list(rows)[-1][0] == SAMPLE
    assert position.read() == (State.THROUGH, "the end of its program")


def opened(serving: Serving, *requests: Request) -> IncrementalCompiler:
    """A compiler whose opening schedule two ranks have been sent, and that has these requests, or one."""
    costs = cost(4)
    setup = header_of(Options(strategy="vpp-packed", pp=2), Model("test", 4))
    compiler = IncrementalCompiler(setup, costs, Limits(chunk_size=8), policy("fcfs", costs), "vpp-packed")
    serving.ranks.send("".join(schedule_text(compiler.opening())))
    for request in requests or (Request("a", 20),):
        compiler.add(request, 0.0)
    return compiler


@pytest.mark.parametrize("tp", [1, 2])
def test_a_request_that_is_wholly_in_chunks_is_cancelled(tp: int, tmp_path: Path) -> None:
    """From the moment at which the ranks know, they compute nothing of it, and at last they hold nothing of it."""
    gate, reports = tmp_path / "gate", SimpleQueue[Report | RunFailed]()
    with Serving(tmp_path, 2 * tp, "--tp", str(tp), target=held_up, given=[gate]) as serving:
        compiler = opened(serving, Request("a", 20), Request("b", 9), Request("c", 14))
        segment = compiler.close()
        assert segment is not None and [len(chunk.parts) for chunk in segment.chunks] == [1, 1, 1, 1, 1, 1, 1]
        serving.ranks.send("".join(segment_text(segment)))
        serving.ranks.listen(reports.put)
        for process in range(tp):
            serving.world.wait_for("computes 0", process)
        serving.ranks.cancel(0)
        serving.ranks.cancel(2)
        read, tokens, done = {0: 0}, [], 0
        while done < 2 * tp:
            report = reports.get()
            assert isinstance(report, Report)
            serving.ranks.heard(report)
            read[report.process] = report.read
            if not gate.exists() and len(read) == 2 * tp and min(read.values()) == 4:
                gate.touch()
                serving.ranks.close()
            tokens += [(request, token) for request, token, _ in report.tokens]
            done += report.done
        ended = succeeded(serving.ended())
    expected = one_process({"b": 9, "c": 14}, 4)["b"][0]
    assert tokens == [(1, expected)] * tp
    for process, err in enumerate(ended.err):
        computed = ["computes 0"] if process < tp else []  # what had begun by then
        assert [line.rstrip() for line in err.splitlines()] == [*computed, *["computes 1"] * 4, "holds"]


def refused(folder: Path, wrong: Callable[[Segment], Segment]) -> list[str]:
    """What the ranks say to a segment that is not what it should be."""
    with Serving(folder, 2, "--runner", "null", timeout=8) as serving:
        segment = opened(serving).close()
        assert segment is not None
        serving.ranks.send("".join(segment_text(wrong(segment))))
        ended = serving.ended()
    assert ended.statuses == [1, 1]
    return ended.err


def test_a_segment_must_follow_the_one_before(tmp_path: Path) -> None:
    for err in refused(tmp_path, lambda segment: replace(segment, previous=digest(b"another"))):
        assert f"segment 1 behind {digest(b'another')[:12]} was sent, where segment 1 behind " in err


def test_a_segment_must_go_on_where_the_program_ends(tmp_path: Path) -> None:
    def later(segment: Segment) -> Segment:
        return replace(segment, programs=tuple(replace(each, start=each.start + 1) for each in segment.programs))

    for err in refused(tmp_path, later):
        assert "segment 1 goes on at instruction 1 of rank " in err and ", which has 0\n" in err


def test_a_coordinator_that_falls_silent_is_missed(tmp_path: Path) -> None:
    with Serving(tmp_path, 2, "--runner", "null", timeout=6) as serving:
        opened(serving)
        ended = serving.ended()
    assert ended.statuses == [1, 1]
    for err in ended.err:
        assert "vppc-run: the coordinator is dead or stopped: it has said nothing for 3 s\n" in err


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["--help"], "the ranks ended before the stream did", 1),
        (["--tp", "0"], "process 0 ended with status 2", 2),
    ],
    ids=["of themselves", "with a status"],
)
def test_processes_that_end_without_a_word(arguments: list[str], message: str, status: int) -> None:
    with Ranks.start(1, 4.0, arguments) as ranks, pytest.raises(RunFailed, match=message) as failed:
        eventually(ranks.check)
    assert failed.value.exit_status == status


def test_a_process_that_fails_after_all_was_done() -> None:
    with (
        Ranks.start(1, 4.0, ["--tp", "0"]) as ranks,
        pytest.raises(RunFailed, match="process 0 ended with status 2"),
    ):
        ranks.ended()


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "process 0 ended by signal SIGKILL"), (signal.SIGSTOP, "process 0 does not end")],
    ids=["killed", "stopped"],
)
def test_processes_that_are_killed_before_they_meet(number: int, message: str) -> None:
    others = children()
    with Ranks.start(2, 2.0, ["--runner", "null"]) as ranks:
        first, second = sorted(children() - others)
        os.kill(second, signal.SIGKILL)
        os.kill(first, number)
        with pytest.raises(RunFailed, match=message):
            eventually(ranks.check)
    assert children() == others


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_ranks_that_say_nothing_and_a_launcher_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vppc.serving.ranks.START", 0.5)
    store = dist.TCPStore(HOST, 0, None, True, timedelta(seconds=4), wait_for_workers=False)
    ranks, heard = Ranks.attach(HOST, store.port, 1, 1.0), SimpleQueue[Report | RunFailed]()
    ranks.listen(heard.put)
    assert str(heard.get(timeout=LIMIT)) == "no rank came in 1 s"
    ready = Report(0, 0, 0, 0, [], [], 0.0, (0.0, 0.0), True, False, False)
    Outbox(PrefixStore(STREAM, store), UP).send(ready.encode())
    ranks.listen(heard.put)
    assert isinstance(heard.get(timeout=LIMIT), Report)
    assert str(heard.get(timeout=LIMIT)) == "the ranks are dead or stopped: they have said nothing for 1 s"
    del store
    with pytest.raises(RunFailed, match="the launcher of the ranks is gone: "):
        ranks.beat()
    with pytest.raises(RunFailed, match="the launcher of the ranks is gone, and the store with it"):
        ranks.check()


def test_requests_that_cannot_be_read_on_end_the_server(tmp_path: Path) -> None:
    """A terminal that somebody hangs up."""
    terminal, other = os.openpty()
    os.write(other, b'{"id": "a", "prompt_tokens": 10}\n')
    with Serving(tmp_path, 2, "--runner", "null", timeout=6) as serving, os.fdopen(terminal, "rb") as lines:
        server = Server(serving, 2, cost(4), write=lambda _: os.close(other), chunk_size=256)
        with pytest.raises(InputError, match="requests: cannot be read: Input/output error"):
            server.coordinator.serve(lines)
        serving.world.end()
