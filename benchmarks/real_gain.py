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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launch import launch, plan_file
from benchmarks.real_runs import QUIET, RANKS, calibrated, more, planned, run_all
from vppc.analysis.report import Report, predict
from vppc.costs.model import CostModel
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import Measured, measure
from vppc.render.tables import table

ONE, TWO = "one prompt", "two prompts"
STRATEGIES = {ONE: ("cpp", "dcpp", "vpp-async"), TWO: ("cpp", "vpp-async", "vpp-packed")}
POINTS, MAKESPAN = 0.02, 0.05


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
        sizes = (arguments.chunk * 3 // 4, arguments.chunk // 3)  # other chunks than will be judged
        cost = calibrated(folder, arguments.tokens * 3 // 4, sizes, arguments.rounds).cost
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
