"""Strategies against each other: every chunk size and prompt length on one machine, and the best size of each.

A strategy is judged at the chunk size that suits it best, and beside the others at equal sizes. vLLM-Ascend's
dynamic chunks depend on what the engine measures (:mod:`vppc.passes.online_chunking`), so each way is a contestant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import active_children, get_context
from typing import Any

from vppc.analysis.report import Report, predict
from vppc.compiler import compile_schedule
from vppc.costs.model import CostModel
from vppc.errors import InputError, VppcError
from vppc.ir.schedule import Model, Request
from vppc.passes.strategies import Options


@dataclass(frozen=True, slots=True)
class Case:
    """``prompts`` prompts of ``tokens`` tokens, which wait together, under ``options`` at ``cost``."""

    cost: CostModel
    tokens: int
    prompts: int
    options: Options

    @property
    def contestant(self) -> str:
        """The strategy, and for dynamic chunks what the engine measures: ``dcpp (wait, 1 warm-up)``."""
        options = self.options
        if options.strategy != "dcpp":
            return options.strategy
        if options.measured_time == "offline":
            return "dcpp (offline)"
        return f"dcpp ({options.measured_time}, {options.warmups} warm-up{'s' * (options.warmups != 1)})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case comes to: how many chunks, and their price; or, with no report, why it was refused."""

    case: Case
    chunks: int = 0
    report: Report | None = None
    refusal: str = ""

    @property
    def makespan(self) -> float:
        """Seconds; infinite when refused."""
        return self.report.makespan if self.report is not None else float("inf")

    @property
    def throughput(self) -> float:
        """Prompt tokens a second."""
        return self.case.tokens * self.case.prompts / self.makespan if self.makespan else float("inf")

    def json(self) -> dict[str, Any]:
        """The outcome at one chunk size; a refused one says why instead."""
        size = {"chunk_size": self.case.options.chunk_size}
        if self.report is None:
            return {**size, "refused": self.refusal}
        return {**size, "chunks": self.chunks, "throughput": self.throughput, **self.report.json()}


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant at one cost and length: an outcome a chunk size."""

    outcomes: tuple[Outcome, ...]

    @property
    def case(self) -> Case:
        """Any of its cases: they differ in the chunk size only."""
        return self.outcomes[0].case

    @property
    def best(self) -> Outcome:
        """The quickest outcome; of equals, that of the chunk size named first."""
        return min(self.outcomes, key=lambda outcome: outcome.makespan)

    def gain_over(self, other: Row) -> float | None:
        """How much more throughput this has, each at its best chunk size, as a part of the other's."""
        return gain(self.best, other.best)

    def json(self) -> dict[str, Any]:
        """All outcomes, and the chunk size of the best."""
        case, best = self.case, self.best
        return {
            "cost": case.cost.name,
            "tokens": case.tokens,
            "prompts": case.prompts,
            "strategy": case.options.strategy,
            "contestant": case.contestant,
            "best_chunk_size": best.case.options.chunk_size if best.report is not None else None,
            "outcomes": [outcome.json() for outcome in self.outcomes],
        }


def gain(ours: Outcome, theirs: Outcome) -> float | None:
    """How much more throughput ``ours`` has, as a part of that of ``theirs``; None where one was refused."""
    if ours.report is None or theirs.report is None:
        return None
    return ours.throughput / theirs.throughput - 1


def cases(
    costs: Sequence[CostModel],
    lengths: Sequence[int],
    contestants: Sequence[Options],
    sizes: Sequence[int],
    prompts: int = 1,
) -> Iterator[Case]:
    """All combinations: for every cost and length each contestant, at every chunk size."""
    for cost in costs:
        for tokens in lengths:
            for options in contestants:
                for size in sizes:
                    yield Case(cost, tokens, prompts, replace(options, chunk_size=size))


def judge(case: Case) -> Outcome:
    """Compile, prove and price one case."""
    requests = tuple(Request(f"r{index}", case.tokens) for index in range(case.prompts))
    model = Model(case.cost.name or "unnamed", case.cost.layer_count)
    try:
        schedule = compile_schedule(requests, model, case.cost, case.options)
        return Outcome(case, len(schedule.chunks), predict(schedule, case.cost))
    except VppcError as error:
        return Outcome(case, refusal=str(error))


def compare(contest: Iterable[Case], jobs: int = 1, done: Callable[[], object] = lambda: None) -> tuple[Row, ...]:
    """Judge all cases, in the order of :func:`cases`, in ``jobs`` processes; ``done`` is called after each."""
    outcomes: list[Outcome] = []
    for outcome in _judged(list(contest), jobs):
        outcomes.append(outcome)
        done()
    return tuple(Row(tuple(group)) for _, group in groupby(outcomes, key=_row_of))


def _judged(contest: list[Case], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(judge, contest)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            for outcome in [pool.submit(judge, case) for case in contest]:
                yield outcome.result()
        except BrokenProcessPool:
            raise InputError(
                "a process that judged a case was killed", place="--jobs", remedy="give fewer, if memory was short"
            ) from None
        except BaseException:
            for process in active_children():  # or leaving would wait for their cases
                process.terminate()
            raise


def _row_of(outcome: Outcome) -> tuple[CostModel, int, str]:
    return outcome.case.cost, outcome.case.tokens, outcome.case.contestant
