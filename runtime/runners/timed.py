"""The timed runner: takes as long as the cost file says, transfers included.

For trying a schedule on a cluster before there is a model. A FORWARD sleeps; the sleep is measured from the planned
end of the FORWARD before it, so that waking up late is not paid again and again. A transfer is two small messages:
each end tells the other when it was posted, and so both know when the transfer starts, after both are posted and
the channel's transfer before it is over, and when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Link, Transfer
from runtime.runners.null import NullRunner
from runtime.runners.protocol import Buffer, TensorSpec
from vppc.costs.model import CostModel, OpCosts
from vppc.ir.schedule import Schedule

LATENESS = 0.002
"""Seconds that a sleep may end late and the next FORWARD still count as following it at once."""


class TimedRunner(NullRunner):
    """Sleeps for the seconds that the cost model says; the token of every request is 0."""

    def __init__(self, schedule: Schedule, cost: CostModel) -> None:
        super().__init__(schedule)
        self.costs = OpCosts.of(schedule, cost)
        self.stages = len(schedule.stages)
        self.free = 0.0  # when the FORWARD before was to end

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        return ()

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        now = time.perf_counter()
        start = self.free if now - self.free < LATENESS else now
        self.free = start + self.costs.seconds[prepared[0] * self.stages + stage]
        sleep_until(self.free)


class TimedLink:
    """A channel that takes the seconds of the cost model for each of its transfers, in order."""

    def __init__(self, link: Link, clock: Clock, seconds: Sequence[float]) -> None:
        self.link, self.clock = link, clock
        self.seconds = seconds  # of the channel's transfers, in order
        self.posted = 0
        self.last: _TimedTransfer | None = None

    def send(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        return self._post()

    def recv(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        return self._post()

    def _post(self) -> Transfer:
        self.last = _TimedTransfer(self.link, self.clock, self.seconds[self.posted], self.last)
        self.posted += 1
        return self.last


class _TimedTransfer:
    def __init__(self, link: Link, clock: Clock, seconds: float, before: _TimedTransfer | None) -> None:
        self.clock, self.seconds, self.before = clock, seconds, before
        self.mine = torch.tensor([clock.now()], dtype=torch.float64)
        self.theirs = torch.zeros(1, dtype=torch.float64)
        self.told = link.send((self.mine,))
        self.heard = link.recv((self.theirs,))
        self.ended: float | None = None

    def wait(self) -> None:
        """Sleep until the transfer is over."""
        sleep_until(self.end() - self.clock.offset)

    def end(self) -> float:
        """When the transfer ends, on the common clock; waits for the other end to be posted."""
        if self.ended is None:
            self.heard.wait()
            self.told.wait()
            start = max(self.mine.item(), self.theirs.item())
            if self.before is not None:
                start = max(start, self.before.end())
                self.before = None
            self.ended = start + self.seconds
        return self.ended


def sleep_until(moment: float) -> None:
    """Sleep until ``time.perf_counter()`` reads ``moment``."""
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
