"""Valid schedules of many shapes that no compiler would make, from a seed.

A schedule is grown as one global sequence in which every instruction can run when it is reached, so it has no
deadlock by construction; what a rank does next is otherwise left to chance: how far it runs ahead, when it
posts, when it waits, which free buffer it takes.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import NamedTuple

from vppc.ir.instruction import Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.placement import PLACEMENTS, edges, stage_ranks
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage


class Value(NamedTuple):
    """The input of ``stage`` of a chunk."""

    chunk: int
    stage: int


def random_schedule(random: Random, *, max_pp: int = 4, max_tokens: int = 6) -> Schedule:
    placement = random.choice(PLACEMENTS)
    pp = random.randint(1, max_pp)
    vp = {"straight": 1, "v": 2}.get(placement) or random.randint(2, 3)
    ranks = stage_ranks(placement, pp, vp)
    requests, chunks = random_prompts(random, max_tokens, decode=ranks[0] == ranks[-1] == 0)
    return Grower(random, ranks, pp, requests, chunks).grow()


def random_prompts(random: Random, max_tokens: int, *, decode: bool) -> tuple[list[Request], list[Chunk]]:
    """Some prompts, cut at random, their parts in chunks of one or two parts."""
    requests, parts = [], []
    for index in range(random.randint(1, 3)):
        tokens = random.randint(1, max_tokens)
        request = Request(f"r{index}", tokens, random.randrange(tokens))
        requests.append(request)
        start, mine = request.cached_tokens, []
        while start < tokens:
            size = random.randint(1, tokens - start)
            mine.append(Part(index, start, size))
            start += size
        decodes = random.randrange(3) if decode else 0
        mine += [Part(index, token, 1, True) for token in range(tokens, tokens + decodes)]
        parts.append(mine)
    chunks = []
    while any(parts):
        mine = random.sample([each for each in parts if each], k=min(random.choice((1, 1, 2)), sum(map(bool, parts))))
        chunks.append(Chunk(tuple(each.pop(0) for each in mine)))
    return requests, chunks


class Grower:
    """One schedule while it grows: every method that starts with ``do`` appends one instruction, if it can."""

    def __init__(
        self, random: Random, ranks: tuple[int, ...], pp: int, requests: list[Request], chunks: list[Chunk]
    ) -> None:
        self.random, self.ranks, self.pp = random, ranks, pp
        self.requests, self.chunks = requests, chunks
        self.channels = [Channel(index, *edge) for index, edge in enumerate(edges(ranks))]
        self.ids = {(channel.src, channel.dst): channel.id for channel in self.channels}
        self.lists: list[list[Instruction]] = [[] for _ in range(pp)]
        self.free: list[list[int]] = [[] for _ in range(pp)]
        self.size = [0] * pp
        self.at: dict[Value, int] = {}  # value ready to be read -> buffer
        self.arrived: set[Value] = set()
        self.ran: set[Value] = set()
        self.sampled: set[int] = set()
        self.queue: dict[int, list[Value]] = defaultdict(list)  # channel -> what passes, in order
        self.posted: tuple[dict[Value, int], dict[Value, int]] = ({}, {})  # SENDs and RECVs -> instruction
        self.count: tuple[dict[int, int], dict[int, int]] = (defaultdict(int), defaultdict(int))
        self.buffer: tuple[dict[Value, int], dict[Value, int]] = ({}, {})  # in use by a SEND, by a RECV
        self.unwaited: tuple[set[Value], set[Value]] = (set(), set())
        ends = [request.prompt_tokens for request in requests]
        self.samples = [any(p.decode or p.end == ends[p.request] for p in chunk.parts) for chunk in chunks]
        self.needs: list[list[int]] = []  # per chunk, those with the KV prefix
        self.tokens: list[list[int]] = []  # per chunk, those whose token it reads
        last: dict[int, int] = {}
        for index, chunk in enumerate(chunks):
            self.needs.append([last[part.request] for part in chunk.parts if part.request in last])
            self.tokens.append([last[part.request] for part in chunk.parts if part.decode])
            last.update((part.request, index) for part in chunk.parts)

    def grow(self) -> Schedule:
        targets = [Value(chunk, stage) for chunk in range(len(self.chunks)) for stage in range(len(self.ranks) + 1)]
        window = self.random.choice((4, 10, 100))  # values at which something may happen next
        weights = [self.random.choice((1, 1, 8)) for _ in range(6)]
        actions = [self.do_forward, self.do_send, self.do_recv, self.do_wait_send, self.do_wait_recv, self.do_sample]
        while targets:
            at = self.random.randrange(min(len(targets), window))
            value = targets[at]
            self.random.choices(actions, weights)[0](value)
            if self.finished(value):
                del targets[at]
        stages = tuple(Stage(stage, rank, (stage, stage + 1)) for stage, rank in enumerate(self.ranks))
        return Schedule(
            "random",
            Model("random", len(stages)),
            self.pp,
            len(stages) // self.pp,
            stages,
            tuple(self.channels),
            tuple(self.requests),
            tuple(self.chunks),
            programs=tuple(Program.of(rank, self.size[rank], self.lists[rank]) for rank in range(self.pp)),
        )

    def finished(self, value: Value) -> bool:
        """Whether the FORWARD that reads ``value`` (of the last output: the SAMPLE) and its transfer are over."""
        if value.stage == len(self.ranks):
            return value.chunk in self.sampled or (not self.samples[value.chunk] and self.before(value) in self.ran)
        return value in self.ran and value not in self.unwaited[0] and value not in self.unwaited[1]

    def before(self, value: Value) -> Value:
        return Value(value.chunk, value.stage - 1)

    def crosses(self, value: Value) -> bool:
        return 0 < value.stage < len(self.ranks) and self.ranks[value.stage - 1] != self.ranks[value.stage]

    def take(self, rank: int) -> int:
        if not self.free[rank] or self.random.random() < 0.1:
            self.size[rank] += 1
            return self.size[rank] - 1
        return self.free[rank].pop(self.random.randrange(len(self.free[rank])))

    def do_forward(self, value: Value) -> None:
        chunk, stage = value
        if stage == len(self.ranks) or value in self.ran:
            return
        if any(Value(earlier, stage) not in self.ran for earlier in self.needs[chunk]):
            return
        if stage and (value not in self.at or (self.crosses(value) and value not in self.arrived)):
            return
        if not stage and any(maker not in self.sampled for maker in self.tokens[chunk]):
            return
        rank = self.ranks[stage]
        out = None
        if stage + 1 < len(self.ranks) or self.samples[chunk]:
            out = self.at[Value(chunk, stage + 1)] = self.take(rank)
        read = self.at.pop(value) if stage else None
        self.lists[rank].append(Forward(chunk, stage, read, out))
        self.ran.add(value)
        if read is not None:
            self.free[rank].append(read)

    def do_send(self, value: Value) -> None:
        self.post(value, 0)

    def do_recv(self, value: Value) -> None:
        self.post(value, 1)

    def post(self, value: Value, end: int) -> None:
        """Post a SEND (end 0) or RECV (1) of a value that is computed, in the order that the other end began."""
        if not self.crosses(value) or self.before(value) not in self.ran or value in self.posted[end]:
            return
        src, dst = self.ranks[value.stage - 1], self.ranks[value.stage]
        channel = self.ids[src, dst]
        queue, count = self.queue[channel], self.count[end]
        if count[channel] < len(queue) and queue[count[channel]] != value:
            return
        if count[channel] == len(queue):
            queue.append(value)
        count[channel] += 1
        rank = (src, dst)[end]
        buffer = self.buffer[end][value] = self.at.pop(value) if end == 0 else self.take(rank)
        post = Recv(*value, src, channel, buffer) if end else Send(value.chunk, value.stage - 1, dst, channel, buffer)
        self.posted[end][value] = len(self.lists[rank])
        self.unwaited[end].add(value)
        self.lists[rank].append(post)

    def do_wait_send(self, value: Value) -> None:
        if value in self.unwaited[0] and value in self.posted[1]:
            self.wait(value, 0)
            self.free[self.ranks[value.stage - 1]].append(self.buffer[0].pop(value))

    def do_wait_recv(self, value: Value) -> None:
        if value in self.unwaited[1] and value in self.posted[0]:
            self.wait(value, 1)
            self.at[value] = self.buffer[1].pop(value)
            self.arrived.add(value)

    def wait(self, value: Value, end: int) -> None:
        self.unwaited[end].remove(value)
        self.lists[self.ranks[value.stage - 1 + end]].append(Wait(self.posted[end][value]))

    def do_sample(self, value: Value) -> None:
        last = Value(value.chunk, len(self.ranks))
        if last in self.at and value.chunk not in self.sampled:
            buffer = self.at.pop(last)
            self.lists[self.ranks[-1]].append(Sample(value.chunk, buffer))
            self.free[self.ranks[-1]].append(buffer)
            self.sampled.add(value.chunk)
