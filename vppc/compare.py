"""Strategies against each other: every chunk size and prompt length on one machine, and the best size of each.

A strategy is judged at the chunk size that suits it best, and beside the others at equal sizes. vLLM-Ascend's
dynamic chunks depend on what the engine measures (:mod:`vppc.passes.online_chunking`), so each way is a contestant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from vppc.analysis.memory import RankMemory, memory_plan, unfit
from vppc.analysis.report import Report, predict
from vppc.compiler import compile_schedule
from vppc.costs.devices import Device
from vppc.costs.model import CostModel
from vppc.errors import VppcError
from vppc.ir.schedule import Model, Request, Schedule
from vppc.models import ModelSpec
from vppc.parallel import in_order
from vppc.passes.strategies import Options


@dataclass(frozen=True, slots=True)
class Queue:
    """Prompts to prefill together, and what to call them."""

    name: str
    requests: tuple[Request, ...] = field(hash=False)

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt."""
        return max(request.prompt_tokens for request in self.requests)

    @property
    def tokens(self) -> int:
        """The tokens to compute."""
        return sum(request.prompt_tokens - request.cached_tokens for request in self.requests)


def queue_of(lengths: Sequence[int]) -> Queue:
    """Prompts of so many tokens, which wait together in that order."""
    name = " + ".join(f"{tokens:,}" for tokens in lengths)
    return Queue(name, tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(lengths)))


def equal_prompts(tokens: int, prompts: int = 1) -> Queue:
    """Prompts of ``tokens`` tokens each, which wait together."""
    name = f"{tokens:,}" if prompts == 1 else f"{prompts:,} x {tokens:,}"
    return Queue(name, tuple(Request(f"r{index}", tokens) for index in range(prompts)))


@dataclass(frozen=True, slots=True)
class Machine:
    """The model and the devices whose memory has to hold a plan: ``tp`` of them a rank."""

    spec: ModelSpec
    device: Device
    tp: int = 1
    ep: int = 1
    weight_dtype: str | None = None

    def fullest(self, schedule: Schedule) -> RankMemory:
        """The rank on which the least is left of a compiled schedule's memory."""
        ranks = memory_plan(schedule, self.spec, self.device, tp=self.tp, ep=self.ep, weight_dtype=self.weight_dtype)
        return min(ranks, key=lambda rank: rank.free)


@dataclass(frozen=True, slots=True)
class Case:
    """A queue under ``options`` at ``cost``; on a ``machine``, if one is known, it must fit the memory."""

    cost: CostModel
    queue: Queue
    options: Options
    machine: Machine | None = None

    @property
    def contestant(self) -> str:
        """See :attr:`Options.contestant`."""
        return self.options.contestant


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case comes to: how many chunks, and their price; or, with no report, why it was refused.

    ``excess`` is by how many bytes a plan is too large for the memory of a device of the fullest rank.
    """

    case: Case
    chunks: int = 0
    report: Report | None = None
    refusal: str = ""
    excess: int = 0

    @property
    def makespan(self) -> float:
        """Seconds; infinite when refused."""
        return self.report.makespan if self.report is not None else float("inf")

    @property
    def throughput(self) -> float:
        """Prompt tokens computed a second."""
        return self.case.queue.tokens / self.makespan if self.makespan else float("inf")

    def json(self) -> dict[str, Any]:
        """The outcome at one chunk size; a refused one says why instead."""
        size = {"chunk_size": self.case.options.chunk_size}
        if self.report is None:
            return {**size, "refused": self.refusal}
        finite = {"throughput": self.throughput} if self.makespan else {}  # JSON has no infinity
        return {**size, "chunks": self.chunks, **finite, **self.report.json()}


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant at one cost and queue: an outcome a chunk size."""

    outcomes: tuple[Outcome, ...]

    @property
    def case(self) -> Case:
        """Any of its cases: they differ in the chunk size only."""
        return self.outcomes[0].case

    @property
    def best(self) -> Outcome:
        """The quickest outcome; of equals, that of the chunk size named first."""
        return min(self.outcomes, key=lambda outcome: outcome.makespan)

    @property
    def edge(self) -> Literal["smaller", "larger"] | None:
        """The chunk sizes beyond those tried that may be better still: the best is the first or the last of them."""
        sizes = sorted(outcome.case.options.chunk_size for outcome in self.outcomes)
        best = self.best
        if best.report is None or sizes[0] == sizes[-1]:
            return None
        if best.case.options.chunk_size == sizes[0]:
            return "smaller" if sizes[0] > 1 else None
        if best.case.options.chunk_size == sizes[-1]:
            return "larger" if sizes[-1] < self.case.queue.longest else None
        return None

    @property
    def beyond(self) -> int | None:
        """The next chunk size at the edge that the best is at: half the smallest, or twice the largest."""
        sizes = [outcome.case.options.chunk_size for outcome in self.outcomes]
        return {"smaller": min(sizes) // 2, "larger": 2 * max(sizes), None: None}[self.edge]

    def gain_over(self, other: Row) -> float | None:
        """How much more throughput this has, each at its best chunk size, as a part of the other's."""
        return gain(self.best, other.best)

    def json(self) -> dict[str, Any]:
        """All outcomes, and the chunk size of the best."""
        case, best = self.case, self.best
        return {
            "cost": case.cost.name,
            "queue": case.queue.name,
            "tokens": case.queue.longest,
            "prompts": len(case.queue.requests),
            "strategy": case.options.strategy,
            "contestant": case.contestant,
            "best_chunk_size": best.case.options.chunk_size if best.report is not None else None,
            "may_be_better": self.edge,
            "outcomes": [outcome.json() for outcome in self.outcomes],
        }


def gain(ours: Outcome, theirs: Outcome) -> float | None:
    """How much more throughput ``ours`` has on the same queue, as a part of theirs; None where one was refused."""
    if ours.report is None or theirs.report is None:
        return None
    if not ours.makespan:
        return 0.0 if not theirs.makespan else float("inf")
    return theirs.makespan / ours.makespan - 1


def cases(
    cost: CostModel,
    queues: Iterable[Queue],
    contestants: Sequence[Options],
    sizes: Sequence[int],
    machine: Machine | None = None,
) -> Iterator[Case]:
    """All combinations: for every queue each contestant, at every chunk size."""
    for queue in queues:
        for options in contestants:
            for size in sizes:
                yield Case(cost, queue, replace(options, chunk_size=size), machine)


def judge(case: Case) -> Outcome:
    """Compile, prove and price one case."""
    model = Model(case.cost.name or "unnamed", case.cost.layer_count)
    try:
        schedule = compile_schedule(case.queue.requests, model, case.cost, case.options)
        if case.machine is not None and (fullest := case.machine.fullest(schedule)).free < 0:
            return Outcome(case, refusal=unfit(fullest), excess=-fullest.free)
        return Outcome(case, len(schedule.chunks), predict(schedule, case.cost))
    except VppcError as error:
        return Outcome(case, refusal=str(error))


def compare(contest: Iterable[Case], jobs: int = 1, done: Callable[[], object] = lambda: None) -> tuple[Row, ...]:
    """Judge all cases, in the order of :func:`cases`, in ``jobs`` processes; ``done`` is called after each."""
    outcomes: list[Outcome] = []
    for outcome in in_order(judge, list(contest), jobs):
        outcomes.append(outcome)
        done()
    return tuple(Row(tuple(group)) for _, group in groupby(outcomes, key=_row_of))


def widened(
    rows: tuple[Row, ...], judged: Callable[[list[Case]], tuple[Row, ...]] = compare, times: int = 3
) -> tuple[Row, ...]:
    """The rows with smaller or larger chunks, too, until no best is at an edge of the sizes, ``times`` at most.

    A size that one contestant asks for is tried with all that have the same costs, so that they stay comparable.
    """
    for _ in range(times):
        beyond: dict[CostModel, set[int]] = {}
        for row in rows:
            if row.beyond is not None:
                beyond.setdefault(row.case.cost, set()).add(row.beyond)
        if not beyond:
            break
        more = [
            replace(row.case, options=replace(row.case.options, chunk_size=size))
            for row in rows
            for size in beyond.get(row.case.cost, ())
        ]
        found = {_row_of(row.best): row.outcomes for row in judged(more)}
        rows = tuple(
            Row(tuple(sorted((*row.outcomes, *found.get(_row_of(row.best), ())), key=_chunk_size))) for row in rows
        )
    return rows


def _chunk_size(outcome: Outcome) -> int:
    return outcome.case.options.chunk_size


def _row_of(outcome: Outcome) -> tuple[CostModel, Queue, str]:
    return outcome.case.cost, outcome.case.queue, outcome.case.contestant
