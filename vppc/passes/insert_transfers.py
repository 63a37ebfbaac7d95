"""insert_transfers: from each rank's order of operations to instructions, with a buffer for every value.

An activation that crosses ranks becomes a SEND right after its FORWARD, a RECV on the other side and a WAIT
before the FORWARD that reads it. Two forms:

* **overlapped**: a RECV is posted no later than its SEND is predicted to be posted, and at least one operation
  ahead, so that posting never delays a transfer; SENDs are waited at the end (``allocate_buffers`` moves those
  WAITs to where a buffer is needed again).
* **blocking**, for an order with steps: after a step's operations a rank posts all SENDs and RECVs of the step,
  to both neighbours, and waits for all of them.

Receives are posted in the order in which the sender sends: a channel is a FIFO.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import ClassVar

from vppc.analysis.order_timeline import timeline
from vppc.costs.model import CostModel, OpCosts
from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT, WIDTH, Program
from vppc.ir.schedule import Order, Schedule


@dataclass(frozen=True, slots=True)
class InsertTransfers:
    """Lowers ``schedule.order`` to ``schedule.programs``; ``cost`` predicts when values are sent."""

    name: ClassVar[str] = "insert_transfers"
    cost: CostModel

    def __call__(self, schedule: Schedule) -> Schedule:
        order = schedule.order
        if order is None:
            raise ValueError("insert_transfers needs an ordered schedule")
        if order.steps is not None:
            received = _received(schedule, order.ranks)
            programs = tuple(
                _blocking(schedule, rank, order.ranks[rank], order.steps, received[rank]) for rank in range(schedule.pp)
            )
        else:
            posts = _receive_posts(schedule, OpCosts.of(schedule, self.cost), order)
            programs = tuple(_overlapped(schedule, rank, order.ranks[rank], posts[rank]) for rank in range(schedule.pp))
        return replace(schedule, programs=programs)


def _receive_posts(schedule: Schedule, costs: OpCosts, order: Order) -> list[list[tuple[int, int]]]:
    """For every rank, (position, operation): post the receive of the operation's input before that position.

    The position is the last one that the rank reaches before the value is sent, at least one operation before
    the input is needed; later receives of the same channel are never posted earlier.
    """
    times = timeline(schedule, costs, order)
    position = [0] * len(times.ends)
    reached: list[list[float]] = []  # per rank, when it is through with the operations before a position
    for ops in order.ranks:
        for index, op in enumerate(ops):
            position[op] = index
        reached.append([float("-inf"), *(times.ends[op] for op in ops)])
    posts: list[list[tuple[int, int]]] = []
    for rank, peers in enumerate(_received(schedule, order.ranks)):
        mine: list[tuple[int, int]] = []
        for sent in peers.values():
            latest = len(order.ranks[rank])
            channel: list[tuple[int, int]] = []
            for op in reversed(sent):
                in_time = bisect_right(reached[rank], times.ends[op - 1]) - 1
                latest = max(0, min(latest, in_time, position[op] - 1))
                channel.append((latest, op))
            mine += reversed(channel)  # sent order, which the stable sort below keeps
        mine.sort(key=lambda post: (post[0], times.ends[post[1] - 1]))
        posts.append(mine)
    return posts


def _received(schedule: Schedule, orders: tuple[tuple[int, ...], ...]) -> list[dict[int, list[int]]]:
    """For every rank and each of its peers, ascending, the operations whose input comes from there, as it is sent."""
    stages, ranks = len(schedule.stages), schedule.stage_ranks
    received: list[dict[int, list[int]]] = [{} for _ in orders]
    for peer, ops in enumerate(orders):
        for op in ops:
            after = op % stages + 1
            if after < stages and ranks[after] != peer:
                received[ranks[after]].setdefault(peer, []).append(op + 1)
    return received


class _Emitter:
    """Builds one rank's code: appends rows and numbers buffers, one a value."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.stages = len(schedule.stages)
        self.code: list[int] = []
        self.values: dict[int, int] = {}  # operation -> buffer with its input
        self.posted: dict[int, int] = {}  # operation -> index of the RECV of its input
        self.buffers = 0
        ranks = schedule.stage_ranks
        ids = {
            (channel.src, channel.dst): channel.id
            for channel in schedule.channels
            if rank in (channel.src, channel.dst)
        }
        # per stage here: (rank, channel) that its input comes from and its output goes to; None for a fold or an end
        here = schedule.rank_stages[rank]
        self.source = {s: (ranks[s - 1], ids[ranks[s - 1], rank]) if s and ranks[s - 1] != rank else None for s in here}
        self.target = {
            s: (ranks[s + 1], ids[rank, ranks[s + 1]]) if s + 1 < self.stages and ranks[s + 1] != rank else None
            for s in here
        }

    def program(self) -> Program:
        return Program(self.rank, self.buffers, array("i", self.code))

    def recv(self, op: int) -> None:
        chunk, stage = divmod(op, self.stages)
        source = self.source[stage]
        assert source is not None
        self.posted[op] = len(self.code) // WIDTH
        self.values[op] = self.buffers
        self.code += (RECV, chunk, stage, self.buffers, *source)
        self.buffers += 1

    def wait(self, of: int) -> None:
        self.code += (WAIT, -1, -1, of, -1, -1)

    def forward(self, op: int) -> int:
        """Appends the FORWARD, and the SAMPLE if there is one; returns the buffer written, or -1."""
        chunk, stage = divmod(op, self.stages)
        last = stage + 1 == self.stages
        out = -1
        if not last or self.schedule.samples[chunk]:
            out = self.buffers
            self.buffers += 1
        self.code += (FORWARD, chunk, stage, self.values.pop(op) if stage else -1, out, -1)
        if last:
            if out >= 0:
                self.code += (SAMPLE, chunk, -1, out, -1, -1)
        elif self.target[stage] is None:
            self.values[op + 1] = out
        return out

    def send(self, op: int, buffer: int) -> int:
        """Appends the SEND of an operation's output; returns its index."""
        chunk, stage = divmod(op, self.stages)
        target = self.target[stage]
        assert target is not None
        self.code += (SEND, chunk, stage, buffer, *target)
        return len(self.code) // WIDTH - 1


def _overlapped(schedule: Schedule, rank: int, ops: tuple[int, ...], posts: list[tuple[int, int]]) -> Program:
    emit = _Emitter(schedule, rank)
    posted, target, stages = emit.posted, emit.target, emit.stages
    upcoming = iter([*posts, (len(ops), -1)])
    at, receive = next(upcoming)
    sends = []
    for position, op in enumerate(ops):
        while at <= position:
            emit.recv(receive)
            at, receive = next(upcoming)
        if op in posted:
            emit.wait(posted.pop(op))
        out = emit.forward(op)
        if target[op % stages] is not None:
            sends.append(emit.send(op, out))
    for send in sends:
        emit.wait(send)
    return emit.program()


def _blocking(
    schedule: Schedule, rank: int, ops: tuple[int, ...], steps: tuple[int, ...], received: dict[int, list[int]]
) -> Program:
    emit = _Emitter(schedule, rank)
    stages = emit.stages
    receives: dict[int, list[int]] = {}  # step -> what arrives in its exchange, in the senders' order
    for sent in received.values():
        for op in sent:
            receives.setdefault(steps[op - 1], []).append(op)
    runs: dict[int, list[int]] = {}
    for op in ops:
        runs.setdefault(steps[op], []).append(op)
    for step in sorted(receives.keys() | runs.keys()):
        written = [(op, emit.forward(op)) for op in runs.get(step, ())]
        transfers = [emit.send(op, out) for op, out in written if emit.target[op % stages] is not None]
        for op in receives.get(step, ()):
            emit.recv(op)
            transfers.append(emit.posted.pop(op))
        for transfer in transfers:
            emit.wait(transfer)
    return emit.program()
