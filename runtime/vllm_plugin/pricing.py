"""Plan drift: how much longer a rank's FORWARDs take than the costs say that chunks were planned with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

from runtime.vllm_plugin.parts import BatchPart
from vppc.costs.model import CostModel, Prices
from vppc.ir.schedule import Chunk, Part, Stage
from vppc.serving.drift import LEAST, WINDOW


class BatchDrift:
    """The seconds of the last FORWARDs beside their prices; as many as while serving with our own runtime."""

    def __init__(self, cost: CostModel, layers: Sequence[int]) -> None:
        bounds = pairwise(accumulate(layers, initial=0))
        self._prices = Prices([Stage(stage, 0, each) for stage, each in enumerate(bounds)], cost)
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def seconds(self, parts: Sequence[BatchPart]) -> Sequence[float]:
        """What each stage takes for a batch."""
        chunk = Chunk(
            tuple(Part(at, part.start, part.tokens, part.start >= part.prompt) for at, part in enumerate(parts))
        )
        return self._prices.of((chunk,), [part.prompt for part in parts]).seconds

    def add(self, measured: float, planned: float) -> None:
        self._window.append((measured, planned))

    @property
    def value(self) -> float | None:
        """0.1 where they take a tenth longer; None while there are too few."""
        planned = sum(each for _, each in self._window)
        if len(self._window) < LEAST or not planned:
            return None
        return sum(each for each, _ in self._window) / planned - 1.0
