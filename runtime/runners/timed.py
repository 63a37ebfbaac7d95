"""The timed runner: takes as long as the cost file says, transfers included.

For trying a schedule on a cluster before there is a model. A FORWARD sleeps. A transfer is two small messages: each
end tells the other when it was posted, and so both know when the transfer starts, after both are posted and the
channel's transfer before it is over, and when it ends.

Sleeping ends late, by a tenth of a millisecond where the machine is idle. That is no property of the schedule, so
it is not handed on: see :class:`Pace`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from runtime.clock import Clock
from runtime.devices.protocol import Link, Transfer
from runtime.plan import Plan
from runtime.runners.null import NullRunner
from runtime.runners.protocol import Buffer, TensorSpec
from vppc.costs.model import CostModel, Prices
from vppc.ir.schedule import Chunk

LATENESS = 0.005
"""Seconds that a process may lag behind its plan and still be taken to keep it."""


class Pace:
    """When a process is by its plan: at the moment until which it slept, as long as the clock is not much later.

    So the process catches up in its next sleep with what waking up, or an instruction of the interpreter, took. Who
    lags more than :data:`LATENESS` is late in earnest, and everybody who waits for it is, too.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._planned = 0.0

    def now(self) -> float:
        """Seconds on the common clock."""
        now = self.clock.now()
        if now - self._planned > LATENESS:
            self._planned = now
        return self._planned

    def sleep_until(self, moment: float) -> None:
        """Sleep until the common clock reads ``moment``."""
        left = moment - self.clock.now()
        if left > 0:
            time.sleep(left)
        self._planned = max(self._planned, moment)


class TimedRunner(NullRunner):
    """Sleeps for the seconds that the cost model says; the token of every request is 0."""

    def __init__(self, plan: Plan, cost: CostModel, clock: Clock) -> None:
        super().__init__(plan)
        self.pace = Pace(clock)
        self._cost, self._prices = cost, Prices(plan.stages, cost)

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        """Nothing is carried but how many tokens there would be."""
        return (TensorSpec("tokens", (0,), torch.float32),)

    def prepare(self, chunk: int, skip: frozenset[int]) -> Prepared:
        parts = tuple(part for part in self.plan.chunks[chunk].parts if part.request not in skip)
        ends = {part.request: self.plan.requests[part.request].prompt_tokens for part in parts}
        return Prepared(chunk, skip, self._prices.of((Chunk(parts),), ends).seconds if parts else ())

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        self.pace.sleep_until(self.pace.now() + prepared.seconds[stage])

    def sample(self, prepared: Any, inputs: Buffer) -> Sequence[tuple[int, int]]:
        return super().sample((prepared.chunk, prepared.skip), inputs)

    def link(self, link: Link) -> TimedLink:
        """This process's end of a channel, which takes time; ``link`` carries its messages, both ways."""
        return TimedLink(link, self.pace, self._cost)


class Prepared(NamedTuple):
    """A chunk, the requests of it that are cancelled, and the seconds of each stage on what is left."""

    chunk: int
    skip: frozenset[int]
    seconds: Sequence[float]


class TimedLink:
    """A channel that takes as long as the cost model says, for as many tokens as its tensors have rows."""

    def __init__(self, link: Link, pace: Pace, cost: CostModel) -> None:
        self._link, self._pace, self._cost = link, pace, cost
        self._last: _TimedTransfer | None = None

    def send(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        return self._post(len(tensors[0]))

    def recv(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        return self._post(len(tensors[0]))

    def _post(self, tokens: int) -> Transfer:
        self._last = _TimedTransfer(self._link, self._pace, self._cost.transfer_seconds(tokens), self._last)
        return self._last


class _TimedTransfer:
    def __init__(self, link: Link, pace: Pace, seconds: float, before: _TimedTransfer | None) -> None:
        self._pace, self._seconds, self._before = pace, seconds, before
        self._mine = torch.tensor([pace.now()], dtype=torch.float64)
        self._theirs = torch.zeros(1, dtype=torch.float64)
        self._told, self._heard = link.send((self._mine,)), link.recv((self._theirs,))
        self._ended: float | None = None

    def wait(self) -> None:
        self._pace.sleep_until(self.end())

    def end(self) -> float:
        """When the transfer ends, on the common clock; blocks until the other end is posted."""
        if self._ended is None:
            self._heard.wait()
            self._told.wait()
            start = max(self._mine.item(), self._theirs.item())
            if self._before is not None:
                start = max(start, self._before.end())
                self._before = None
            self._ended = start + self._seconds
        return self._ended
