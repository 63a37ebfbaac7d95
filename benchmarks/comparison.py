"""vppc beside what others use for the same: one table, each row with its ratio; with the machine and the date.

    python -m benchmarks.comparison                   some ten minutes
    python -m benchmarks.comparison --only compiler --only order

compiler   compile, verify and simulate, beside torch.distributed.pipelining: its lowering of the same compute order
           (``_add_send_recv``) and its simulation, which is also its only check; instructions a second
runtime    microseconds an action of two ranks over gloo, beside torch.distributed.pipelining's runtime on the same list
vllm       seconds to the first token of a small model on two ranks, beside vLLM's own pipeline: the same runners,
           prompt and chunks in our loop, and vLLM's engine when it folds (needs .venv-vllm, see scripts/vllm-venv)
order      makespans of given chunks, in vpp-async's order and in that of the tuner, beside the optimum that CP-SAT
           proves, or its bound (needs ortools: pip install '.[exact]')
chunks     makespans of tuned chunks beside DCPP, SGLang's dynamic chunks and equal ones, each at the chunk size that
           suits it best, and beside a plain random search of sizes and layers with as many evaluations

A ratio above 1 speaks for vppc. What is not installed is left out, and said. Rates and seconds are of this machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks import vllm_gain
from benchmarks.compile_speed import PP, compiled, pytorch, timed
from benchmarks.tuning import best_fixed, equal_prompts
from vppc.analysis.report import predict
from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule, paper_cost, run_passes
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, OpCosts
from vppc.ir.instruction import FORWARD, RECV, SEND
from vppc.ir.rules import check
from vppc.ir.schedule import Chunk, Model, Part, Request, Schedule
from vppc.passes.planned import PlannedChunks
from vppc.passes.strategies import Options, passes
from vppc.render.tables import table
from vppc.tuning.case import Case, Quote
from vppc.tuning.descent import nearest
from vppc.tuning.prices import Prices
from vppc.tuning.search import Found, Search
from vppc.tuning.tune import Task, finished
from vppc.tuning.workload import Limits

ROOT = Path(__file__).resolve().parents[1]
COST = ROOT / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json"


class Row(NamedTuple):
    """What was measured of vppc, of whom it is held against, and how many times better vppc is."""

    what: str
    ours: str
    whom: str
    theirs: str
    ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(SECTIONS), action="append", help="one part; repeatable (default: all)")
    options = parser.parse_args()
    gc.set_threshold(1_000_000)  # as the command sets it
    print(f"{time.strftime('%Y-%m-%d')}, {machine()}, Python {platform.python_version()}\n", flush=True)
    for name in options.only or SECTIONS:
        needs, section = SECTIONS[name]
        missing = [each for each in needs if importlib.util.find_spec(each) is None]
        if name == "vllm" and not vllm_gain.PYTHON.exists():
            missing.append("vLLM (scripts/vllm-venv)")
        if missing:
            print(f"{name}: left out, {' and '.join(missing)} is not installed\n", flush=True)
            continue
        rows = [[row.what, row.ours, row.whom, row.theirs, f"{row.ratio:.3g}"] for row in section()]
        print(table([name, "vppc", "beside", "theirs", "ratio"], rows) + "\n", flush=True)


def machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def compiler() -> Iterator[Row]:
    for chunks in (2_500, 20_000):
        compiling, schedule = timed(lambda chunks=chunks: compiled("vpp-async", chunks))
        verifying, _ = timed(lambda schedule=schedule: check(schedule))
        costs = OpCosts.of(schedule, paper_cost(2 * PP, 1.0, 0.1))
        simulating, _ = timed(lambda schedule=schedule, costs=costs: simulate(schedule, costs))
        lowering, checking = pytorch(schedule)
        assert lowering is not None and checking is not None
        count = sum(map(len, schedule.programs))
        for what, ours, whom, theirs in (
            ("chunks, order, lowering, proof", compiling, "lowering and simulation", lowering + checking),
            ("the proof alone", verifying, "simulation", checking),
            ("simulation, priced", simulating, "simulation, unpriced", checking),
        ):
            yield Row(
                f"{count:,} instructions: {what}",
                f"{count / ours / 1000:,.0f}k/s",
                f"PyTorch: {whom}",
                f"{count / theirs / 1000:,.0f}k/s",
                theirs / ours,
            )


def runtime() -> Iterator[Row]:
    from benchmarks import runtime_overhead
    from benchmarks.launch import launch, plan_file
    from vppc.ir.torch_csv import to_torch_csv

    chunks = 400
    schedule = runtime_overhead.compiled("vpp-async", 2, chunks)
    with tempfile.TemporaryDirectory() as folder:
        plan, actions = plan_file(schedule, Path(folder) / "plan.json"), Path(folder) / "actions.csv"
        actions.write_text("".join(to_torch_csv(schedule)), newline="")
        rounds = launch(2, runtime_overhead.measure_both, plan, str(actions), chunks, 9)[0]
    count = max(sum(row[0] in (FORWARD, SEND, RECV) for row in program.rows()) for program in schedule.programs)
    ours, theirs = (statistics.median(each[which] for each in rounds) / count * 1e6 for which in (0, 1))
    what = f"{count:,} actions a rank, nothing computed"
    yield Row(what, f"{ours:.1f} us an action", "PyTorch's runtime", f"{theirs:.1f} us", theirs / ours)


def vllm() -> Iterator[Row]:
    from benchmarks.launch import plan_file

    tokens, chunk, prompts, rounds = 8192, 1024, 3, 2
    cost = paper_cost(vllm_gain.LAYERS, 1e-9, 0.0)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = vllm_gain.written_model(folder / "model")
        files = {}
        for name in ("cpp", "vpp-async"):
            options = Options(strategy=name, pp=2, chunk_size=chunk)
            schedule = compile_schedule((Request("r0", tokens),), Model("m", vllm_gain.LAYERS), cost, options)
            files[name] = plan_file(schedule, folder / f"{name}.json")
        folds = {"virtual_pipeline_parallel_size": 2, "vppc": {"strategy": "vpp-async"}}
        for number in range(rounds):
            engines = {"vLLM": vllm_gain.shadow(folder / f"shadow-{number}"), "vLLM, folded": folds}
            for name, additional in engines.items():
                job = {"model": model, "prompts": [tokens] * (prompts + 1), "budget": chunk, "additional": additional}
                seconds.setdefault(name, []).extend(vllm_gain.started("--engine", job))
            for name, file in files.items():
                job = {"model": model, "plan": file, "runs": prompts, "to": str(folder / f"{name}-{number}")}
                seconds.setdefault(name, []).extend(vllm_gain.started("--loop", job))
    median = {name: statistics.median(each) for name, each in seconds.items()}
    size = f"{tokens:,} tokens in chunks of {chunk:,}"
    for name, what in (
        ("cpp", "our loop, straight"),
        ("vpp-async", "our loop, folded"),
        ("vLLM, folded", "vLLM's engine, folded"),
    ):
        whom = f"{median['vLLM']:.3f} s"
        yield Row(
            f"{size}: {what}", f"{median[name]:.3f} s", "vLLM's own pipeline", whom, median["vLLM"] / median[name]
        )


def order() -> Iterator[Row]:
    from vppc.tuning.exact import best_order

    cost = read_cost(str(COST))
    for pp, chunks in ((2, 8), (2, 12), (3, 8), (4, 6), (4, 8)):
        for even in (True, False):
            draw = Random(chunks)
            sizes = [8192 if even else draw.randrange(2048, 16385, 128) for _ in range(chunks)]
            parts = [Part(0, sum(sizes[:chunk]), size) for chunk, size in enumerate(sizes)]
            cut = PlannedChunks(tuple(Chunk((part,)) for part in parts))
            _, *others = passes(Options(strategy="vpp-async", pp=pp), cost)
            requests = (Request("r0", sum(sizes)),)
            start = Schedule("vpp-async", Model(cost.name, cost.layer_count), pp, 1, requests=requests)
            schedule = run_passes(start, (cut, *others), cost)
            ours = predict(schedule, cost).makespan
            exact = best_order(schedule, OpCosts.of(schedule, cost), ours, 20.0)
            proven = exact.bound >= exact.makespan * (1 - 1e-4)
            whom = "CP-SAT's optimum" if proven else f"CP-SAT, 20 s (bound {exact.bound:.3f} s)"
            what = f"{pp} ranks, {chunks} {'equal' if even else 'unequal'} chunks"
            for name, makespan in (("vpp-async", ours), ("tune", listed(schedule, cost))):
                yield Row(
                    f"{what}, {name}", f"{makespan:.3f} s", whom, f"{exact.makespan:.3f} s", exact.makespan / makespan
                )


def listed(schedule: Schedule, cost: CostModel) -> float:
    """The makespan of these chunks in the order that the tuner gives them on these stages."""
    task = Task(requests=schedule.requests, cost=cost, model=schedule.model, pp=schedule.pp)
    (workload,) = task.workloads(Limits(max_chunk=2**20))[:1]
    ranges = tuple(stage.layers for stage in schedule.stages)
    search = Search(Prices.of(cost), workload, "v", schedule.pp, 2, ranges=ranges)
    case = replace(search.shape, cutting=workload.cut_into([len(schedule.chunks)]))
    sizes = [float(chunk.tokens) for chunk in schedule.chunks]
    point = case.start(sizes, search.starts[0], [admit for way in search.ways for admit in way])
    return finished(task, search.prices, Found(case, case.resequenced(point, 3))).report.makespan


def chunks() -> Iterator[Row]:
    cost = read_cost(str(COST))
    prices = Prices.of(cost)
    for pp, tokens in ((2, 131072), (4, 131072), (4, 524288)):
        task = Task(requests=(Request("r0", tokens),), cost=cost, model=Model(cost.name, cost.layer_count), pp=pp)
        (workload,) = task.workloads(task.limits)[:1]
        search = Search(prices, workload, "v", pp, 2)
        search.shape = Counted(**{each.name: getattr(search.shape, each.name) for each in fields(search.shape)})
        Counted.quotes = 0
        (found,) = search.run()
        ours, spent = finished(task, prices, found).report.makespan, Counted.quotes
        drawn = finished(task, prices, at_random(search, spent)).report.makespan
        what, mine = f"{tokens // 1024}K on {pp} ranks, a tuned V", f"{ours:.3f} s"
        for whom, strategy in (
            ("vLLM-Ascend's DCPP", "dcpp"),
            ("SGLang's dynamic chunks", "dcpp-sglang"),
            ("equal chunks, straight", "cpp"),
            ("equal chunks, folded", "vpp-async"),
        ):
            theirs = best_fixed(cost, pp, equal_prompts(tokens), strategy).makespan
            yield Row(what, mine, whom, f"{theirs:.3f} s", theirs / ours)
        yield Row(what, mine, f"random search, {spent:,} evaluations", f"{drawn:.3f} s", drawn / ours)


class Counted(Case):
    """A case that counts how often a point is priced."""

    quotes = 0

    def quote(self, sizes: Sequence[float], counts: Sequence[float]) -> Quote:
        Counted.quotes += 1
        return super().quote(sizes, counts)


def at_random(search: Search, evaluations: int) -> Found:
    """The best of so many points drawn at random: a number of chunks, their sizes, whole layers, a list schedule."""
    draw = Random(0)
    limits, run = search.workload.limits, search.workload.runs[0]
    fewest, layers = search.workload.fewest(run), search.prices.layers
    stages = len(search.shape.ranks)
    best: Found | None = None
    Counted.quotes = 0
    while Counted.quotes < evaluations:
        case = replace(search.shape, cutting=search.workload.cut_into([fewest + draw.randrange(4 * search.shape.pp)]))
        units = nearest(
            [draw.expovariate(1.0) for _ in case.cutting.run_of],
            limits.least / run.tokens,
            limits.most / run.tokens,
            1.0,
        )
        ends = [
            limits.align * round(sum(units[: chunk + 1]) * run.tokens / limits.align) for chunk in range(len(units))
        ]
        sizes = [float(end - start) for start, end in pairwise([0, *ends[:-1], run.tokens])]
        cuts = sorted(round(layers * (stage + 1 + draw.gauss(0, 0.15)) / stages) for stage in range(stages - 1))
        counts = [float(end - start) for start, end in pairwise([0, *cuts, layers])]
        if min(sizes) < limits.least or max(sizes) > limits.most or min(counts) < 1:
            continue
        admit = draw.choice([admit for way in search.ways for admit in way])
        point = case.start(sizes, counts, [admit])
        if best is None or point.value < best.point.value:
            best = Found(case, point)
    assert best is not None
    return best


SECTIONS: dict[str, tuple[Sequence[str], Callable[[], Iterator[Row]]]] = {
    "compiler": (("torch",), compiler),
    "runtime": (("torch",), runtime),
    "vllm": (("torch",), vllm),
    "order": (("ortools",), order),
    "chunks": ((), chunks),
}
"""Parts, and what has to be installed for them."""


if __name__ == "__main__":
    main()
