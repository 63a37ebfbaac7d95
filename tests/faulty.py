"""What the processes of a test's world run: the runtime's own session, with faults put into it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from runtime.arguments import Arguments, parse
from runtime.interpreter import Mark
from runtime.make_runner import Place, make_runner
from runtime.run import report
from runtime.runners.null import NullRunner
from runtime.runners.protocol import Buffer, Runner, TensorSpec
from runtime.session import Session
from vppc.errors import VppcError
from vppc.ir.schedule import Schedule

BEFORE, AFTER = "before", "after"


class Fault(NamedTuple):
    """``actions``, by name, done by a process before or after the instruction with that index."""

    process: int
    at: int
    when: str
    actions: tuple[str, ...]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon() -> None:
    timer = threading.Timer(0.7, die)
    timer.daemon = True
    timer.start()


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def pause() -> None:
    """For long enough that the place is reported."""
    time.sleep(0.6)


def hang() -> None:
    time.sleep(1000)


def unheard() -> None:
    """Nobody reads what the process writes any more."""
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    os.close(reader)


def say() -> None:
    sys.stderr.write("here\n")
    sys.stderr.flush()


def divide() -> None:
    raise ZeroDivisionError("no such quotient")


def complain() -> None:
    """As torch does."""
    raise RuntimeError("mat1 and mat2 do not go together")


def exhaust() -> None:
    raise MemoryError


def exhaust_torch() -> None:
    torch.empty(1 << 60)


ACTIONS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (die, die_soon, stop, unheard, pause, hang, say, divide, complain, exhaust, exhaust_torch)
}


def faulty(arguments: Sequence[str], faults: Sequence[Fault], runner: str = "") -> None:
    """``python -m runtime`` with faults; ``runner`` names a class of :data:`RUNNERS`, in place of the usual one."""
    parsed = parse(list(arguments))
    make = RUNNERS[runner] if runner else make_runner
    mine = [fault for fault in faults if fault.process == int(os.environ["RANK"])]
    try:
        with Session(parsed) as session:
            outcome = session.run(parsed, make, _mark(mine))
            sys.stdout.write(report(outcome))
    except VppcError as error:
        sys.stderr.write(f"vppc-run: {error}\n")
        sys.exit(error.exit_status)


def _mark(faults: Sequence[Fault]) -> Mark:
    @contextmanager
    def at(index: int) -> Iterator[None]:
        act(index, BEFORE)
        yield
        act(index, AFTER)

    def act(index: int, when: str) -> None:
        for fault in faults:
            if (fault.at, fault.when) == (index, when):
                for action in fault.actions:
                    ACTIONS[action]()

    return at


class Wide(NullRunner):
    """Sends 16 MB a token, more than sockets take at once."""

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("hidden", (1 << 22,), torch.float32),)


class Failing(NullRunner):
    """Does ``action`` in the first FORWARD of stage 1."""

    action = ""

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        if stage == 1:
            ACTIONS[self.action]()


class Nan(NullRunner):
    """Writes NaN in stage 1 of chunk 2."""

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        if outputs is not None:
            outputs[0].fill_(torch.nan if (stage, prepared[0]) == (1, 2) else 0.0)


def _failing(name: str) -> Callable[[Arguments, Schedule, Place], Runner]:
    kind = type(name, (Failing,), {"action": name})
    return lambda arguments, schedule, place: kind(schedule)


def _dies_loading(arguments: Arguments, schedule: Schedule, place: Place) -> Runner:
    if place.rank == 1:
        pause()
        die()
    return NullRunner(schedule)


def _fails_loading(arguments: Arguments, schedule: Schedule, place: Place) -> Runner:
    if place.rank == 1:
        complain()
    return NullRunner(schedule)


RUNNERS: dict[str, Callable[[Arguments, Schedule, Place], Runner]] = {
    "wide": lambda arguments, schedule, place: Wide(schedule),
    "nan": lambda arguments, schedule, place: Nan(schedule),
    "dies loading": _dies_loading,
    "fails loading": _fails_loading,
    **{name: _failing(name) for name in ("divide", "complain", "exhaust", "exhaust_torch", "hang")},
}
