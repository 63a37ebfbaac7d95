"""How fast schedules are compiled, verified and simulated, beside PyTorch's pipelining on the same shapes.

    python -m benchmarks.compile_speed [--largest N]

Prints lowered instructions a second for growing programs (each doubling should take about twice as long): compiling,
which ends with the proof; verifying once more, as `vppc verify` does; simulating; the whole command in a process of
its own, start-up and JSON included; and, where torch is installed, PyTorch's lowering and simulation of the same
compute schedule. The best of three runs each (of PyTorch's one), with the garbage collector set as the command sets
it. Rates are of one machine at one time: compare them within a row.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.model import OpCosts
from vppc.ir.instruction import FORWARD
from vppc.ir.rules import check
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options
from vppc.render.tables import table

PP = 2
PER_CHUNK = 12  # lowered instructions of a chunk: vpp-async, two ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1_000_000, help="instructions of the largest program")
    parser.add_argument("--smallest", type=int, default=31_250, help="instructions of the smallest program")
    parser.add_argument("--strategy", default="vpp-async")
    arguments = parser.parse_args()
    gc.set_threshold(1_000_000)
    rows: list[list[str]] = []
    size, last = arguments.smallest, 0.0
    while size <= arguments.largest:
        chunks = size // PER_CHUNK
        compiling, schedule = timed(lambda chunks=chunks: compiled(arguments.strategy, chunks))
        verifying, _ = timed(lambda schedule=schedule: check(schedule))
        costs = OpCosts.of(schedule, paper_cost(2 * PP, 1.0, 0.1))
        simulating, _ = timed(lambda schedule=schedule, costs=costs: simulate(schedule, costs))
        process = command(arguments.strategy, chunks)
        lowering, checking = pytorch(schedule)
        count = sum(map(len, schedule.programs))
        rows.append(
            [
                f"{count:,}",
                rate(count, compiling),
                f"{compiling / last:.2f}" if last else "",
                rate(count, verifying),
                rate(count, simulating),
                rate(count, process),
                rate(count, lowering),
                rate(count, checking),
            ]
        )
        last, size = compiling, size * 2
    headers = ["instructions", "compile", "x last", "verify", "simulate", "command", "PyTorch lower", "simulate"]
    print(table(headers, rows))


def timed(work: Callable[[], Any], runs: int = 3) -> tuple[float, Any]:
    """Seconds of the quickest of some runs, and what the last one returned."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return best, result


def rate(count: int, seconds: float | None) -> str:
    return "" if seconds is None else f"{count / seconds / 1000:.0f}k/s"


def compiled(strategy: str, chunks: int) -> Schedule:
    cost = paper_cost(2 * PP, 1.0, 0.1)
    options = Options(strategy=strategy, pp=PP, chunk_size=1)
    return compile_schedule((Request("r0", chunks),), Model("paper", 2 * PP), cost, options)


def command(strategy: str, chunks: int) -> float:
    """Seconds of ``vppc compile`` to a file: start-up, compilation, proof and JSON."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "plan.json")
        arguments = ["--pp", str(PP), "--chunks", str(chunks), "--strategy", strategy, "--transfer", "0.1"]
        line = [sys.executable, "-m", "vppc", "compile", *arguments, "-o", output]
        return timed(lambda: subprocess.run(line, check=True, capture_output=True))[0]


def pytorch(schedule: Schedule) -> tuple[float | None, float | None]:
    """Seconds of PyTorch's lowering of the same compute order, and of its simulator; None without torch."""
    try:
        from torch.distributed.pipelining.schedules import (
            _Action,
            _add_send_recv,
            _ComputationType,
            _simulate_comms_compute,
        )
    except ImportError:
        return None, None
    forward = _ComputationType.FORWARD
    actions = {
        program.rank: [_Action(stage, forward, chunk) for op, chunk, stage, *_ in program.rows() if op == FORWARD]
        for program in schedule.programs
    }
    ranks = dict(enumerate(schedule.stage_ranks))
    # once: both eat what they are given
    lowering, lowered = timed(lambda: _add_send_recv(actions, ranks.__getitem__, len(ranks)), runs=1)
    simulating, _ = timed(lambda: _simulate_comms_compute(lowered, ranks.__getitem__, len(ranks)), runs=1)
    return lowering, simulating


if __name__ == "__main__":
    main()
