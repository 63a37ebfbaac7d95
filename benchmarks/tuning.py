"""How good tuned schedules are, and how long tuning takes, beside the strategies at their best fixed chunk.

    python -m benchmarks.tuning [--pp 2 4 8 16] [--tokens 65536 ...] [--placement v] [--machine interference]
    python -m benchmarks.tuning --queue [--pp 2 4 8]
    python -m benchmarks.tuning --short [--pp 2 4] [--machine interference]

Prints, for one prompt and chunks of 32K at most, the efficiency (ideal / makespan) of CPP, DCPP and VPP, of the tuned
V and of the best of every placement, with the bound of any chunking on the stages found, and CPU seconds. ``annealed``
is what a minute of simulated annealing of sizes and layers reached on a V. ``--machine`` prices other machines: with
communication inside layers, launches, slow links or interference. ``--queue`` tunes eight queued prompts of mixed
lengths on a V: the target is a makespan within 2% of the bound for its own chunks and layers. ``--short`` tunes short
prompts, beside one rank alone and one stage a rank: when not to use more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from vppc.compare import Case, Outcome, Queue, equal_prompts, judge
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, Linear
from vppc.ir.schedule import Model, Request
from vppc.passes.strategies import Options
from vppc.render.tables import percent, table
from vppc.tuning.tune import Task, Tuned, tune

COSTS = Path(__file__).resolve().parents[1] / "examples" / "costs"
LENGTHS = (65536, 131072, 262144, 524288, 1048576)
SHORT = (512, 1024, 2048, 4096, 8192)
SIZES = (2048, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
QUEUE = (7, 122710, 905, 42870, 13604, 90112, 1763, 30001)
ANNEALED = {
    2: (0.835, 0.905, 0.946, 0.957, 0.959),
    4: (0.682, 0.804, 0.883, 0.919, 0.929),
    8: (0.544, 0.675, 0.782, 0.850, 0.893),
}
ANNEALED_FREE = {
    2: (0.870, 0.923, 0.946, 0.958, 0.959),
    4: (0.786, 0.842, 0.883, 0.919, 0.929),
    8: (0.667, 0.757, 0.818, 0.850, 0.893),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, nargs="+", help="[default: 2 4 8 16; 2 4 8 of a queue, 2 4 of short prompts]")
    parser.add_argument("--tokens", type=int, nargs="+", help="[default: 65536 to 1048576; 512 to 8192 of short ones]")
    parser.add_argument("--placement", choices=("v", "all"), default="all")
    parser.add_argument("--machine", choices=tuple(MACHINES), default="compute")
    parser.add_argument("--effort", type=float, default=1.0, help="of the search over all placements")
    parser.add_argument("--queue", action="store_true")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    cost = MACHINES[arguments.machine]()
    if arguments.queue:
        print(queued(cost, arguments.pp or (2, 4, 8)))
        return
    if arguments.short:
        print(short(cost, arguments.pp or (2, 4), arguments.tokens or SHORT))
        return
    for pp in arguments.pp or (2, 4, 8, 16):
        print(f"\n{cost.name}, machine {arguments.machine}, {pp} ranks", flush=True)
        print(efficiencies(cost, pp, arguments.tokens or LENGTHS, arguments.placement, arguments.effort), flush=True)


def efficiencies(cost: CostModel, pp: int, lengths: Iterable[int], placement: str, effort: float) -> str:
    """The table of one machine and number of ranks."""
    rows = []
    for tokens in lengths:
        fixed = {name: best_fixed(cost, pp, equal_prompts(tokens), name) for name in ("cpp", "dcpp", "vpp-async")}
        v, v_seconds = measured(partial(tuned, cost, pp, tokens, "v"))
        row = [f"{tokens // 1024}K", *(f"{efficiency(outcome):.3f}" for outcome in fixed.values())]
        row += [reference(cost, ANNEALED, pp, tokens), f"{v[0].report.efficiency:.4f}", f"{v_seconds:.1f} s"]
        row += [f"{fixed['vpp-async'].makespan / v[0].report.makespan - 1:+.1%}", percent(v[0].gap)]
        if placement == "all":
            every, seconds = measured(partial(tuned, cost, pp, tokens, None, effort))
            row += [reference(cost, ANNEALED_FREE, pp, tokens), f"{every[0].report.efficiency:.4f}"]
            row += [f"{fixed['vpp-async'].makespan / every[0].report.makespan - 1:+.1%}"]
            row += [", ".join(f"{each.placement} {each.vp} {each.report.efficiency:.3f}" for each in every)]
            row += [percent(every[0].gap), f"{seconds:.1f} s"]
        rows.append(row)
    headers = ["prompt", "cpp", "dcpp", "vpp", "annealed", "tuned V", "CPU", "over vpp", "below bound"]
    if placement == "all":
        headers += ["annealed", "tuned", "over vpp", "best of each placement", "below bound", "CPU"]
    return table(headers, rows)


def queued(cost: CostModel, ranks: Iterable[int]) -> str:
    """The table of the queue: VPP packed at its best fixed chunk, and the tuned V."""
    requests = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(QUEUE))
    model = Model(cost.name, cost.layer_count)
    rows = []
    for pp in ranks:
        fixed = best_fixed(cost, pp, Queue("queue", requests), "vpp-packed").makespan
        task = Task(requests=requests, cost=cost, model=model, pp=pp, placement="v", share=0.02)
        [found], seconds = measured(partial(tune, task))
        makespan = found.report.makespan
        row = [str(pp), f"{fixed:.2f} s", f"{makespan:.2f} s", f"{fixed / makespan - 1:+.1%}"]
        rows.append([*row, percent(found.report.gap), str(len(found.schedule.chunks)), f"{seconds:.1f} s"])
    return table(["ranks", "vpp-packed", "tuned V", "over it", "above bound", "chunks", "CPU"], rows)


def short(cost: CostModel, ranks: Iterable[int], lengths: Iterable[int]) -> str:
    """The table of short prompts: one rank alone, one stage a rank, and the best of all placements."""
    rows = []
    for pp in ranks:
        for tokens in lengths:
            found = {each.placement: each.report.makespan for each in tuned(cost, pp, tokens, None)}
            best = min(found, key=found.__getitem__)
            alone = tuned(cost, 1, tokens, None)[0].report.makespan
            row = [str(pp), str(tokens), f"{alone:.3f} s", f"{found['straight']:.3f} s", f"{found[best]:.3f} s", best]
            rows.append([*row, f"{alone / found[best] - 1:+.1%}", f"{found['straight'] / found[best] - 1:+.1%}"])
    headers = ["ranks", "tokens", "one rank", "straight", "best", "placement", "over one rank", "over straight"]
    return table(headers, rows)


def reference(cost: CostModel, annealed: Mapping[int, tuple[float, ...]], pp: int, tokens: int) -> str:
    """What annealing reached, where that was tried: at the costs without communication."""
    if cost != _compute() or pp not in annealed or tokens not in LENGTHS:
        return ""
    return f"{annealed[pp][LENGTHS.index(tokens)]:.3f}"


def best_fixed(cost: CostModel, pp: int, prompts: Queue, strategy: str) -> Outcome:
    """A strategy at the chunk size that suits it best."""
    sizes = [size for size in SIZES if size <= prompts.longest and prompts.longest // size <= 512]
    cases = [Case(cost, prompts, Options(strategy=strategy, pp=pp, chunk_size=size)) for size in sizes]
    return min(map(judge, cases), key=lambda outcome: outcome.makespan)


def efficiency(outcome: Outcome) -> float:
    """Of a strategy that was not refused."""
    return outcome.report.efficiency if outcome.report is not None else 0.0


def tuned(cost: CostModel, pp: int, tokens: int, placement: str | None, effort: float = 1.0) -> tuple[Tuned, ...]:
    """One prompt, tuned."""
    model, prompts = Model(cost.name, cost.layer_count), (Request("r0", tokens),)
    return tune(Task(requests=prompts, cost=cost, model=model, pp=pp, placement=placement, effort=effort))


def measured(work: Callable[[], tuple[Tuned, ...]]) -> tuple[tuple[Tuned, ...], float]:
    """What the work returns, and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def _compute() -> CostModel:
    return read_cost(str(COSTS / "deepseek-v3.1-910c-tp8.json"))


def _collectives() -> CostModel:
    return read_cost(str(COSTS / "deepseek-v3.1-910c-tp8-comm.json"))


def _slow_links() -> CostModel:
    return replace(_collectives(), transfer=Linear(0.005, 7.2e-7))


def _launches() -> CostModel:
    return replace(_collectives(), launch=0.01)


def _interference() -> CostModel:
    return replace(_slow_links(), launch=0.01, interference=0.2)


MACHINES: dict[str, Callable[[], CostModel]] = {
    "compute": _compute,
    "collectives": _collectives,
    "launches": _launches,
    "slow-links": _slow_links,
    "interference": _interference,
}


if __name__ == "__main__":
    main()
