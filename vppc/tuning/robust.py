"""What becomes of a schedule when costs are not what they were thought to be.

Its programs stay as they are, since they were compiled; only what they take changes. A *world* is one way in which
costs may be off. The worlds are fixed and drawn from a seed, so that schedules meet the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, pstdev
from typing import Any

from vppc.analysis.breakdown import makespan
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, LayerCost, OpCosts
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class World:
    """Costs that are off: ``noise`` is the standard deviation of a chunk's seconds on a rank, in parts of them.

    ``slow`` is the rank that takes ``slowdown`` more. ``slope`` scales what grows with the prefix; ``interference``
    is compute slowed down beside transfers.
    """

    name: str
    noise: float = 0.0
    seed: int = 0
    slow: int | None = None
    slowdown: float = 0.0
    slope: float = 1.0
    interference: float = 0.0

    @property
    def meaning(self) -> str:
        """What is off, in words."""
        if self.noise:
            return f"chunks take {self.noise:.0%} more or less, at random"
        if self.slow is not None:
            return f"rank {self.slow} is {self.slowdown:.0%} slower"
        if self.interference:
            return f"compute is slowed down by {self.interference:.0%} beside transfers"
        how = "more" if self.slope > 1.0 else "less"
        return f"attention grows {abs(self.slope - 1.0):.0%} {how} steeply with the prefix"


@dataclass(frozen=True, slots=True)
class Robustness:
    """Makespans in all worlds, in seconds, and in the expected one."""

    expected: float
    worlds: tuple[tuple[World, float], ...]

    @property
    def mean(self) -> float:
        return fmean(seconds for _, seconds in self.worlds)

    @property
    def spread(self) -> float:
        """The standard deviation over the worlds, in seconds."""
        return pstdev(seconds for _, seconds in self.worlds)

    @property
    def worst(self) -> tuple[World, float]:
        return max(self.worlds, key=lambda each: each[1])

    @property
    def score(self) -> float:
        """What a robust choice makes small: the mean and one spread more."""
        return self.mean + self.spread

    def json(self) -> dict[str, Any]:
        """Seconds by world."""
        return {
            "mean": self.mean,
            "spread": self.spread,
            "worlds": {world.name: seconds for world, seconds in self.worlds},
        }


def worlds(pp: int) -> tuple[World, ...]:
    """Noise of 3%, each of a few ranks 5% slower, a prefix slope off by 20% either way, and interference of 10%."""
    noisy = [World(f"noise {seed}", noise=0.03, seed=seed) for seed in range(4)]
    ranks = dict.fromkeys((0, pp // 2, pp - 1))
    slow = [World(f"rank {rank} slower", slow=rank, slowdown=0.05) for rank in ranks]
    slopes = [World("flatter", slope=0.8), World("steeper", slope=1.2)]
    return (*noisy, *slow, *slopes, World("interference", interference=0.1))


def robustness(schedule: Schedule, cost: CostModel, many: Sequence[World]) -> Robustness:
    """The makespans of a compiled schedule in these worlds."""
    expected = _run(schedule, cost, World("expected"))
    return Robustness(expected, tuple((world, _run(schedule, cost, world)) for world in many))


def _run(schedule: Schedule, cost: CostModel, world: World) -> float:
    layers = tuple(_sloped(layer, world.slope) for layer in cost.layers)
    costs = OpCosts.of(schedule, replace(cost, layers=layers))
    random = Random(world.seed)
    ranks, stages = schedule.stage_ranks, len(schedule.stages)
    factors = [
        max(0.0, 1.0 + (random.gauss(0.0, world.noise) if world.noise else 0.0))
        + (world.slowdown if ranks[op % stages] == world.slow else 0.0)
        for op in range(len(costs.seconds))
    ]
    off = replace(costs, seconds=[seconds * factor for seconds, factor in zip(costs.seconds, factors, strict=True)])
    return makespan(schedule, simulate(schedule, off, max(cost.interference, world.interference)))


def _sloped(layer: LayerCost, slope: float) -> LayerCost:
    """A layer whose seconds grow ``slope`` times as fast with the prefix."""
    return replace(
        layer,
        per_pair=layer.per_pair * slope,
        per_prefix_token=layer.per_prefix_token * slope,
        indexer_per_pair=layer.indexer_per_pair * slope,
    )
