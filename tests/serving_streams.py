"""Streams for tests of serving: a small model, and an incremental compiler with all that it has said so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.ir.schedule import Model, Request, Schedule
from vppc.ir.segment import Segment
from vppc.ir.stream import extend
from vppc.passes.strategies import Options
from vppc.serving.batching import ChunkRule, Limits
from vppc.serving.clock import header_of
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.policy import policy

LAYERS = 12
COST = CostModel(
    (LayerCost(LAYERS, fixed=0.01, per_token=0.001, per_pair=0.0001),),
    head=Linear(0.02, 0.01),
    transfer=Linear(0.005, 0.0005),
    name="small",
)


def header(strategy: str, pp: int, placement: str | None = None, vp: int | None = None) -> Schedule:
    return header_of(Options(strategy=strategy, pp=pp, placement=placement, vp=vp), Model("small", LAYERS))


@dataclass
class Stream:
    """A compiler, and the schedule that its segments make."""

    compiler: IncrementalCompiler
    schedule: Schedule = field(init=False)
    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = self.compiler.opening()

    def take(self, segment: Segment | None) -> None:
        if segment is not None:
            self.segments.append(segment)
            self.schedule = extend(self.schedule, segment)

    def advance(self, now: float) -> None:
        self.take(self.compiler.advance(now))

    def close(self) -> Schedule:
        self.take(self.compiler.close())
        return self.schedule


def stream(
    strategy: str = "vpp-packed",
    pp: int = 2,
    limits: Limits | None = None,
    queue: str = "fcfs",
    *,
    cost: CostModel = COST,
    horizon: float = 0.1,
    rule: ChunkRule | None = None,
    setup: Schedule | None = None,
    patience: float = 60.0,
) -> Stream:
    order = policy(queue, cost, patience=patience)
    setup = setup or header(strategy, pp)
    return Stream(
        IncrementalCompiler(setup, cost, limits or Limits(chunk_size=8), order, strategy, rule=rule, horizon=horizon)
    )


def compiled(requests: Iterable[Request], **options: object) -> Schedule:
    """The schedule of requests that are all there at time 0."""
    each = stream(**options)  # type: ignore[arg-type]
    for request in requests:
        each.compiler.add(request, 0.0)
    return each.close()
