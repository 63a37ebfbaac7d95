"""Why one run of a schedule ends later than another: a plan and its run, or two runs.

The critical path of the later run fills its makespan. Each link of it took so long there, and so long in the other run,
whose makespan it cannot exceed: the links are one after the other there as well. So the difference of the makespans
is the sum of what the links took longer, less what the other run had **spare** along them, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vppc.analysis.activity import Activity, Doing
from vppc.analysis.critical import Link, critical_path, transfer_numbers


class Loss(NamedTuple):
    """A link of the later run's critical path, and the seconds that the same took in the other run."""

    link: Link
    before: float

    @property
    def seconds(self) -> float:
        """What it took longer."""
        return self.link.seconds - self.before


@dataclass(frozen=True, slots=True)
class Slip:
    """The ``losses`` add up to ``seconds``, the difference of the makespans, and ``spare``; the largest first."""

    seconds: float
    spare: float
    losses: tuple[Loss, ...]

    def total(self, doing: Doing) -> float:
        """What all links of a kind took longer, in seconds."""
        return sum(loss.seconds for loss in self.losses if loss.link.doing is doing)


def slip(before: Activity, after: Activity) -> Slip:
    """Why ``after`` ends later than ``before``, a run of the same programs; linear in the instructions, and sorted."""
    numbers = transfer_numbers(before)
    losses = [Loss(link, _took(before, numbers, link)) for link in critical_path(after).links]
    spans = [activity.end - activity.start for activity in (before, after)]
    spare = spans[0] - sum(loss.before for loss in losses)
    return Slip(spans[1] - spans[0], spare, tuple(sorted(losses, key=lambda loss: -loss.seconds)))


def _took(activity: Activity, numbers: list[dict[int, tuple[int, int]]], link: Link) -> float:
    """The seconds of a link in another run."""
    timing, rank, index = activity.timing, link.rank, link.instruction
    starts, ends = timing.starts[rank], timing.ends[rank]
    if link.doing is Doing.RUN:
        return ends[index] - starts[index]
    if link.doing is Doing.TRANSFER:
        place, number = numbers[rank][index]
        return timing.transfers[place].ends[number] - timing.transfers[place].starts[number]
    chunk = activity.schedule.programs[rank].row(index)[1] if index < len(starts) else -1
    if link.doing is Doing.ARRIVAL:
        return max(0.0, activity.schedule.chunk_arrivals[chunk] - activity.start)
    if index >= len(starts):
        return 0.0
    return max(0.0, starts[index] - max(activity.start, ends[index - 1] if index else activity.start))
