"""One rank's instructions, run on paper in one scan.

What an instruction may do depends only on the instructions before it on the same rank: a buffer changes its
state where the rank's own list says so, and what happens in between is fixed by the WAITs. So a rank is
checked by itself, in one pass over its integers. :func:`accept` runs instructions while they break no rule;
at one that does it stops, and :mod:`vppc.ir.rules.explain` says what is wrong and goes on behind it.

A value, the activation that a chunk's stage s reads, is the integer ``chunk * (stages + 1) + s``; the last
stage's output is the value of ``s = stages``. No value is 0, since stage 0 reads tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT, WIDTH, Row
from vppc.ir.rules.prompts import Prompts
from vppc.ir.schedule import Schedule

FREE = -1
"""What a buffer holds when it may be written. It holds a value > 0, and ``~value`` while a transfer uses it."""
NOWHERE = ~(1 << 62)
"""What the spare buffer holds, or its inverse after a WAIT: neither is free or any value, so nothing can use it."""

Port = tuple[int, Callable[[int], None], Callable[[int], None]]
"""One end of a channel: the peer, and where a transfer's value and instruction are noted."""

_NONE = bytes(1)


@dataclass(slots=True)
class Pipe:
    """A channel with what has been posted on it: the values, in order, and the instructions that posted them.

    The first ``met`` SENDs and RECVs are known to match.
    """

    id: int
    src: int
    dst: int
    sent: array[int] = field(default_factory=lambda: array("q"))
    sent_at: array[int] = field(default_factory=lambda: array("i"))
    received: array[int] = field(default_factory=lambda: array("q"))
    received_at: array[int] = field(default_factory=lambda: array("i"))
    met: int = 0
    used: bool = False
    """Whether transfers that matched were dropped; see :mod:`vppc.ir.rules.forget`."""


@dataclass(slots=True)
class Tape:
    """What the scan knows of a rank.

    ``todo[stage][chunk]`` is 1 while that FORWARD is to run here; only stages of this rank are in it.
    ``unsampled[chunk]`` is 1 while that SAMPLE is. ``holds[b]`` is the content of buffer b (see :data:`FREE`)
    and ``since[b]`` the instruction that wrote it. ``send_to[stage]`` and ``recv_from[stage]`` are the ranks that
    a stage's output goes to and its input comes from, if that is another rank. ``flight`` maps a transfer not
    waited for to its buffer b, to ``~b`` if it is a SEND. ``waits`` are the WAITs, ``ends[i]`` is the instruction
    that frees what instruction i wrote, or 0, and ``partner[i]`` the peer's instruction that the transfer posted
    by instruction i meets, or -1. ``lost`` are the values that a finding was about: what else goes wrong with
    them is its consequence. Rows end with a 0, for index -1 and the index behind the end.
    """

    rank: int
    schedule: Schedule
    prompts: Prompts
    holds: list[int]
    since: list[int]
    todo: dict[int, bytearray] = field(default_factory=dict)
    unsampled: bytearray = field(default_factory=lambda: bytearray(_NONE))
    send_to: dict[int, int] = field(default_factory=dict)
    recv_from: dict[int, int] = field(default_factory=dict)
    outgoing: dict[int, Port] = field(default_factory=dict)
    incoming: dict[int, Port] = field(default_factory=dict)
    code: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("i"))
    partner: array[int] = field(default_factory=lambda: array("i"))
    waits: array[int] = field(default_factory=lambda: array("i"))
    flight: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return self.schedule.stage_ranks

    @property
    def buffers(self) -> int:
        """How many buffers the rank has."""
        return len(self.since) - 2

    @property
    def spare(self) -> int:
        """A buffer that no program can use, for transfers whose own cannot be used."""
        return self.buffers + 1

    def expect(self, first: int) -> None:
        """The chunks from number ``first`` on are to run and to be sampled."""
        samples = self.prompts.samples[first:]
        for row in self.todo.values():
            row[-1:] = b"\1" * len(samples) + _NONE
        if self.stage_ranks[-1] == self.rank:
            self.unsampled[-1:] = samples + _NONE

    def extend(self, code: array[int]) -> Iterator[Row]:
        """More instructions behind those it has, also returned as integers."""
        length = len(code) // WIDTH
        self.code.extend(code)
        self.ends.extend(array("i", (0,)) * length)
        self.partner.extend(array("i", (-1,)) * length)
        each = iter(code)
        return zip(each, each, each, each, each, each, strict=True)

    def __len__(self) -> int:
        return len(self.code) // WIDTH


def blank_tapes(schedule: Schedule, pipes: Sequence[Pipe], prompts: Prompts) -> list[Tape]:
    """The tapes of all ranks of a schedule, with nothing on them."""
    tapes = [
        Tape(program.rank, schedule, prompts, [FREE] * program.buffers + [0, NOWHERE, 0], [0] * (program.buffers + 2))
        for program in schedule.programs
    ]
    ranks = schedule.stage_ranks
    for stage, rank in enumerate(ranks):
        tapes[rank].todo[stage] = bytearray(_NONE)
    for stage, (src, dst) in enumerate(pairwise(ranks)):
        if src != dst:
            tapes[src].send_to[stage] = dst
            tapes[dst].recv_from[stage + 1] = src
    for pipe in pipes:
        tapes[pipe.src].outgoing[pipe.id] = (pipe.dst, pipe.sent.append, pipe.sent_at.append)
        tapes[pipe.dst].incoming[pipe.id] = (pipe.src, pipe.received.append, pipe.received_at.append)
    return tapes


def accept(tape: Tape, rows: Iterator[Row], index: int) -> int:
    """Run ``rows``, the instructions from ``index`` on; return the number of the first that breaks a rule.

    That one has been taken from ``rows`` and has had no effect. Returns the length of the list if none does.
    """
    prompts, holds, since, ends, flight = tape.prompts, tape.holds, tape.since, tape.ends, tape.flight
    prefix, samples, decodes, todo, unsampled = (
        prompts.prefix,
        prompts.samples,
        prompts.decodes,
        tape.todo,
        tape.unsampled,
    )
    chunks, stages = len(prefix), len(tape.stage_ranks)
    last, width = stages - 1, stages + 1
    send_to, recv_from, outgoing, incoming = tape.send_to, tape.recv_from, tape.outgoing, tape.incoming
    note_wait, land = tape.waits.append, flight.pop
    index -= 1
    try:
        for op, chunk, stage, x, y, z in rows:
            index += 1
            if op == WAIT:
                buffer = land(x, None)
                if buffer is None:
                    return index
                if buffer >= 0:
                    holds[buffer] = ~holds[buffer]
                else:
                    holds[~buffer] = FREE
                    ends[since[~buffer]] = index
                note_wait(index)
            elif op == FORWARD:
                row = todo[stage]
                if not row[chunk]:
                    return index
                for earlier in prefix[chunk]:
                    if row[earlier]:
                        return index
                value = chunk * width + stage
                if stage:
                    if holds[x] != value:
                        return index
                elif x >= 0 or (chunk in decodes and any(unsampled[maker] for maker in decodes[chunk])):
                    return index
                if y >= 0:
                    if holds[y] != FREE:
                        return index
                    holds[y] = value + 1
                    since[y] = index
                elif stage != last or samples[chunk]:
                    return index
                if stage:
                    holds[x] = FREE
                    ends[since[x]] = index
                row[chunk] = 0
            elif op == SEND:
                peer, note_value, note_index = outgoing[z]
                value = chunk * width + stage + 1
                if holds[x] != value or peer != y or send_to[stage] != y:
                    return index
                holds[x] = ~value
                flight[index] = ~x
                note_value(value)
                note_index(index)
            elif op == RECV:
                peer, note_value, note_index = incoming[z]
                if holds[x] != FREE or peer != y or recv_from[stage] != y or not 0 <= chunk < chunks:
                    return index
                value = chunk * width + stage
                holds[x] = ~value
                since[x] = index
                flight[index] = x
                note_value(value)
                note_index(index)
            else:
                if not unsampled[chunk] or holds[x] != chunk * width + stages:
                    return index
                unsampled[chunk] = 0
                holds[x] = FREE
                ends[since[x]] = index
    except LookupError:  # a number that names nothing
        return index
    return index + 1
