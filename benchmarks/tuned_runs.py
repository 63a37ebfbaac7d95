"""What tuning gains on real ranks with the timed runner, beside what was predicted.

    python -m benchmarks.tuned_runs [--ranks 2 4 8] [--tokens 131072] [--rounds 5] [--seconds 6]

VPP at its best fixed chunk and tuned schedules run in turn, priced with the example costs of DeepSeek-V3.1, all scaled
by the factor that makes VPP's simulated makespan ``--seconds``. The target is a gain within a point of the predicted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.launch import launch, plan_file
from benchmarks.timed_runs import COSTS, measure, scaled
from vppc.analysis.report import predict
from vppc.compiler import compile_schedule
from vppc.costs.document import cost_json, read_cost
from vppc.costs.model import CostModel
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options
from vppc.render.tables import table
from vppc.tuning.tune import Task, tune

SIZES = (4096, 6144, 8192, 12288, 16384, 24576, 32768)
TARGET = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="the simulated makespan of VPP's plan")
    arguments = parser.parse_args()
    cost = read_cost(str(COSTS))
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            schedules = contestants(cost, ranks, arguments.tokens)
            predicted = {name: predict(schedule, cost).makespan for name, schedule in schedules.items()}
            scale = arguments.seconds / predicted["vpp"]
            document = cost_json(scaled(cost, scale))
            plans = [
                plan_file(
                    replace(schedule, extra={**schedule.extra, "cost": document}), Path(folder) / f"{name}-{ranks}.json"
                )
                for name, schedule in schedules.items()
            ]
            seconds = dict(zip(schedules, launch(ranks, measure, plans, arguments.rounds)[0], strict=True))
            medians = {name: statistics.median(each) for name, each in seconds.items()}
            for name in schedules:
                expected = predicted["vpp"] / predicted[name] - 1
                gain = medians["vpp"] / medians[name] - 1
                worst = max(worst, abs(gain - expected))
                times = (f"{predicted[name] * scale:.3f} s", f"{medians[name]:.3f} s")
                rows.append([str(ranks), name, *times, f"{expected:+.2%}", f"{gain:+.2%}"])
    print(table(["ranks", "schedule", "predicted", "median", "predicted gain", "measured gain"], rows))
    if worst > TARGET:
        print(f"a gain is {worst:.2%} off; the target is {TARGET:.0%}", file=sys.stderr)
        sys.exit(1)


def contestants(cost: CostModel, ranks: int, tokens: int) -> dict[str, Schedule]:
    """VPP at its best fixed chunk, the tuned V and the best tuned schedule of all placements."""
    prompts = (Request("r0", tokens),)
    model = Model(cost.name, cost.layer_count)
    options = [Options(strategy="vpp-async", pp=ranks, chunk_size=size) for size in SIZES]
    fixed = [compile_schedule(prompts, model, cost, each) for each in options]
    every = tune(Task(requests=prompts, cost=cost, model=model, pp=ranks))
    return {
        "vpp": min(fixed, key=lambda schedule: predict(schedule, cost).makespan),
        "tuned V": next(tuned.schedule for tuned in every if tuned.placement == "v"),
        f"tuned {every[0].placement} {every[0].vp}": every[0].schedule,
    }


if __name__ == "__main__":
    main()
