"""Ranks that a test serves on: forked, and attached to as if torchrun had started them, its store in the test."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from worlds import Ended, World

from runtime.__main__ import main
from runtime.arguments import Arguments, parse
from runtime.make_runner import Place, reference_runner
from runtime.plan import Plan
from runtime.reading import cost_of
from runtime.reference.batch import Batch
from runtime.runners.protocol import Buffer
from runtime.runners.reference import ReferenceRunner
from runtime.runners.timed import TimedRunner
from runtime.session import Session
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.ir.schedule import Model
from vppc.passes.strategies import Options
from vppc.serving.batching import Limits
from vppc.serving.clock import header_of
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.coordinator import Coordinator, Served
from vppc.serving.drift import Drift
from vppc.serving.policy import policy
from vppc.serving.ranks import Ranks

HOST = "127.0.0.1"
TIMEOUT = 60.0


def streamed(arguments: Sequence[str]) -> None:
    """What the processes of a world run."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    main(["--stream", *arguments])


def slow(arguments: Sequence[str]) -> None:
    """The same, on timed runners that take twice as long as the schedule's costs say."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    parsed = parse(["--stream", *arguments])

    def make(arguments: Arguments, plan: Plan, place: Place) -> TimedRunner:
        said = cost_of(plan.extra["cost"])
        twice = tuple(
            replace(k, fixed=2 * k.fixed, per_token=2 * k.per_token, per_pair=2 * k.per_pair) for k in said.layers
        )
        return TimedRunner(plan, replace(said, layers=twice), place.clock)

    with Session(parsed) as session:
        session.stream(parsed, make)


def held_up(gate: Path, arguments: Sequence[str]) -> None:
    """Reference runners whose first FORWARD lasts until there is a file ``gate``; each says whose parts it computes,
    and at the end of whom it still holds anything."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    parsed = parse(["--stream", *arguments])
    made: list[HeldUp] = []

    def make(arguments: Arguments, plan: Plan, place: Place) -> HeldUp:
        made.append(HeldUp(gate, reference_runner(arguments, plan, place)))
        return made[0]

    with Session(parsed) as session:
        session.stream(parsed, make)
    print("holds", *made[0].runner.resident, file=sys.stderr)


class HeldUp:
    """A runner between the interpreter and the reference runner."""

    def __init__(self, gate: Path, runner: ReferenceRunner) -> None:
        self.gate, self.runner, self.payload = gate, runner, runner.payload
        self.prepare, self.sample, self.release = runner.prepare, runner.sample, runner.release

    def forward(self, stage: int, prepared: Batch, inputs: Buffer | None, outputs: Buffer | None) -> None:
        print("computes", *(span.request for span in prepared.spans), file=sys.stderr, flush=True)
        while not self.gate.exists():
            time.sleep(0.01)
        self.runner.forward(stage, prepared, inputs, outputs)


class Serving:
    """``size`` processes that wait for a stream, and the coordinator's access to them.

    They run ``target`` with what is ``given``, and their command line.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        *options: str,
        target: Callable[..., None] = streamed,
        given: Sequence[Any] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        limit = timedelta(seconds=timeout)
        self.store = dist.TCPStore(HOST, 0, None, True, limit, wait_for_workers=False)
        arguments = ["--timeout", str(timeout), *options]
        self.world = World(folder, size, target, lambda process: (*given, arguments), port=self.store.port)
        self.ranks = Ranks.attach(HOST, self.store.port, size, timeout)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        if kind is not None:
            self.world.end()

    def ended(self) -> Ended:
        return self.world.ended()

    def memory(self) -> list[int]:
        """The resident memory of each process, in bytes."""
        return [resident(process.pid or 0) for process in self.world.processes]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cost(layers: int, scale: float = 1e-6) -> CostModel:
    return CostModel(
        (LayerCost(layers, fixed=100 * scale, per_token=scale, per_pair=scale / 1000),),
        transfer=Linear(100 * scale, scale / 10),
    )


class Server:
    """A coordinator with what it is made of; ``out`` is what it has written."""

    def __init__(
        self,
        serving: Serving,
        pp: int,
        costs: CostModel,
        *,
        strategy: str = "vpp-packed",
        queue: str = "fcfs",
        write: Callable[[Mapping[str, Any]], None] | None = None,
        bound: float = 1e9,
        **limits: Any,
    ) -> None:
        options = Options(strategy=strategy, pp=pp)
        setup = header_of(options, Model("test", costs.layer_count))
        order = policy(queue, costs)
        self.compiler = IncrementalCompiler(setup, costs, Limits(**limits), order, strategy)
        self.drift = Drift(setup, costs, bound)
        self.out: list[Mapping[str, Any]] = []
        self.notices: list[str] = []
        self.coordinator = Coordinator(
            self.compiler, serving.ranks, self.drift, write or self.out.append, self.notices.append
        )

    def serve(self, documents: Sequence[Any]) -> Served:
        """Serve these lines: JSON of objects, text as it is."""
        lines = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in documents)
        return self.coordinator.serve(io.BytesIO(lines.encode()))
