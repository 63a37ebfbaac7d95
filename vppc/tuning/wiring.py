"""An order as a network of maxima and sums: what it comes to, and the slope of that in every operation's seconds.

What it comes to, the *goal*, is the makespan, the mean time to first token, or something between. With the order
fixed, an operation ends at max(its rank is free, its input is there) plus its seconds. The maximum has no useful
slope where several paths are critical, which is where good schedules are. So it is smoothed,

    smax(a, b) = max(a, b) + T log(1 + exp(-|a - b| / T)),

which is above the maximum by T log 2 at most. Its two weights, 1 / (1 + exp((b - a) / T)) and the rest, are carried
back from the end: one pass over the operations gives the slope of the goal in the seconds of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log1p

from vppc.ir.schedule import Order
from vppc.sums import plain_sum

_FAR = 12.0
"""Beyond so many T the smaller operand, whose weight is below 1e-5, is left out."""


@dataclass(frozen=True, slots=True)
class Goal:
    """(1 - ``share``) times the makespan plus ``share`` times the mean TTFT, in seconds.

    ``tokens`` are (operation, requests): where so many first tokens are made. ``waited`` is the mean arrival, and
    ``origin`` the earliest, from which the makespan counts.
    """

    share: float
    tokens: tuple[tuple[int, int], ...]
    waited: float = 0.0
    origin: float = 0.0


@dataclass(frozen=True, slots=True)
class Wiring:
    """For each operation, in an order that respects all dependencies, where its start comes from.

    A node is (operation, the one before it on its rank, the stage before it or its chunk's arrival, the chunk whose
    transfer lies between or -1, the operation whose transfer is before on the channel). Operations are numbers below
    ``count``; ``count`` itself is the start of the clock, and ``count + 1 + chunk`` the arrival of a chunk.
    """

    count: int
    nodes: list[tuple[int, int, int, int, int]]
    last: list[int]
    arrivals: list[float]
    goal: Goal

    @classmethod
    def of(cls, order: Order, ranks: Sequence[int], arrivals: Sequence[float], goal: Goal) -> Wiring:
        """The network of an order of all operations; ``ranks`` are the stages', ``arrivals`` the chunks'.

        Raises ValueError for an order that waits for itself.
        """
        stages = len(ranks)
        count = len(arrivals) * stages
        done = [False] * count
        position = [0] * len(order.ranks)
        before = [count] * len(order.ranks)
        channel: dict[tuple[int, int], int] = {}
        nodes: list[tuple[int, int, int, int, int]] = []
        moved = True
        while moved:
            moved = False
            for rank, ops in enumerate(order.ranks):
                index = position[rank]
                while index < len(ops):
                    op = ops[index]
                    chunk, stage = divmod(op, stages)
                    if stage and not done[op - 1]:
                        break
                    source = op - 1 if stage else count + 1 + chunk
                    if stage and ranks[stage - 1] != rank:
                        pair = (ranks[stage - 1], rank)
                        nodes.append((op, before[rank], source, chunk, channel.get(pair, count)))
                        channel[pair] = op
                    else:
                        nodes.append((op, before[rank], source, -1, count))
                    before[rank] = op
                    done[op] = moved = True
                    index += 1
                position[rank] = index
        if len(nodes) < count:
            raise ValueError("the order waits for itself")
        return cls(count, nodes, [op for op in before if op < count], list(arrivals), goal)

    def value(self, seconds: Sequence[float], transfer: Sequence[float]) -> float:
        """The goal; ``seconds`` by operation, ``transfer`` by chunk."""
        ends = self.ends(seconds, transfer)
        return self._combine(ends, max([ends[op] for op in self.last]))

    def ends(self, seconds: Sequence[float], transfer: Sequence[float]) -> list[float]:
        """When each operation ends (and more behind them, see the class)."""
        ends = [0.0] * (self.count + 1) + self.arrivals
        there = [0.0] * (self.count + 1)  # when an operation's input has crossed
        for op, before, source, chunk, crossing in self.nodes:
            start = ends[source]
            if chunk >= 0:
                if there[crossing] > start:
                    start = there[crossing]
                there[op] = start = start + transfer[chunk]
            if ends[before] > start:
                start = ends[before]
            ends[op] = start + seconds[op]
        return ends

    def _combine(self, ends: Sequence[float], finish: float) -> float:
        goal = self.goal
        if not goal.share:
            return finish - goal.origin
        requests = sum([many for _, many in goal.tokens])
        mean = plain_sum([ends[op] * many for op, many in goal.tokens]) / requests - goal.waited
        return (1.0 - goal.share) * (finish - goal.origin) + goal.share * mean

    def slopes(
        self, seconds: Sequence[float], transfer: Sequence[float], temperature: float
    ) -> tuple[float, list[float], list[float]]:
        """The smoothed goal, and its slope in every operation's seconds and every chunk's transfer."""
        count = self.count
        far = _FAR * temperature
        ends = [0.0] * (count + 1) + self.arrivals
        there = [0.0] * (count + 1)
        by_rank: list[float] = []  # of every node, the weight of "its rank is free"
        by_channel: list[float] = []
        for op, before, source, chunk, crossing in self.nodes:
            start = ends[source]
            if chunk >= 0:
                ahead = there[crossing] - start
                if ahead < -far:
                    by_channel.append(0.0)
                elif ahead > far:
                    by_channel.append(1.0)
                    start = there[crossing]
                else:
                    small = exp(-abs(ahead) / temperature)
                    by_channel.append((small if ahead < 0.0 else 1.0) / (1.0 + small))
                    start = (there[crossing] if ahead > 0.0 else start) + temperature * log1p(small)
                there[op] = start = start + transfer[chunk]
            ahead = ends[before] - start
            if ahead < -far:
                by_rank.append(0.0)
            elif ahead > far:
                by_rank.append(1.0)
                start = ends[before]
            else:
                small = exp(-abs(ahead) / temperature)
                by_rank.append((small if ahead < 0.0 else 1.0) / (1.0 + small))
                start = (ends[before] if ahead > 0.0 else start) + temperature * log1p(small)
            ends[op] = start + seconds[op]
        latest = max([ends[op] for op in self.last])
        weights = [exp((ends[op] - latest) / temperature) for op in self.last]
        total = plain_sum(weights)
        slope = [0.0] * len(ends)
        crossed = [0.0] * (count + 1)
        slow = [0.0] * len(transfer)
        for op, weight in zip(self.last, weights, strict=True):
            slope[op] = (1.0 - self.goal.share) * weight / total
        if self.goal.share:
            requests = sum([many for _, many in self.goal.tokens])
            for op, many in self.goal.tokens:
                slope[op] += self.goal.share * many / requests
        for op, before, source, chunk, crossing in reversed(self.nodes):
            here = slope[op]
            back = by_rank.pop()
            slope[before] += back * here
            here -= back * here
            if chunk >= 0:
                here += crossed[op]
                slow[chunk] += here
                back = by_channel.pop()
                crossed[crossing] += back * here
                here -= back * here
            slope[source] += here
        return self._combine(ends, latest + temperature * log1p(total - 1.0)), slope[:count], slow
