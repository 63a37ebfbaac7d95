"""Whether real ranks keep the time that the simulator says: every strategy with the timed runner, on 2, 4 and 8 ranks.

    python -m benchmarks.timed_runs [--ranks 2 4 8] [--rounds 5] [--seconds 5.5]

One prompt and then two more, priced with the example costs of DeepSeek-V3.1, all scaled so that the simulated
makespan is ``--seconds``. Rounds go over the strategies in turn. The target is a median within 2% of the simulated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.launch import launch, plan_file
from runtime.arguments import parse
from runtime.session import Session
from vppc.analysis.report import predict
from vppc.compiler import compile_schedule
from vppc.costs.document import cost_json, read_cost
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import STRATEGIES, Options
from vppc.render.tables import table

COSTS = Path(__file__).parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json"
PROMPTS = (131072, 40000, 70000)
TARGET = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.5, help="the simulated makespan of every plan")
    arguments = parser.parse_args()
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            plans = [
                plan_file(planned(strategy, ranks, arguments.seconds), Path(folder) / f"{strategy}-{ranks}.json")
                for strategy in STRATEGIES
            ]
            measured = launch(ranks, measure, plans, arguments.rounds)[0]
            for strategy, seconds in zip(STRATEGIES, measured, strict=True):
                off = statistics.median(seconds) / arguments.seconds - 1
                worst = max(worst, abs(off))
                spread = [f"{100 * (each / arguments.seconds - 1):+.2f}%" for each in (min(seconds), max(seconds))]
                rows.append(
                    [str(ranks), strategy, f"{statistics.median(seconds):.3f} s", f"{100 * off:+.2f}%", *spread]
                )
    print(table(["ranks", "strategy", "median", "off by", "least", "most"], rows))
    if worst > TARGET:
        print(f"the worst median is {100 * worst:.2f}% off; the target is {100 * TARGET:g}%", file=sys.stderr)
        sys.exit(1)


def planned(strategy: str, ranks: int, seconds: float) -> Schedule:
    """The schedule whose simulated makespan is ``seconds``: the costs are scaled, which changes no order."""
    cost = replace(read_cost(str(COSTS)), interference=0.0)  # the timed runner does not slow down beside transfers
    options = Options(strategy=strategy, pp=ranks, chunk_size=16384)
    requests = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(PROMPTS))
    schedule = compile_schedule(requests, Model("deepseek-v3.1", cost.layer_count), cost, options)
    scale = seconds / predict(schedule, cost).makespan
    return replace(schedule, extra={**schedule.extra, "cost": cost_json(scaled(cost, scale))})


def scaled(cost: CostModel, scale: float) -> CostModel:
    """All seconds times ``scale``."""

    def line(linear: Linear) -> Linear:
        return Linear(linear.fixed * scale, linear.per_token * scale)

    layers = tuple(
        LayerCost(
            count=kind.count,
            fixed=kind.fixed * scale,
            per_token=kind.per_token * scale,
            per_pair=kind.per_pair * scale,
            per_prefix_token=kind.per_prefix_token * scale,
            indexer_per_pair=kind.indexer_per_pair * scale,
            topk=kind.topk,
            collective_fixed=kind.collective_fixed * scale,
            collective_per_token=kind.collective_per_token * scale,
        )
        for kind in cost.layers
    )
    return replace(
        cost,
        layers=layers,
        embed=line(cost.embed),
        head=line(cost.head),
        transfer=line(cost.transfer),
        launch=cost.launch * scale,
    )


def measure(plans: list[str], rounds: int) -> list[list[float]]:
    """Seconds of every round of every plan; rounds go over the plans in turn."""
    found: list[list[float]] = [[] for _ in plans]
    with Session(parse([plans[0], "--runner", "timed"])) as session:
        for _ in range(rounds):
            for plan, seconds in zip(plans, found, strict=True):
                seconds.append(session.run(parse([plan, "--runner", "timed"])).makespan)
    return found


if __name__ == "__main__":
    main()
