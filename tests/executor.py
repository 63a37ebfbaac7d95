"""Runs schedules on symbolic values, in a random interleaving: the judge of what the verifier accepts.

Written from the contract alone, without the verifier's code: ranks with buffers that really are overwritten,
transfers that copy at some moment between post and completion, KV caches that remember in which order they
were written. What a program computes is the tokens it samples and the KV it leaves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vppc.ir.instruction import Forward, Instruction, Recv, Sample, Send, Wait
from vppc.ir.schedule import Part, Schedule


class CrashError(Exception):
    """The program asks for what does not exist: a buffer, a channel, a stage that the rank has no weights for."""


@dataclass
class Transfer:
    """One transfer of a channel: where its two ends are posted, and the value while it is under way."""

    send: tuple[int, int] | None = None  # rank, buffer
    recv: tuple[int, int] | None = None
    taken: bool = False
    value: Any = None
    done: bool = False


@dataclass
class Machine:
    schedule: Schedule
    random: Random
    eager: bool
    lists: list[list[Instruction]] = field(init=False)
    at: list[int] = field(init=False)
    buffers: list[dict[int, Any]] = field(init=False)
    channels: dict[int, list[Transfer]] = field(init=False)
    posted: dict[tuple[int, int], Transfer] = field(default_factory=dict)
    kv: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.lists = [list(program) for program in self.schedule.programs]
        self.at = [0] * len(self.lists)
        self.buffers = [dict.fromkeys(range(program.buffers), 0) for program in self.schedule.programs]
        self.channels = {channel.id: [] for channel in self.schedule.channels}

    def run(self) -> tuple[Any, ...] | str:
        """What was computed, or why nothing was: "hang" or "crash"."""
        try:
            while moves := self.moves():
                self.random.choice(moves)()
        except CrashError:
            return "crash"
        if any(at < len(code) for at, code in zip(self.at, self.lists, strict=True)):
            return "hang"
        return sorted(self.tokens.items()), sorted(self.kv.items())

    def moves(self) -> list[Any]:
        found: list[Any] = []
        for rank, code in enumerate(self.lists):
            if self.at[rank] < len(code) and self.ready(rank, code[self.at[rank]]):
                found.append(lambda rank=rank: self.step(rank))
        for queue in self.channels.values():
            for number, transfer in enumerate(queue):
                both = transfer.send is not None and transfer.recv is not None
                first = number == 0 or queue[number - 1].done
                if not transfer.taken and transfer.send is not None and (self.eager or (both and first)):
                    found.append(lambda transfer=transfer: self.take(transfer))
                if transfer.taken and not transfer.done and both and first:
                    found.append(lambda transfer=transfer: self.deliver(transfer))
        return found

    def take(self, transfer: Transfer) -> None:
        assert transfer.send is not None
        rank, buffer = transfer.send
        transfer.value, transfer.taken = self.buffers[rank][buffer], True

    def deliver(self, transfer: Transfer) -> None:
        assert transfer.recv is not None
        rank, buffer = transfer.recv
        self.buffers[rank][buffer], transfer.done = transfer.value, True

    def ready(self, rank: int, instruction: Instruction) -> bool:
        if not isinstance(instruction, Wait):
            return True
        transfer = self.posted.get((rank, instruction.of))
        if transfer is None:
            return True  # and crash
        if isinstance(self.lists[rank][instruction.of], Send):
            return transfer.taken if self.eager else transfer.done
        return transfer.done

    def step(self, rank: int) -> None:
        index = self.at[rank]
        self.at[rank] += 1
        match self.lists[rank][index]:
            case Forward(chunk, stage, read, write):
                self.forward(rank, chunk, stage, read, write)
            case Send(_, _, peer, channel, buffer):
                self.post(rank, index, peer, channel, buffer, sends=True)
            case Recv(_, _, peer, channel, buffer):
                self.post(rank, index, peer, channel, buffer, sends=False)
            case Wait(of):
                if (rank, of) not in self.posted:
                    raise CrashError
            case Sample(chunk, buffer):
                self.sample(rank, chunk, buffer)

    def forward(self, rank: int, chunk: int, stage: int, read: int | None, write: int | None) -> None:
        if stage >= len(self.schedule.stages) or self.schedule.stages[stage].rank != rank:
            raise CrashError
        value: Any = 0 if read is None else self.read(rank, read)
        for part in self.parts(chunk):
            if stage == 0:
                value = hash((value, part.request, part.start, part.tokens, self.token(part)))
            key = (stage, part.request)
            value = self.kv[key] = hash((value, stage, self.kv.get(key, 0), part.start, part.tokens))
        if write is not None:
            self.write(rank, write, value)

    def token(self, part: Part) -> int:
        """The token that a part decodes from; tokens of the prompt are known."""
        if not part.decode:
            return 0
        if not self.tokens[part.request]:
            raise CrashError
        return self.tokens[part.request][-1]

    def post(self, rank: int, index: int, peer: int, channel: int, buffer: int, *, sends: bool) -> None:
        ends = [(each.src, each.dst) for each in self.schedule.channels if each.id == channel]
        if ends != [(rank, peer) if sends else (peer, rank)] or buffer not in self.buffers[rank]:
            raise CrashError
        end = "send" if sends else "recv"
        queue = self.channels[channel]
        transfer = next((each for each in queue if getattr(each, end) is None), None)
        if transfer is None:
            transfer = Transfer()
            queue.append(transfer)
        setattr(transfer, end, (rank, buffer))
        self.posted[rank, index] = transfer

    def sample(self, rank: int, chunk: int, buffer: int) -> None:
        if rank != self.schedule.stages[-1].rank:
            raise CrashError
        value = self.read(rank, buffer)
        for part in self.parts(chunk):
            if part.decode or part.end == self.schedule.requests[part.request].prompt_tokens:
                self.tokens[part.request].append(hash((value, part.request)))

    def parts(self, chunk: int) -> tuple[Part, ...]:
        if chunk >= len(self.schedule.chunks):
            raise CrashError
        return self.schedule.chunks[chunk].parts

    def read(self, rank: int, buffer: int) -> Any:
        if buffer not in self.buffers[rank]:
            raise CrashError
        return self.buffers[rank][buffer]

    def write(self, rank: int, buffer: int, value: Any) -> None:
        if buffer not in self.buffers[rank]:
            raise CrashError
        self.buffers[rank][buffer] = value
