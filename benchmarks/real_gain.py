"""What the strategies gain with real compute on this machine, beside what the simulator predicts.

    python -m benchmarks.real_gain [--tokens N] [--chunk N] [--rounds R] [--keep DIR]

Two ranks with a thread each prefill one long prompt (and, for vpp-packed, half of it twice) with the reference
runner's own model, in which attention dominates. First cost constants are fitted to runs with the same model and
both ranks busy; then the strategies run in turn, round after round, and each run's journal is judged.

Targets: vpp-async gains over cpp what is predicted, less two points; the bubble of the critical rank (the one with
the most work) is within two points of the predicted one; the makespan is within 5% of the predicted one. A target that
is missed makes the exit status 1.

"Stolen" is the part of a run's forwards in which this machine ran something else, by the threads' own clocks. Runs
with more than 5% of that tell of the others, and are set aside, in calibration too: "quiet" counts the runs left.
Where none is left, there is nothing to judge, and the exit status is 1 as well. A core that is itself slower for a
while (a virtual machine's neighbours, its frequency) shows on no clock, but in the forwards: "forwards" is how much
longer they took than planned, and "evenly" the makespan and the gain at the planned speed of forwards. A miss says
whether it is one evenly, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.launch import launch, plan_file
from runtime.arguments import Arguments, parse
from runtime.make_runner import Place, reference_runner
from runtime.runners.protocol import Runner
from runtime.session import Session
from vppc.analysis.report import Report, predict
from vppc.compiler import compile_schedule
from vppc.costs.calibration import calibrate
from vppc.costs.model import CostModel, LayerCost
from vppc.costs.samples import Layers, Measurements
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import Measured, measure, measurements
from vppc.render.tables import table

RANKS = 2
LAYERS = 8
ONE, TWO = "one prompt", "two prompts"
STRATEGIES = {ONE: ("cpp", "dcpp", "vpp-async"), TWO: ("cpp", "vpp-async", "vpp-packed")}
POINTS, MAKESPAN = 0.02, 0.05
QUIET = 0.05
"""The most of the forwards' time that others may have in a run that counts."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a plan: its journal's folder, and the part of the forwards' time that others had."""

    folder: str
    stolen: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan, what was predicted of it, and what its quiet runs measured, of ``count`` runs in all."""

    prompts: str
    strategy: str
    plan: Report
    rounds: list[Measured]
    count: int
    stolen: float

    @property
    def makespan(self) -> float:
        return statistics.median(each.report.makespan for each in self.rounds)

    @property
    def evenly(self) -> float:
        """The makespan of runs whose forwards took together what was planned."""
        return statistics.median(each.report.makespan / each.forwards_ratio for each in self.rounds)

    @property
    def critical(self) -> int:
        """The rank with the most work, as planned."""
        return max(range(RANKS), key=lambda rank: self.plan.ranks[rank].compute)

    @property
    def bubble(self) -> float:
        return statistics.median(each.report.ranks[self.critical].bubble_ratio for each in self.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="keep plans and journals there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cost = calibrated(folder, arguments.tokens, arguments.chunk, arguments.rounds)
        judged = compared(folder, cost, arguments.tokens, arguments.chunk, arguments.rounds)
    loud = [each for each in judged if not each.rounds]
    if loud:
        names = ", ".join(f"{each.strategy} ({each.prompts}: {100 * each.stolen:.0f}% stolen)" for each in loud)
        sys.exit(f"no quiet run of {names}: wait until the machine is quiet, or take more rounds")
    print(table(HEADERS, rows(judged)))
    missed = misses(judged)
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    sys.exit(1 if missed else 0)


def calibrated(folder: Path, tokens: int, chunk: int, rounds: int) -> CostModel:
    """Costs of this machine, from quiet runs with other chunks than will be judged."""
    guess = CostModel((LayerCost(LAYERS, per_token=1e-5, per_pair=1e-9),))
    sizes = (chunk * 3 // 4, chunk // 3)
    plans = [
        plan_file(planned("cpp", [tokens * 3 // 4], size, guess), folder / f"calibrate-{size}.json") for size in sizes
    ]
    runs = launch(RANKS, run_all, plans, rounds, str(folder / "calibrate"))[0]
    layers = Layers.alike(LAYERS)
    found = Measurements(layers)
    for each in runs:
        quietest = min(each, key=lambda run: run.stolen)
        for run in each:
            if run.stolen <= QUIET or run is quietest:
                found += measurements(read_journal(run.folder), layers)
    return calibrate(found, name="this machine").cost


def compared(folder: Path, cost: CostModel, tokens: int, chunk: int, rounds: int) -> list[Judged]:
    """All strategies, run in turn and judged by their journals."""
    prompts = {ONE: [tokens], TWO: [tokens // 2, tokens // 2]}
    cells = [(kind, strategy) for kind, strategies in STRATEGIES.items() for strategy in strategies]
    schedules = [planned(strategy, prompts[kind], chunk, cost) for kind, strategy in cells]
    plans = [plan_file(each, folder / f"plan-{number}.json") for number, each in enumerate(schedules)]
    runs = launch(RANKS, run_all, plans, rounds, str(folder / "run"))[0]
    return [
        Judged(
            kind,
            strategy,
            predict(schedule, cost),
            [measure(read_journal(run.folder), cost) for run in each if run.stolen <= QUIET],
            len(each),
            statistics.median(run.stolen for run in each),
        )
        for (kind, strategy), schedule, each in zip(cells, schedules, runs, strict=True)
    ]


def planned(strategy: str, prompts: Sequence[int], chunk: int, cost: CostModel) -> Schedule:
    requests = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(prompts))
    options = Options(strategy=strategy, pp=RANKS, chunk_size=chunk, min_chunk=chunk // 4, page_size=64)
    return compile_schedule(requests, Model("small", LAYERS), cost, options)


def run_all(plans: Sequence[str], rounds: int, folder: str) -> list[list[Run]]:
    """Run every plan, in turn, ``rounds`` times, after a first one to warm up."""
    found: list[list[Run]] = [[] for _ in plans]
    with Session(parse([plans[0], "--timeout", "300"])) as session:
        session.run(parse([plans[0], "--timeout", "300"]))
        for number in range(rounds):
            for index, plan in enumerate(plans):
                journal = f"{folder}-{index}-{number}"
                watch = Watch()
                session.run(parse([plan, "--timeout", "300", "--journal", journal]), watch.runner)
                found[index].append(Run(journal, max(session.world.gather(watch.stolen))))
    return found


class Watch:
    """How much of a process's forwards the machine gave to others."""

    def __init__(self) -> None:
        self.wall = self.own = 0.0

    @property
    def stolen(self) -> float:
        return 1.0 - self.own / self.wall

    def runner(self, arguments: Arguments, schedule: Schedule, place: Place) -> Runner:
        """The reference runner, its forwards timed on both clocks."""
        runner = reference_runner(arguments, schedule, place)
        forward = runner.forward

        def timed(*given: Any) -> None:
            wall, own = time.perf_counter(), time.thread_time()
            forward(*given)
            self.wall += time.perf_counter() - wall
            self.own += time.thread_time() - own

        runner.forward = timed  # type: ignore[method-assign, assignment]
        return runner


HEADERS = ["prompts", "strategy", "planned", "median", "least", "most", "off by", "forwards", "evenly"]
HEADERS += ["gain planned", "measured", "evenly", "bubble planned", "measured", "quiet"]


def rows(judged: Sequence[Judged]) -> list[list[str]]:
    found = []
    for each in judged:
        base = rival(judged, each)
        spans = [run.report.makespan for run in each.rounds]
        gains = (base.plan.makespan / each.plan.makespan, base.makespan / each.makespan, base.evenly / each.evenly)
        found.append(
            [
                each.prompts,
                each.strategy,
                f"{each.plan.makespan:.2f} s",
                f"{each.makespan:.2f} s",
                f"{min(spans):.2f} s",
                f"{max(spans):.2f} s",
                more(each.makespan / each.plan.makespan),
                more(statistics.median(run.forwards_ratio for run in each.rounds)),
                more(each.evenly / each.plan.makespan),
                *(more(gain) if each is not base else "" for gain in gains),
                f"{100 * each.plan.ranks[each.critical].bubble_ratio:.1f}%",
                f"{100 * each.bubble:.1f}%",
                f"{len(each.rounds)} of {each.count}",
            ]
        )
    return found


def rival(judged: Sequence[Judged], each: Judged) -> Judged:
    """cpp on the same prompts."""
    return next(other for other in judged if other.strategy == "cpp" and other.prompts == each.prompts)


def more(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"


def misses(judged: Sequence[Judged]) -> list[str]:
    found = []
    for each in judged:
        name, base, plan = f"{each.strategy}, {each.prompts}", rival(judged, each), each.plan.makespan
        target = base.plan.makespan / plan - POINTS
        if each.strategy == "vpp-async" and base.makespan / each.makespan < target:
            evenly = "a miss" if base.evenly / each.evenly < target else "none"
            found.append(f"{name}: gains {more(base.makespan / each.makespan)} over cpp, {evenly} evenly")
        bubble = each.plan.ranks[each.critical].bubble_ratio
        if abs(each.bubble - bubble) > POINTS:
            found.append(
                f"{name}: rank {each.critical} idles {100 * each.bubble:.1f}%, {100 * bubble:.1f}% were planned"
            )
        if abs(each.makespan / plan - 1) > MAKESPAN:
            evenly = "a miss" if abs(each.evenly / plan - 1) > MAKESPAN else "none"
            found.append(f"{name}: takes {each.makespan:.2f} s, {plan:.2f} s were planned, {evenly} evenly")
    return found


if __name__ == "__main__":
    main()
