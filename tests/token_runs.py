"""What the processes of a world run to find the tokens and logits of many schedules, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.arguments import Arguments, parse
from runtime.make_runner import Place
from runtime.reference.config_json import parse_config
from runtime.reference.prompts import Prompts
from runtime.reference.weights import SeededWeights
from runtime.runners.reference import ReferenceRunner
from runtime.session import Session
from vppc.ir.schedule import Schedule


class Case(NamedTuple):
    """A schedule file, the document of the model's config, and further options of the command line."""

    schedule: str
    config: Mapping[str, Any]
    options: tuple[str, ...] = ()


class Found(NamedTuple):
    """Of every request by index: its tokens, and the logits that each process sampled the first of them from."""

    tokens: dict[int, list[int]]
    logits: dict[int, list[Tensor]]


def run_cases(cases: Sequence[Case], results: Path, options: Sequence[str] = ("--timeout", "30")) -> None:
    """Run the cases in one world; process 0 saves what was :class:`Found` for each."""
    found = []
    with Session(parse(["", *options])) as session:
        for case in cases:
            logits: dict[int, Tensor] = {}
            runners: list[ReferenceRunner] = []

            def make(
                arguments: Arguments,
                schedule: Schedule,
                place: Place,
                case: Case = case,
                logits: dict[int, Tensor] = logits,
                runners: list[ReferenceRunner] = runners,
            ) -> ReferenceRunner:
                config = parse_config(case.config)
                runner = ReferenceRunner(
                    schedule,
                    place.rank,
                    config,
                    SeededWeights(),
                    Prompts(schedule.requests, config.vocabulary),
                    dtype=getattr(torch, arguments.dtype),
                    tp=place.tensor,
                    observe=lambda request, values: logits.update({request: values.clone()}),
                )
                runners.append(runner)
                return runner

            outcome = session.run(parse([case.schedule, *options, *case.options]), make)
            resident = [runner.resident for runner in runners]
            if any(resident):
                raise AssertionError(f"{case.schedule}: requests {resident} are still held")
            everybody = session.world.gather(logits)
            found.append(_found(outcome.tokens, everybody))
        if session.world.process == 0:
            torch.save(found, results)


def _found(tokens: Sequence[Any], logits: Sequence[dict[int, Tensor]]) -> tuple[Any, ...]:
    made: dict[int, list[int]] = {}
    for token in tokens:
        made.setdefault(token.request, []).append(token.token)
    seen: dict[int, list[Tensor]] = {}
    for process in logits:
        for request, values in process.items():
            seen.setdefault(request, []).append(values)
    return made, seen
