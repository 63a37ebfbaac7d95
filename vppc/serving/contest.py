"""Strategies against each other in serving: every chunk size on every workload, and the best size of each.

In a closed loop, and of requests that come at once, more throughput is better. In an open loop the requests decide the
throughput, as long as they are served at all: there a shorter mean time to first token is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any

from vppc.analysis.memory import RankMemory
from vppc.errors import VppcError
from vppc.parallel import in_order
from vppc.serving.metrics import ServingReport
from vppc.serving.simulate import Setting, serve
from vppc.serving.workloads import Workload


@dataclass(frozen=True, slots=True)
class Trial:
    """A workload to be served in a setting."""

    workload: Workload
    setting: Setting

    @property
    def contestant(self) -> str:
        """The strategy, and the queue's policy where it is not first come, first served."""
        name = self.setting.options.contestant
        return name if self.setting.policy == "fcfs" else f"{name}, {self.setting.policy}"


@dataclass(frozen=True, slots=True)
class Served:
    """What a trial came to; or, with no report, why it was refused. ``fullest`` is the rank with the least memory
    left, where the devices are known."""

    trial: Trial
    report: ServingReport | None = None
    refusal: str = ""
    fullest: RankMemory | None = None

    @property
    def merit(self) -> float:
        """What is better is greater: tokens a second, or in an open loop the reciprocal mean TTFT; 0 when refused."""
        if self.report is None:
            return 0.0
        if self.trial.workload.rate is None:
            return self.report.throughput
        return 1.0 / self.report.ttft.mean if self.report.ttft.mean else inf

    @property
    def overrun(self) -> bool:
        """Whether requests come faster than they are served: an open loop in which, in the time from one arrival to
        the next, a rank does not get done what a request takes of it. The queue then grows as long as they come."""
        rate, report = self.trial.workload.rate, self.report
        if rate is None or report is None:
            return False
        return max(use.needed for use in report.ranks) / report.requests > 1 / rate

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk at most."""
        return self.trial.setting.options.chunk_size

    def json(self) -> dict[str, Any]:
        """The report at one chunk size; a refused one says why instead."""
        size = {"chunk_size": self.chunk_size}
        if self.report is None:
            return {**size, "refused": self.refusal}
        rank = self.fullest
        memory = {} if rank is None else {"memory": {"rank": rank.rank, "fits": rank.free >= 0, **rank.json()}}
        return {**size, **self.report.json(), "overrun": self.overrun, **memory}


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant on one workload: what it came to at each chunk size."""

    tried: tuple[Served, ...]

    @property
    def workload(self) -> Workload:
        return self.tried[0].trial.workload

    @property
    def contestant(self) -> str:
        return self.tried[0].trial.contestant

    @property
    def best(self) -> Served:
        """That with the most merit; of equals, that of the chunk size named first."""
        return max(self.tried, key=lambda served: served.merit)

    def gain_over(self, other: Entry) -> float | None:
        """See :func:`gain`, each at its best chunk size."""
        return gain(self.best, other.best)

    def json(self) -> dict[str, Any]:
        """All that was tried, and the chunk size of the best."""
        workload, options = self.workload, self.tried[0].trial.setting.options
        return {
            "workload": workload.name,
            "concurrency": workload.concurrency,
            "rate": workload.rate,
            "strategy": options.strategy,
            "contestant": self.contestant,
            "policy": self.tried[0].trial.setting.policy,
            "best_chunk_size": self.best.chunk_size if self.best.report is not None else None,
            "outcomes": [served.json() for served in self.tried],
        }


def gain(ours: Served, theirs: Served) -> float | None:
    """How much more throughput ``ours`` has, as a part of that of ``theirs``; in an open loop, how much longer a TTFT.

    None where one was refused, and of no time.
    """
    if ours.report is None or theirs.report is None:
        return None
    if ours.trial.workload.rate is None:
        return ours.report.throughput / theirs.report.throughput - 1
    return ours.report.ttft.mean / theirs.report.ttft.mean - 1 if theirs.report.ttft.mean else None


def trials(workloads: Sequence[Workload], settings: Sequence[Setting], sizes: Sequence[int]) -> Iterator[Trial]:
    """All combinations: on every workload each setting, at every chunk size."""
    for workload in workloads:
        for setting in settings:
            for size in sizes:
                yield Trial(workload, replace(setting, options=replace(setting.options, chunk_size=size)))


def judge(trial: Trial) -> Served:
    """Serve, and say what it came to; without costs that take time there is nothing to say."""
    setting = trial.setting
    try:
        run = serve(trial.workload, setting)
        report = run.report(setting.cost, setting.target)
        held = [use.kv_tokens for use in report.ranks]
        fullest = None if setting.memory is None else run.fullest(setting.memory, held)
    except VppcError as error:
        return Served(trial, refusal=str(error))
    return (
        Served(trial, report, fullest=fullest)
        if report.makespan
        else Served(trial, refusal="by these costs nothing takes time")
    )


def contest(tried: Sequence[Trial], jobs: int = 1, done: Callable[[], object] = lambda: None) -> tuple[Entry, ...]:
    """Judge all trials, in the order of :func:`trials`, in ``jobs`` processes; ``done`` is called after each."""
    served: list[Served] = []
    for each in in_order(judge, tried, jobs):
        served.append(each)
        done()
    grouped = groupby(served, key=lambda one: (one.trial.workload, one.trial.contestant))
    return tuple(Entry(tuple(group)) for _, group in grouped)
