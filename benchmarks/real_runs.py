"""Real runs of the reference runner's own model on this machine, its costs, and how quiet it was meanwhile.

"Stolen" is the part of a run's forwards in which this machine ran something else, by the threads' own clocks.
"""

from __future__ import annotations

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
from vppc.compiler import compile_schedule
from vppc.costs.calibration import Calibration, calibrate
from vppc.costs.model import CostModel, LayerCost
from vppc.costs.samples import Layers, Measurements
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options
from vppc.profiles.journal import read_journal
from vppc.profiles.measured import measurements

RANKS = 2
LAYERS = 8
QUIET = 0.05
"""The most of the forwards' time that others may have in a run that counts."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a plan: its journal's folder, and the part of the forwards' time that others had."""

    folder: str
    stolen: float


def calibrated(folder: Path, tokens: int, sizes: Sequence[int], rounds: int) -> Calibration:
    """Costs of this machine, from quiet runs of one prompt, each in chunks of one of the sizes."""
    guess = CostModel((LayerCost(LAYERS, per_token=1e-5, per_pair=1e-9),))
    plans = [plan_file(planned("cpp", [tokens], size, guess), folder / f"calibrate-{size}.json") for size in sizes]
    runs = launch(RANKS, run_all, plans, rounds, str(folder / "calibrate"))[0]
    layers = Layers.alike(LAYERS)
    found = Measurements(layers)
    for each in runs:
        quietest = min(each, key=lambda run: run.stolen)
        for run in each:
            if run.stolen <= QUIET or run is quietest:
                found += measurements(read_journal(run.folder), layers)
    return calibrate(found, name="this machine")


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


def more(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"
