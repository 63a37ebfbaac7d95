"""How long the incremental compiler takes to decide a step with many requests in its queue.

    python -m benchmarks.serving_steps [--queued N] [--cost FILE]

A step is one operation of a rank. ``decide`` is the clock with the policy's choice, the chunk and its price: what the
serving simulator pays. ``emit`` adds the instructions. ``segment`` is all of a segment of about one operation, the
smallest there is, with its text, its digest and its proof. ``add`` is what it takes a request to come. In
microseconds of the processor, the best of three runs; requests come one for one as others start, so that the queue
stays as long as it is. The garbage collector is set as the command sets it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from math import inf, nextafter
from random import Random

from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.strategies import Options
from vppc.render.tables import table
from vppc.serving.batching import Limits
from vppc.serving.clock import Pipeline, header_of
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.emit import Emitter
from vppc.serving.policy import POLICIES, policy

COST = CostModel(
    (LayerCost(60, fixed=1e-4, per_token=2e-6, per_pair=2e-11, collective_fixed=2e-5),),
    head=Linear(1e-3, 1e-4),
    transfer=Linear(1e-4, 2e-8),
    launch=1e-3,
    name="made-up",
)
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, default=1000, help="requests in the queue")
    parser.add_argument("--steps", type=int, default=4000, help="operations to decide in a run, at least")
    parser.add_argument("--cost", help="cost file; without one some made-up costs")
    arguments = parser.parse_args()
    cost = read_cost(arguments.cost) if arguments.cost else COST
    gc.set_threshold(1_000_000)
    rows = []
    for strategy in ("vpp-packed", "cpp"):
        for pp in (2, 8):
            for name in POLICIES:
                case = strategy, pp, name, cost
                deciding, coming = best(partial(decided, *case), arguments.queued, arguments.steps)
                emitting, _ = best(partial(emitted, *case), arguments.queued, arguments.steps)
                proving, _ = best(partial(segments, *case), arguments.queued, arguments.steps // 4)
                figures = [f"{1e6 * seconds:.1f}" for seconds in (deciding, emitting, proving, coming)]
                rows.append([strategy, str(pp), name, *figures])
    print(table(["strategy", "pp", "policy", "decide", "emit", "segment", "add"], rows))


Steps = tuple[Callable[[Request], None], Callable[[], tuple[int, int]]]
"""What takes a request, and what runs a little: how many operations or segments it decided, and requests it started."""


def pipeline_of(strategy: str, pp: int, name: str, cost: CostModel) -> tuple[Schedule, Pipeline]:
    header = header_of(Options(strategy=strategy, pp=pp), Model(cost.name, cost.layer_count))
    return header, Pipeline(header, cost, Limits(), policy(name, cost), strategy)


def decided(strategy: str, pp: int, name: str, cost: CostModel) -> Steps:
    """The clock alone, from event to event."""
    _, pipeline = pipeline_of(strategy, pp, name, cost)

    def step() -> tuple[int, int]:
        pipeline.run(nextafter(pipeline.next_event(), inf))
        committed = pipeline.take_committed()
        pipeline.take_finished()
        return len(committed.operations), len(committed.requests)

    return lambda request: pipeline.submit(request, 0.0), step


def emitted(strategy: str, pp: int, name: str, cost: CostModel) -> Steps:
    """The clock and the instructions."""
    header, pipeline = pipeline_of(strategy, pp, name, cost)
    emitter = Emitter(header, pipeline.buffers, pipeline.in_flight)

    def step() -> tuple[int, int]:
        pipeline.run(nextafter(pipeline.next_event(), inf))
        committed = pipeline.take_committed()
        pipeline.take_finished()
        emitter.commit(committed.operations, committed.samples)
        emitter.emit(pipeline.next_event())
        emitter.take()
        return len(committed.operations), len(committed.requests)

    return lambda request: pipeline.submit(request, 0.0), step


def segments(strategy: str, pp: int, name: str, cost: CostModel) -> Steps:
    """The incremental compiler, from segment to segment."""
    header = header_of(Options(strategy=strategy, pp=pp), Model(cost.name, cost.layer_count))
    compiler = IncrementalCompiler(header, cost, Limits(), policy(name, cost), strategy)
    now = 0.0

    def step() -> tuple[int, int]:
        nonlocal now
        now = max(now, compiler.next_event())
        segment = compiler.advance(now)
        return (0, 0) if segment is None else (1, len(segment.requests))

    return lambda request: compiler.add(request, now), step


def best(make: Callable[[], Steps], queued: int, count: int) -> tuple[float, float]:
    """The least of some runs, of both figures."""
    runs = [measured(make(), queued, count) for _ in range(RUNS)]
    return min(each for each, _ in runs), min(each for _, each in runs)


def measured(steps: Steps, queued: int, count: int) -> tuple[float, float]:
    """Seconds of an operation or segment, and of a request that comes, with a queue of that length."""
    take, step = steps
    random = Random(1)
    requests = 0

    def come(number: int) -> None:
        nonlocal requests
        for _ in range(number):
            take(Request(f"r{requests}", random.choice((200, 1000, 4000, 20_000, 60_000))))
            requests += 1

    come(queued)
    come(step()[1])  # the first step sorts all that came
    done, working, coming = 0, 0.0, 0.0
    before = requests
    while done < count:
        begin = time.process_time()
        some, started = step()
        middle = time.process_time()
        come(started)
        coming += time.process_time() - middle
        working += middle - begin
        done += some
    return working / done, coming / max(1, requests - before)


if __name__ == "__main__":
    main()
