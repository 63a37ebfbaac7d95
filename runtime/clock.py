"""One clock for all processes: this machine's monotonic clock, moved to agree with process 0's."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Clock:
    """``offset`` seconds are added to this process's clock; it is right to within ``uncertainty`` seconds."""

    offset: float
    uncertainty: float

    def now(self) -> float:
        """Seconds on the clock of process 0."""
        return time.perf_counter() + self.offset


def agree(process: int, size: int) -> Clock:
    """Measure the offset to process 0's clock; all processes call this together.

    Process 0 answers each of the others in turn with its time. Of several round trips the quickest tells most:
    the answer was made within it, so half of it is the error at most (Cristian, Probabilistic clock
    synchronization, 1989).
    """
    answer = torch.zeros(1, dtype=torch.float64)
    best = Clock(0.0, 0.0) if process == 0 else Clock(0.0, float("inf"))
    for peer in range(1, size):
        for _ in range(ROUNDS):
            if process == 0:
                dist.recv(answer, peer)
                dist.send(torch.tensor([time.perf_counter()], dtype=torch.float64), peer)
            elif process == peer:
                asked = time.perf_counter()
                dist.send(answer, 0)
                dist.recv(answer, 0)
                answered = time.perf_counter()
                uncertainty = (answered - asked) / 2
                if uncertainty < best.uncertainty:
                    best = Clock(answer.item() - (asked + answered) / 2, uncertainty)
    return best
