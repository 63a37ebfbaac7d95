"""List scheduling: run what is ready, early stages first, on a clock that the cost model drives.

Whenever a rank is free it takes, of its stages whose next chunk has arrived, the earliest stage. Feeding the
ranks downstream comes before finishing chunks, so no rank waits for an input while another has one to make.
How far rank 0 may run ahead is the gate's business (see :mod:`vppc.passes.admission`). For V placements at
P = 2 the resulting order is optimal; at P = 4 and 8 it is within 0.2% of the optimum that a constraint solver
proves. (List scheduling: Graham, Bounds on Multiprocessing Timing Anomalies, 1969.)

Between prompts there is a choice: an early stage of a later prompt, or a late stage of an earlier one, whose
first token is then sooner. The later prompt's turn comes only when the rank downstream would otherwise run dry:
its chunks fill the gaps of the prompt before and do not push in front of it.

Every stage takes chunks in order, which keeps the KV prefix right and every channel a FIFO.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise

from vppc.costs.model import OpCosts
from vppc.ir.schedule import Order, Schedule
from vppc.passes.admission import chunk_groups

_ASLEEP = float("inf")


def list_schedule(schedule: Schedule, costs: OpCosts, gates: list[int]) -> tuple[Order, float]:
    """The order in which each rank runs its operations, and the seconds at which the last ends; O(operations x vp).

    Activations arrive a transfer after their stage ended, one transfer at a time on a channel. The DAG's prefix
    edges hold because each stage runs the chunks in order, its token edges because they are gates.
    """
    return _Scheduler(schedule, costs, gates).run()


class _Scheduler:
    """The state of the clock: what each stage has run, what has arrived for it, and when each rank looks again."""

    def __init__(self, schedule: Schedule, costs: OpCosts, gates: list[int]) -> None:
        stages, ranks, pp = len(schedule.stages), schedule.stage_ranks, schedule.pp
        self.count, self.stages, self.ranks, self.pp = len(schedule.chunks), stages, ranks, pp
        self.on_rank = schedule.rank_stages
        self.leaves = self.on_rank[0][-1]  # a chunk has left once rank 0 has run the last of its stages on it
        self.seconds, self.transfer, self.gates = costs.seconds, costs.transfer, gates
        self.groups = chunk_groups(schedule)
        self.several = bool(self.groups) and self.groups[-1] > 0
        self.peers = [after if after != here else -1 for here, after in pairwise((*ranks, ranks[-1]))]
        self.runs = [1] * stages  # how many operations an arriving chunk makes for its rank, up to the next transfer
        for stage in range(stages - 2, -1, -1):
            if self.peers[stage] < 0:
                self.runs[stage] += self.runs[stage + 1]

        self.ready: list[list[float]] = [[] for _ in range(stages)]  # when the input of a stage's i-th chunk is there
        self.ready[0] = list(schedule.chunk_arrivals)
        self.done = [0] * stages  # how many chunks a stage has run
        self.free = [0.0] * pp  # when a rank has run all that it was given
        self.backlog = [0.0] * pp  # seconds of what has been sent to a rank and not been run
        self.channel_free = [0.0] * (pp * pp)
        self.orders: list[list[int]] = [[] for _ in range(pp)]
        self.wake = [0.0] * pp  # when a rank looks again; its only valid entry in the queue
        self.queue = [(0.0, rank) for rank in range(pp)]

    def run(self) -> tuple[Order, float]:
        """Let the clock run. One loop without calls: it runs once an operation, of which there may be a million."""
        queue, wake, ready, done, free, backlog = (
            self.queue, self.wake, self.ready, self.done, self.free, self.backlog
        )  # fmt: skip
        seconds, transfer, gates, peers, runs = self.seconds, self.transfer, self.gates, self.peers, self.runs
        stages, leaves, several, channel_free = self.stages, self.leaves, self.several, self.channel_free
        while queue:
            now, rank = heappop(queue)
            if now != wake[rank]:
                continue
            picked, later = -1, _ASLEEP
            for stage in self.on_rank[rank]:
                chunk = done[stage]
                if chunk >= len(ready[stage]) or (stage == 0 and done[leaves] <= gates[chunk]):
                    continue
                at = ready[stage][chunk]
                if at > now:
                    later = at if at < later else later
                elif picked < 0:
                    picked = stage
                    if not several:
                        break
                elif self._may_come_first(stage, picked, now):
                    picked = stage
                    break
            if picked < 0:  # no input is there: sleep until one is
                wake[rank] = later
                if later != _ASLEEP:
                    heappush(queue, (later, rank))
                continue
            chunk = done[picked]
            op = chunk * stages + picked
            self.orders[rank].append(op)
            done[picked] = chunk + 1
            if picked:
                backlog[rank] -= seconds[op]
            free[rank] = wake[rank] = end = now + seconds[op]
            heappush(queue, (end, rank))
            peer = peers[picked]
            if peer < 0:
                if picked + 1 < stages:
                    ready[picked + 1].append(end)
                continue
            channel = rank * self.pp + peer
            there = channel_free[channel]
            channel_free[channel] = there = (end if there < end else there) + transfer[chunk]
            ready[picked + 1].append(there)
            run = runs[picked + 1]
            backlog[peer] += seconds[op + 1] if run == 1 else sum(seconds[op + 1 : op + 1 + run])
            if free[peer] > there:
                there = free[peer]
            if there < wake[peer]:  # it sleeps
                wake[peer] = there
                heappush(queue, (there, peer))
        return Order(tuple(map(tuple, self.orders))), max(free)

    def _may_come_first(self, late: int, early: int, now: float) -> bool:
        """Whether a late stage, of an earlier prompt, goes before an early one without anybody running dry."""
        chunk, held = self.done[late], self.done[early]
        if self.groups[chunk] >= self.groups[held]:
            return False
        peer = self.peers[early]
        if peer < 0:
            return True
        fed_until = max(self.free[peer], now) + self.backlog[peer]
        meanwhile = self.seconds[chunk * self.stages + late] + self.seconds[held * self.stages + early]
        return fed_until >= now + meanwhile + self.transfer[held]
