"""Plan drift: how much longer a rank's FORWARDs take than the costs say that chunks were planned with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from vppc.costs.model import CostModel, Prices
from vppc.ir.schedule import Chunk, Stage
from vppc.serving.drift import Window


class BatchDrift:
    """The seconds of the last FORWARDs beside their prices; as many as while serving with our own runtime."""

    def __init__(self, cost: CostModel, layers: Sequence[int]) -> None:
        bounds = pairwise(accumulate(layers, initial=0))
        self._prices = Prices([Stage(stage, 0, each) for stage, each in enumerate(bounds)], cost)
        self.window = Window()

    def seconds(self, chunk: Chunk, ends: Mapping[int, int]) -> Sequence[float]:
        """What each stage takes for a chunk; ``ends`` are the prompt tokens of its requests, by index."""
        return self._prices.of((chunk,), ends).seconds
