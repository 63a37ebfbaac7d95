"""Runs a schedule in every interleaving there is: the judge of the verifier's verdicts.

Written from the contract alone. Ranks step through their lists in any order; between any two steps any transfer
that can take place may. Memory is real: a transfer copies what its buffer holds when it takes place. A channel
has room for some activations on their way. With room 0 a transfer needs both its ends (rendezvous), with room
without end a SEND completes alone (eager), and in between a SEND completes when there is room for it.

Nothing here is clever, so that it can be believed: states are remembered and none is left out. That is for
small programs only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from vppc.ir.instruction import Forward, Instruction, Recv, Sample, Send, Wait
from vppc.ir.schedule import Schedule

RENDEZVOUS, EAGER = 0, math.inf
ROOMS = (RENDEZVOUS, 1, EAGER)


class Use(Enum):
    """What a buffer is good for, as the list of its rank says."""

    FREE = "free"
    FULL = "full"
    SENDING = "sending"
    RECEIVING = "receiving"


class Activation(NamedTuple):
    """The output of ``stage`` on ``chunk``."""

    chunk: int
    stage: int


class Buffer(NamedTuple):
    use: Use = Use.FREE
    content: Activation | None = None


class Link(NamedTuple):
    """What passed on a channel: ``moved`` activations have arrived, and ``under_way`` have left."""

    moved: int = 0
    under_way: tuple[Activation | None, ...] = ()


class State(NamedTuple):
    at: tuple[int, ...]
    buffers: tuple[tuple[Buffer, ...], ...]
    links: tuple[Link, ...]


class FaultError(Exception):
    """An interleaving does what the contract forbids."""


class Post(NamedTuple):
    """One end of a transfer: where it is posted, its buffer, and what it says it moves."""

    index: int
    buffer: int
    activation: Activation


@dataclass(frozen=True)
class Verdict:
    """``fault`` is something forbidden that an interleaving does; ``hangs`` are the rooms with which one hangs."""

    fault: str
    hangs: tuple[float, ...]
    states: int

    @property
    def good(self) -> bool:
        return not self.fault and not self.hangs


def explore(schedule: Schedule) -> Verdict:
    """The verdict on a schedule whose header, requests and chunks are right."""
    hangs, states = [], 0
    for room in ROOMS:
        explorer = Explorer(schedule, room)
        try:
            explorer.explore()
        except FaultError as fault:
            return Verdict(str(fault), (), states + len(explorer.seen))
        states += len(explorer.seen)
        if explorer.hangs:
            hangs.append(room)
    return Verdict("", tuple(hangs), states)


@dataclass
class Explorer:
    schedule: Schedule
    room: float
    seen: set[State] = field(default_factory=set)
    hangs: bool = False

    def __post_init__(self) -> None:
        s = self.schedule
        self.lists: list[list[Instruction]] = [list(program) for program in s.programs]
        self.sends = [self.posts(channel.src, channel.id, Send) for channel in s.channels]
        self.recvs = [self.posts(channel.dst, channel.id, Recv) for channel in s.channels]
        self.numbers = {channel.id: number for number, channel in enumerate(s.channels)}
        ends = [request.prompt_tokens for request in s.requests]
        self.makes_token = [any(p.decode or p.start + p.tokens == ends[p.request] for p in c.parts) for c in s.chunks]

    def posts(self, rank: int, channel: int, kind: type[Send] | type[Recv]) -> list[Post]:
        """What a rank posts at its end of a channel, in order. A RECV of a stage's input is of the output before."""
        return [
            Post(index, each.buffer, Activation(each.chunk, each.stage - (kind is Recv)))
            for index, each in enumerate(self.lists[rank])
            if isinstance(each, kind) and each.channel == channel
        ]

    def explore(self) -> None:
        """Visit every state. Raises FaultError at the first that is reached by something forbidden."""
        start = State(
            (0,) * len(self.lists),
            tuple((Buffer(),) * program.buffers for program in self.schedule.programs),
            (Link(),) * len(self.schedule.channels),
        )
        self.seen.add(start)
        waiting = [start]
        while waiting:
            state = waiting.pop()
            following = self.following(state)
            if not following:
                self.end(state)
            for each in following:
                if each not in self.seen:
                    self.seen.add(each)
                    waiting.append(each)

    def following(self, state: State) -> list[State]:
        """The states that one step of a rank, or of a transfer, leads to."""
        found = [
            self.step(state, rank)
            for rank, program in enumerate(self.lists)
            if state.at[rank] < len(program) and self.ready(state, rank, program[state.at[rank]])
        ]
        for number in range(len(state.links)):
            found += self.transfers(state, number)
        return found

    def end(self, state: State) -> None:
        """Nothing can go on: a hang, or the end of all programs with everything done."""
        if any(at < len(program) for at, program in zip(state.at, self.lists, strict=True)):
            self.hangs = True
            return
        for rank, program in enumerate(self.lists):
            forwards = {(each.chunk, each.stage) for each in program if isinstance(each, Forward)}
            samples = {each.chunk for each in program if isinstance(each, Sample)}
            for chunk, makes_token in enumerate(self.makes_token):
                mine = {stage.stage for stage in self.schedule.stages if stage.rank == rank}
                require(forwards >= {(chunk, stage) for stage in mine}, "a stage is not run")
                if makes_token and rank == self.schedule.stages[-1].rank:
                    require(chunk in samples, "a token is not made")
            waited = {each.of for each in program if isinstance(each, Wait)}
            require(
                all(i in waited for i, each in enumerate(program) if isinstance(each, Send | Recv)),
                "a transfer is not waited for",
            )
        require(all(each.use is Use.FREE for buffers in state.buffers for each in buffers), "a value is not read")
        for link, sends, recvs in zip(state.links, self.sends, self.recvs, strict=True):
            require(link.moved == len(sends) == len(recvs), "a transfer has one end only")
            require(bool(sends) or not self.schedule.chunks, "a channel is not used")

    # Transfers

    def transfers(self, state: State, number: int) -> list[State]:
        """The steps that the next transfers of a channel can do: leave their sender, arrive, or both at once."""
        channel, link = self.schedule.channels[number], state.links[number]
        moved, under_way = link
        found = []
        sent = moved + len(under_way)
        leaves = sent < len(self.sends[number]) and self.sends[number][sent].index < state.at[channel.src]
        arrives = moved < len(self.recvs[number]) and self.recvs[number][moved].index < state.at[channel.dst]
        if leaves and len(under_way) < self.room:
            value = state.buffers[channel.src][self.sends[number][sent].buffer].content
            found.append(linked(state, number, Link(moved, (*under_way, value))))
        if arrives and under_way:
            found.append(self.arrive(state, number, under_way[0], Link(moved + 1, under_way[1:])))
        elif arrives and leaves:
            value = state.buffers[channel.src][self.sends[number][sent].buffer].content
            found.append(self.arrive(state, number, value, Link(moved + 1)))
        return found

    def arrive(self, state: State, number: int, value: Activation | None, link: Link) -> State:
        send, recv = self.sends[number][link.moved - 1], self.recvs[number][link.moved - 1]
        require(value == send.activation == recv.activation, "a transfer brings another activation")
        rank = self.schedule.channels[number].dst
        return linked(buffered(state, rank, recv.buffer, Buffer(Use.RECEIVING, value)), number, link)

    def ready(self, state: State, rank: int, instruction: Instruction) -> bool:
        """Whether a rank can take its next step: only a WAIT can block."""
        if not isinstance(instruction, Wait):
            return True
        post = self.lists[rank][instruction.of] if instruction.of < state.at[rank] else None
        if not isinstance(post, Send | Recv):
            return True  # and a fault
        number = self.numbers[post.channel]
        posts = self.sends[number] if isinstance(post, Send) else self.recvs[number]
        mine = [each.index for each in posts].index(instruction.of)
        moved, under_way = state.links[number]
        return mine < moved + (len(under_way) if isinstance(post, Send) else 0)

    # Instructions

    def step(self, state: State, rank: int) -> State:
        """The state after a rank's next instruction. Raises FaultError when the contract forbids it."""
        index = state.at[rank]
        after = state._replace(at=(*state.at[:rank], index + 1, *state.at[rank + 1 :]))
        match self.lists[rank][index]:
            case Forward() as each:
                return self.forward(after, rank, index, each)
            case Send(chunk, stage, peer, channel, buffer):
                self.require_hop(rank, peer, channel, stage, stage + 1)
                self.require_holds(after, rank, buffer, Activation(chunk, stage))
                return buffered(after, rank, buffer, Buffer(Use.SENDING, Activation(chunk, stage)))
            case Recv(chunk, stage, peer, channel, buffer):
                self.require_hop(peer, rank, channel, stage - 1, stage)
                require(chunk < len(self.schedule.chunks), "a chunk does not exist")
                self.require_free(after, rank, buffer)
                return buffered(after, rank, buffer, Buffer(Use.RECEIVING))
            case Wait(of):
                return self.wait(after, rank, index, of)
            case Sample(chunk, buffer):
                require(rank == self.schedule.stages[-1].rank, "a token is made on another rank")
                require(chunk < len(self.schedule.chunks) and self.makes_token[chunk], "a token is not wanted")
                earlier = self.lists[rank][:index]
                require(not any(isinstance(each, Sample) and each.chunk == chunk for each in earlier), "sampled twice")
                self.require_holds(after, rank, buffer, Activation(chunk, len(self.schedule.stages) - 1))
                return buffered(after, rank, buffer, Buffer())

    def forward(self, state: State, rank: int, index: int, forward: Forward) -> State:
        chunk, stage, read, write = forward
        s = self.schedule
        require(chunk < len(s.chunks) and stage < len(s.stages), "a chunk or stage does not exist")
        require(s.stages[stage].rank == rank, "a stage is on another rank")
        earlier = self.lists[rank][:index]
        ran = {each.chunk for each in earlier if isinstance(each, Forward) and each.stage == stage}
        sampled = {each.chunk for each in earlier if isinstance(each, Sample)}
        require(chunk not in ran, "a stage is run twice")
        for number, part in enumerate(s.chunks[chunk].parts):
            before = [c for c in range(chunk) for each in s.chunks[c].parts if each.request == part.request]
            require(ran.issuperset(before), "a prefix is not there")
            if part.decode and stage == 0:
                # the token is made where the part before ends
                here = any(each.request == part.request for each in s.chunks[chunk].parts[:number])
                require(not here and before[-1] in sampled, "a token is not there")
        require((read is None) == (stage == 0), "reads tokens or an activation")
        is_last = stage == len(s.stages) - 1
        require(write is not None or (is_last and not self.makes_token[chunk]), "an output is thrown away")
        if read is not None:
            self.require_holds(state, rank, read, Activation(chunk, stage - 1))
        if write is not None:
            self.require_free(state, rank, write)
            state = buffered(state, rank, write, Buffer(Use.FULL, Activation(chunk, stage)))
        return state if read is None else buffered(state, rank, read, Buffer())

    def wait(self, state: State, rank: int, index: int, of: int) -> State:
        earlier = self.lists[rank][:index]
        require(of < index and isinstance(earlier[of], Send | Recv), "waits for what is no transfer")
        require(Wait(of) not in earlier, "waits twice")
        post = earlier[of]
        assert isinstance(post, Send | Recv)
        if isinstance(post, Send):
            return buffered(state, rank, post.buffer, Buffer())
        return buffered(state, rank, post.buffer, Buffer(Use.FULL, state.buffers[rank][post.buffer].content))

    def require_hop(self, src: int, dst: int, channel: int, stage: int, following: int) -> None:
        """The output of ``stage`` goes from rank ``src`` to ``dst``, on a channel of these."""
        stages = self.schedule.stages
        require(stage >= 0 and following < len(stages), "a stage does not exist")
        require((stages[stage].rank, stages[following].rank) == (src, dst), "a stage is on another rank")
        require(src != dst, "nothing passes between stages of one rank")
        number = self.numbers.get(channel)
        require(number is not None, "a channel does not exist")
        assert number is not None
        ends = self.schedule.channels[number]
        require((ends.src, ends.dst) == (src, dst), "a channel leads elsewhere")

    def require_holds(self, state: State, rank: int, buffer: int, activation: Activation) -> None:
        require(buffer < len(state.buffers[rank]), "a buffer does not exist")
        require(state.buffers[rank][buffer] == Buffer(Use.FULL, activation), "a buffer holds something else")

    def require_free(self, state: State, rank: int, buffer: int) -> None:
        require(buffer < len(state.buffers[rank]), "a buffer does not exist")
        require(state.buffers[rank][buffer].use is Use.FREE, "a buffer is in use")


def require(condition: bool, what: str) -> None:
    if not condition:
        raise FaultError(what)


def buffered(state: State, rank: int, buffer: int, value: Buffer) -> State:
    mine = state.buffers[rank]
    changed = (*mine[:buffer], value, *mine[buffer + 1 :])
    return state._replace(buffers=(*state.buffers[:rank], changed, *state.buffers[rank + 1 :]))


def linked(state: State, number: int, link: Link) -> State:
    return state._replace(links=(*state.links[:number], link, *state.links[number + 1 :]))
