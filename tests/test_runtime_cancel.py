"""Cancelled requests: the program goes on without them, the others' tokens stay what they are, and nothing is held."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest
import torch
from faulty import BEFORE, Fault, faulty
from plans import paper
from serve_worlds import cost
from test_runtime_tokens import compiled, config, ran, written
from token_runs import Case
from worlds import World, succeeded

from runtime.__main__ import main
from runtime.clock import Clock
from runtime.runners.timed import TimedRunner
from vppc.costs.model import Prices
from vppc.ir.instruction import Forward
from vppc.ir.schedule import Chunk, Schedule


def plan(pp: int, order: str, prompts: tuple[tuple[int, int], ...], budget: int | None) -> Schedule:
    choice = {"pp": pp, "order": (order, "v", 2), "split": "even", "prompts": prompts, "budget": budget, "chunk": 8}
    return compiled(choice, Random(0))


PACKED = plan(2, "vpp-packed", ((3, 0), (2, 0), (13, 0), (4, 0)), 8)
ONE_BY_ONE = plan(3, "vpp-async", ((23, 0), (14, 4), (30, 0)), None)


def test_at_a_chunk(tmp_path: Path) -> None:
    schedule = PACKED
    requests = set(range(len(schedule.requests)))
    assert any(len({part.request for part in chunk.parts}) > 1 for chunk in schedule.chunks)
    file, document = written(schedule, tmp_path / "plan.json"), config("llama-tied", schedule.model.layers)
    chosen = [(request, chunk) for request in requests for chunk in range(len(schedule.chunks))]
    cases = [Case(file, document, ("--cancel", f"r{request}@{chunk}")) for request, chunk in chosen]
    whole, *found = ran(tmp_path, 2, [Case(file, document), *cases])
    last = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    for (request, chunk), each in zip(chosen, found, strict=True):
        others = requests - ({request} if chunk <= last[request] else set())
        assert set(each.tokens) == others
        for other in others:
            assert each.tokens[other] == whole.tokens[other]
            torch.testing.assert_close(each.logits[other][0], whole.logits[other][0], atol=1e-5, rtol=1e-5)


def test_in_the_middle_of_anything(tmp_path: Path) -> None:
    """Ranks learn of it at different moments, whatever they are doing."""
    schedule = ONE_BY_ONE
    file, document = written(schedule, tmp_path / "plan.json"), config("qwen3", schedule.model.layers)
    random = Random(1)
    lengths = [len(program) for program in schedule.programs]
    every = [
        {rank: (index if rank == known else random.randrange(length), request) for rank, length in enumerate(lengths)}
        for known, length in enumerate(lengths)
        for index in range(0, length, 4)
        for request in [random.randrange(3)]
    ]
    whole, *found = ran(tmp_path, 3, [Case(file, document), *(Case(file, document, cancel=cancel) for cancel in every)])
    cancelled = 0
    for cancel, each in zip(every, found, strict=True):
        (request,) = {request for _, request in cancel.values()}
        others = {0, 1, 2} - {request}
        cancelled += request not in each.tokens
        assert others <= set(each.tokens)
        for other in others:
            assert each.tokens[other] == whole.tokens[other]
            torch.testing.assert_close(each.logits[other][0], whole.logits[other][0], atol=1e-5, rtol=1e-5)
    assert 0 < cancelled < len(every)  # some come too late


def test_processes_of_a_rank_leave_out_the_same(tmp_path: Path) -> None:
    """They compute a stage together, and each learns of it at a moment of its own."""
    schedule = plan(2, "vpp-async", ((23, 0), (14, 4)), None)
    file, document = written(schedule, tmp_path / "plan.json"), config("qwen3", schedule.model.layers)
    random = Random(3)
    lengths = [len(program) for program in schedule.programs for _ in range(2)]
    every = [{process: (random.randrange(n), 0) for process, n in enumerate(lengths)} for _ in range(30)]
    cases = [Case(file, document), *(Case(file, document, cancel=cancel) for cancel in every)]
    whole, *found = ran(tmp_path, 4, cases, "--tp", "2")
    assert 0 < sum(0 not in each.tokens for each in found) < len(every)
    for each in found:
        assert each.tokens[1] == whole.tokens[1]
        for logits in each.logits[1]:
            torch.testing.assert_close(logits, whole.logits[1][0], atol=1e-5, rtol=1e-5)


def test_a_timed_chunk_takes_what_is_left_of_it() -> None:
    costs = cost(PACKED.model.layers)
    runner = TimedRunner(PACKED, costs, Clock(0.0, 0.0))
    index, chunk = next((i, each) for i, each in enumerate(PACKED.chunks) if len(each.parts) > 1)
    first, *others = chunk.parts
    ends = {request: each.prompt_tokens for request, each in enumerate(PACKED.requests)}
    left = Prices(PACKED.stages, costs).of((Chunk(tuple(others)),), ends).seconds
    assert runner.prepare(index, frozenset({first.request})).seconds == left
    runner.prepare(index, frozenset(part.request for part in chunk.parts))  # nothing is left, and nothing is priced


def test_by_a_signal(tmp_path: Path) -> None:
    """USR2 to one rank cancels what it works on, everywhere."""
    schedule = paper("vpp-packed", (4, 3), 2)
    file = written(schedule, tmp_path / "plan.json")
    index = next(i for i, each in enumerate(schedule.programs[1]) if isinstance(each, Forward) and each.chunk == 1)
    faults = [Fault(1, index, BEFORE, ("say", "pause", "pause", "pause"))]
    arguments = [file, "--runner", "null"]
    world = World(tmp_path, 2, faulty, lambda process: (arguments, faults))
    world.wait_for("here", 1)
    world.kill(1, signal.SIGUSR2)
    ended = succeeded(world.ended())
    for out in ended.out:
        assert [line.split()[:2] for line in out.splitlines()[1:]] == [["r0", "cancelled"], ["r1", "0"]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [("r7@1", "the schedule has no request 'r7'"), ("r0@7", "the schedule has no chunk 7")],
)
def test_what_cannot_be_cancelled(asked: str, message: str, tmp_path: Path) -> None:
    file = written(paper("vpp-packed", (4, 3), 2), tmp_path / "plan.json")
    arguments = [file, "--runner", "null", "--cancel", asked]
    ended = World(tmp_path, 2, main, lambda process: (arguments,)).ended()
    assert ended.statuses == [2, 2]
    assert f"vppc-run: --cancel: {message}\n" in ended.err[0]
