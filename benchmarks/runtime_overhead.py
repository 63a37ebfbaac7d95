"""What the runtime itself costs an instruction, beside PyTorch's pipelining runtime on the same list.

    python -m benchmarks.runtime_overhead [--chunks N] [--rounds R]

First one rank with the null runner and no transfers; then two ranks over gloo, where a chunk visits four stages
(vpp-async) and nothing is computed, round by round in turn with ``torch.distributed.pipelining``: the same forwards,
sends and receives in the same order, its stages identities. Microseconds an action are the time of the whole list
over its forwards, sends and receives, which both have; ours also runs a WAIT for every transfer, and PyTorch's
waits inside its forwards. Times are of one machine at one time: compare rows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from benchmarks.launch import launch, plan_file
from runtime.arguments import parse
from runtime.session import Session
from vppc.compiler import compile_schedule, paper_cost
from vppc.ir.instruction import FORWARD, RECV, SEND
from vppc.ir.schedule import Model, Request, Schedule
from vppc.ir.torch_csv import to_torch_csv
from vppc.passes.strategies import Options
from vppc.render.tables import table

WIDTH = 1
"""Numbers a chunk: what crosses a cut, as little as can be."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone = compiled("vpp-packed", 1, 50 * arguments.chunks)
        both = compiled("vpp-async", 2, arguments.chunks)
        one, two = plan_file(alone, Path(folder) / "one.json"), plan_file(both, Path(folder) / "two.json")
        actions = Path(folder) / "two.csv"
        actions.write_text("".join(to_torch_csv(both)), newline="")
        (silent,) = launch(1, measure_ours, one, arguments.rounds)
        rounds = launch(2, measure_both, two, str(actions), arguments.chunks, arguments.rounds)[0]
    counts = [sum(row[0] in (FORWARD, SEND, RECV) for row in program.rows()) for program in both.programs]
    ours, theirs = ([each[which] for each in rounds] for which in (0, 1))
    rows = [
        ["null runner, no transfers", *described(silent, len(alone.programs[0]))],
        ["two ranks, gloo: vppc", *described(ours, max(counts))],
        ["two ranks, gloo: PyTorch", *described(theirs, max(counts))],
    ]
    print(table(["", "actions", "us an action", "least", "most"], rows))


def compiled(strategy: str, pp: int, chunks: int) -> Schedule:
    options = Options(strategy=strategy, pp=pp, chunk_size=1)
    return compile_schedule((Request("r0", chunks),), Model("paper", 2 * pp), paper_cost(2 * pp, 1.0, 0.1), options)


def described(seconds: Sequence[float], actions: int) -> list[str]:
    each = [1e6 * value / actions for value in seconds]
    return [f"{actions:,}", f"{statistics.median(each):.1f}", f"{min(each):.1f}", f"{max(each):.1f}"]


def measure_ours(plan: str, rounds: int) -> list[float]:
    """Seconds of each round, after one to warm up."""
    arguments = parse([plan, "--runner", "null"])
    with Session(arguments) as session:
        return [session.run(arguments).makespan for _ in range(rounds + 1)][1:]


def measure_both(plan: str, actions: str, chunks: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds of each round, ours and PyTorch's in turn, after one of each to warm up."""
    arguments = parse([plan, "--runner", "null"])
    with Session(arguments) as session:
        other = pytorch(actions, chunks, session.world.process)
        measured = []
        for _ in range(rounds + 1):
            ours = session.run(arguments).makespan
            session.world.gather(None)
            begin = time.perf_counter()
            other(torch.zeros(chunks, WIDTH))
            measured.append((ours, max(session.world.gather(time.perf_counter() - begin))))
        return measured[1:]


def pytorch(actions: str, chunks: int, rank: int) -> Any:
    """PyTorch's runtime on the list, without gradients; takes a batch of ``chunks`` rows."""
    microbatch = torch.zeros(1, WIDTH)
    stages: list[Any] = [
        PipelineStage(torch.nn.Identity(), stage, 4, torch.device("cpu"), input_args=microbatch, output_args=microbatch)
        for stage in (rank, 3 - rank)
    ]
    schedule: Any = _PipelineScheduleRuntime(stages, n_microbatches=chunks)  # type: ignore[no-untyped-call]
    # its own reader insists on backward passes, so that this does what the reader does behind the check
    lines = Path(actions).read_text().splitlines()
    schedule.pipeline_order_with_comms = {
        number: [_Action.from_str(cell) for cell in line.split(",")] for number, line in enumerate(lines)
    }
    schedule.stage_index_to_group_rank = {0: 0, 1: 1, 2: 1, 3: 0}
    for stage in stages:
        stage.stage_index_to_group_rank = schedule.stage_index_to_group_rank

    @torch.no_grad()
    def run(batch: torch.Tensor) -> None:
        schedule.step(*([batch] if rank == 0 else []), return_outputs=rank == 0)

    return run


if __name__ == "__main__":
    main()
