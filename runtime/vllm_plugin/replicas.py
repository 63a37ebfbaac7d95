"""Data-parallel replicas of a folded server, whose experts are spread over all of them.

In every layer of experts the processes of a pipeline rank exchange with the same processes of the other replicas. So
all replicas have to run the same stages in the same order, also one that has no batch. vLLM's engines pass in step
already: each turn one has a batch, or calls for a dummy batch, which in a plain pipeline is one forward on every rank.
Here a dummy batch is a chunk like any other, of one token, and passes through both stages of each rank when it is its
turn. What is left to agree on is when the oldest chunk leaves, which is part of the order and which one engine alone
wants: :class:`runtime.vllm_plugin.paced.Pace`. And as the order is compiled of chunks that all take equally long
(:mod:`runtime.vllm_plugin.order`), the same calls make the same order, whatever is in the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput

from runtime.world import World


@dataclass(frozen=True, slots=True)
class Replica(World):
    """The world of one of so many ``replicas``, the ``number``-th, inside of torch's, which is that of all of them."""

    number: int = 0
    replicas: int = 1

    def group(self, processes: Sequence[int], backend: str, number: int = 0) -> Any:
        """This replica's group; all replicas make those of all of them, in the same order."""
        made = [
            World.group(self, [replica * self.size + process for process in processes], backend, number)
            for replica in range(self.replicas)
        ]
        return made[self.number]


def dummy() -> SchedulerOutput:
    """A batch of a token that is nobody's."""
    made = SchedulerOutput.make_empty()
    made.total_num_scheduled_tokens = 1
    return made


def is_dummy(batch: Any) -> bool:
    """Whether a batch with tokens is :func:`dummy`."""
    return not batch.num_scheduled_tokens
