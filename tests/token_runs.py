"""What the processes of a world run to find the tokens and logits of many schedules, one after another."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from runtime.arguments import Arguments, parse
from runtime.interpreter import Mark
from runtime.make_runner import Place, reference_runner
from runtime.reference.config_json import parse_config
from runtime.reference.prompts import Prompts
from runtime.reference.weights import SeededWeights
from runtime.runners.reference import ReferenceRunner
from runtime.session import Session
from vppc.ir.schedule import Schedule


class Case(NamedTuple):
    """A schedule file, the document of the model's config, further options of the command line, and for processes
    that learn of a cancellation in the middle: the instruction before which they do, and the request."""

    schedule: str
    config: Mapping[str, Any]
    options: tuple[str, ...] = ()
    cancel: Mapping[int, tuple[int, int]] = {}


class Found(NamedTuple):
    """Of every request by index: its tokens, and the logits that each process sampled the first of them from."""

    tokens: dict[int, list[int]]
    logits: dict[int, list[Tensor]]


Observe: TypeAlias = Callable[[int, Tensor], None]
"""Is told of a request and the logits of its token."""


def on_reference(
    case: Case, arguments: Arguments, schedule: Schedule, place: Place, observe: Observe
) -> ReferenceRunner:
    config = parse_config(case.config)
    return ReferenceRunner(
        schedule,
        place.rank,
        config,
        SeededWeights(),
        Prompts(schedule.requests, config.vocabulary),
        dtype=getattr(torch, arguments.dtype),
        tp=place.tensor,
        observe=observe,
    )


def run_cases(
    cases: Sequence[Case],
    results: Path,
    options: Sequence[str] = ("--timeout", "30"),
    making: Callable[[Case, Arguments, Schedule, Place, Observe], Any] = on_reference,
) -> None:
    """Run the cases in one world; process 0 saves what was :class:`Found` for each."""
    found = []
    with Session(parse(["", *options])) as session:
        for case in cases:
            logits: dict[int, Tensor] = {}
            runners: list[Any] = []

            def make(
                arguments: Arguments,
                schedule: Schedule,
                place: Place,
                case: Case = case,
                logits: dict[int, Tensor] = logits,
                runners: list[Any] = runners,
            ) -> Any:
                def observe(request: int, values: Tensor) -> None:
                    logits[request] = values.clone()

                runners.append(making(case, arguments, schedule, place, observe))
                return runners[-1]

            mark = cancelling(session, *case.cancel[session.world.process]) if case.cancel else None
            outcome = session.run(parse([case.schedule, *options, *case.options]), make, mark)
            resident = [runner.resident for runner in runners]
            if any(resident):
                raise AssertionError(f"{case.schedule}: requests {resident} are still held")
            said = session.world.gather([[each, made.tolist()] for each, made in logits.items()])
            everybody = [{int(each): torch.tensor(made) for each, made in its} for its in said]
            found.append(_found(outcome.tokens, everybody))
        if session.world.process == 0:
            torch.save(found, results)


def cancelling(session: Session, at: int, request: int) -> Mark:
    """Cancels a request on this process before an instruction."""

    def mark(index: int) -> AbstractContextManager[None]:
        if index == at:
            session.cancel(request)
        return nullcontext()

    return mark


def memory(plan: str, requests: int, options: Sequence[str] = ("--timeout", "30")) -> None:
    """Print the resident memory of this process, in bytes, each time that another ``requests`` requests are through."""
    with Session(parse(["", *options])) as session:
        released: list[int] = []

        def make(arguments: Arguments, schedule: Schedule, place: Place) -> ReferenceRunner:
            runner = reference_runner(arguments, schedule, place)
            release = runner.release

            def counted(request: int) -> None:
                release(request)
                released.append(request)
                if len(released) % requests == 0:
                    pages = int(Path("/proc/self/statm").read_text().split()[1])
                    sys.stdout.write(f"{pages * resource.getpagesize()}\n")

            runner.release = counted  # type: ignore[method-assign]
            return runner

        session.run(parse([plan, *options]), make)


def _found(tokens: Sequence[Any], logits: Sequence[dict[int, Tensor]]) -> tuple[Any, ...]:
    made: dict[int, list[int]] = {}
    for token in tokens:
        made.setdefault(token.request, []).append(token.token)
    seen: dict[int, list[Tensor]] = {}
    for process in logits:
        for request, values in process.items():
            seen.setdefault(request, []).append(values)
    return made, seen
