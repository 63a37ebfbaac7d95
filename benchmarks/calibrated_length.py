"""How well a cost file from a short run predicts longer prompts with real compute on this machine.

    python -m benchmarks.calibrated_length [--short N] [--long N ..] [--rounds R] [--keep DIR] [-o COST]

Two ranks with a thread each prefill a short prompt with the reference runner's own model, in chunks of several sizes.
`vppc calibrate` fits a cost file to the journals alone; then longer prompts run, in several chunk sizes, straight and
folded, and each run's makespan is held against the one that the simulator predicts from that file.

Target: each median makespan is within 5% of the predicted one. A target that is missed makes the exit status 1.

Runs of which this machine gave more than 5% of the forwards' time to others are set aside ("stolen", by the threads'
own clocks); "quiet" counts the runs left. "Forwards" is how much longer these took than planned: a core that is
slower for a while, or costs that do not carry as far; the rest of "off by" is the schedule's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.launch import launch, plan_file
from benchmarks.real_runs import QUIET, RANKS, calibrated, more, planned, run_all
from vppc.analysis.report import predict
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel
from vppc.files import write_text
from vppc.json_text import dumps
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import Measured, measure
from vppc.render.calibration import calibration_text
from vppc.render.tables import count, seconds, table

SHORT_SIZES = (512, 1024, 2048)
LONG_SIZES = (768, 1536, 3072)
STRATEGIES = ("cpp", "vpp-async")
TARGET = 0.05


class Held(NamedTuple):
    """A plan's predicted makespan in seconds, and what its quiet runs measured, of ``taken`` in all."""

    tokens: int
    strategy: str
    size: int
    planned: float
    runs: list[Measured]
    taken: int

    @property
    def off(self) -> float:
        """The median makespan over the predicted one."""
        return statistics.median(run.report.makespan for run in self.runs) / self.planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=8192)
    parser.add_argument("--long", type=int, nargs="+", default=[16384])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="keep plans and journals there")
    parser.add_argument("-o", "--output", help="write the cost file there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fitted = calibrated(folder, arguments.short, SHORT_SIZES, 2 * arguments.rounds)
        print(f"{calibration_text(fitted)}\n")
        if arguments.output:
            write_text(arguments.output, dumps(cost_json(fitted.cost)) + "\n")
        held = ran(folder, fitted.cost, arguments.long, arguments.rounds)
    loud = [each for each in held if not each.runs]
    if loud:
        sys.exit(f"no quiet run of {len(loud)} of {len(held)} plans: wait until the machine is quiet")
    print(table(HEADERS, map(row, held)))
    missed = [each for each in held if abs(each.off - 1) > TARGET]
    print(f"{len(held) - len(missed)} of {len(held)} within {100 * TARGET:.0f}%")
    sys.exit(1 if missed else 0)


def ran(folder: Path, cost: CostModel, lengths: Sequence[int], rounds: int) -> list[Held]:
    """All plans, run in turn, round after round, beside their predictions."""
    cells = [(tokens, strategy, size) for tokens in lengths for strategy in STRATEGIES for size in LONG_SIZES]
    schedules = [planned(strategy, [tokens], size, cost) for tokens, strategy, size in cells]
    plans = [plan_file(each, folder / f"plan-{number}.json") for number, each in enumerate(schedules)]
    runs = launch(RANKS, run_all, plans, rounds, str(folder / "run"))[0]
    return [
        Held(
            *cell,
            predict(schedule, cost).makespan,
            [measure(read_journal(run.folder), cost) for run in each if run.stolen <= QUIET],
            len(each),
        )
        for cell, schedule, each in zip(cells, schedules, runs, strict=True)
    ]


HEADERS = ("prompt", "strategy", "chunks of", "predicted", "measured", "least", "most", "off by", "forwards", "quiet")


def row(held: Held) -> tuple[str, ...]:
    spans = [run.report.makespan for run in held.runs]
    return (
        count(held.tokens),
        held.strategy,
        count(held.size),
        *(seconds(span) for span in (held.planned, statistics.median(spans), min(spans), max(spans))),
        more(held.off),
        more(statistics.median(run.forwards_ratio for run in held.runs)),
        f"{len(held.runs)} of {held.taken}",
    )


if __name__ == "__main__":
    main()
