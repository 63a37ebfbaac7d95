"""Whether serving on real ranks takes as long as the serving simulator says: ``vppc serve`` on timed ranks.

    python -m benchmarks.serving_runs [--pp 4] [--requests 60] [--load 0.5 2] [--seconds 6]

Prompts of the paper's mixed lengths come at random, at so many times the rate that all work would keep the ranks busy
with; the example costs of DeepSeek-V3.1 are scaled so that the simulated makespan is ``--seconds``. The makespan is
from the first request to the last first token. The target is 3% of the simulated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.timed_runs import COSTS, scaled
from vppc.costs.document import cost_json, read_cost
from vppc.costs.model import CostModel, ideal_seconds
from vppc.ir.schedule import Request
from vppc.passes.strategies import STRATEGIES, Options
from vppc.render.tables import table
from vppc.serving.simulate import Setting, serve
from vppc.serving.workloads import Workload, mixed_lengths

TARGET = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, default=4)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=["cpp", "vpp-async", "vpp-packed"])
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 2.0])
    parser.add_argument("--seconds", type=float, default=6.0, help="the simulated makespan")
    arguments = parser.parse_args()
    rows, worst = [], 0.0
    for strategy in arguments.strategy:
        for load in arguments.load:
            workload, cost = planned(strategy, arguments.pp, arguments.requests, load, arguments.seconds)
            makespan, ttft = served(workload, cost, strategy, arguments.pp)
            off = makespan / arguments.seconds - 1
            worst = max(worst, abs(off))
            simulated = first_tokens(workload, cost, strategy, arguments.pp)
            rows.append(
                [strategy, f"{load:g}", f"{makespan:.3f} s", f"{off:+.2%}", f"{simulated:.3f} s", f"{ttft:.3f} s"]
            )
    print(table(["strategy", "load", "makespan", "off by", "mean TTFT simulated", "measured"], rows))
    if worst > TARGET:
        print(f"the worst makespan is {worst:.2%} off; the target is {TARGET:.0%}", file=sys.stderr)
        sys.exit(1)


def planned(strategy: str, pp: int, count: int, load: float, seconds: float) -> tuple[Workload, CostModel]:
    """A workload, and costs by which it takes ``seconds`` on the simulator; scaling both changes no decision."""
    cost = replace(read_cost(str(COSTS)), interference=0.0)  # the timed runner does not slow down beside transfers
    lengths = mixed_lengths(count)
    Random(1).shuffle(lengths)
    workload = Workload("mixed", tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(lengths)))
    workload = workload.paced(load * count / ideal_seconds(cost, workload.requests, pp), seed=1)
    run = serve(workload, setting(cost, strategy, pp))
    scale = seconds / (max(run.timeline.ends) - workload.requests[0].arrival)
    requests = tuple(replace(request, arrival=request.arrival * scale) for request in workload.requests)
    return replace(workload, requests=requests), scaled(cost, scale)


def first_tokens(workload: Workload, cost: CostModel, strategy: str, pp: int) -> float:
    """The simulated mean TTFT in seconds."""
    return serve(workload, setting(cost, strategy, pp)).report(cost).ttft.mean


def setting(cost: CostModel, strategy: str, pp: int) -> Setting:
    return Setting(cost=cost, options=Options(strategy=strategy, pp=pp, chunk_size=8192))


def served(workload: Workload, cost: CostModel, strategy: str, pp: int) -> tuple[float, float]:
    """The makespan and the mean TTFT of ``vppc serve``, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        costs, lines = Path(folder) / "cost.json", Path(folder) / "requests.jsonl"
        costs.write_text(json.dumps(cost_json(cost)))
        lines.write_text(
            "".join(
                json.dumps({"id": each.id, "prompt_tokens": each.prompt_tokens, "arrival": each.arrival}) + "\n"
                for each in workload.requests
            )
        )
        command = [sys.executable, "-m", "vppc", "serve", str(lines), "--pp", str(pp), "--cost", str(costs)]
        command += ["--strategy", strategy, "--runner", "timed"]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    ttfts = {each["id"]: each["ttft"] for each in map(json.loads, out.splitlines())}
    ends = [request.arrival + ttfts[request.id] for request in workload.requests]
    return max(ends) - workload.requests[0].arrival, sum(ttfts.values()) / len(ttfts)


if __name__ == "__main__":
    main()
