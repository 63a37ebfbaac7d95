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


@dataclass(slots=True)
class Tape:
    """What the scan knows of a rank.

    ``todo[stage][chunk]`` is 1 while that FORWARD is to run here, ``unsampled[chunk]`` while that SAMPLE is.
    ``holds[b]`` is the content of buffer b (see :data:`FREE`) and ``since[b]`` the instruction that wrote it.
    ``partner[i]`` is the peer's instruction that the transfer posted by instruction i meets, or -1.
    ``flight`` maps a transfer not waited for to its buffer b, to ``~b`` if it is a SEND. ``waits`` are the WAITs,
    and ``ends[i]`` is the instruction that frees what instruction i wrote, or 0. ``lost`` are the values that a
    finding was about: what else goes wrong with them is its consequence. All rows end with a 0, or with no
    value, for index -1 and the index behind the end.
    """

    rank: int
    buffers: int
    schedule: Schedule
    prompts: Prompts
    todo: list[bytearray]
    unsampled: bytearray
    send_to: list[int]
    recv_from: list[int]
    outgoing: dict[int, Port]
    incoming: dict[int, Port]
    holds: list[int]
    since: list[int]
    code: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("i"))
    partner: array[int] = field(default_factory=lambda: array("i"))
    flight: dict[int, int] = field(default_factory=dict)
    waits: array[int] = field(default_factory=lambda: array("i"))
    lost: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, schedule: Schedule, rank: int, pipes: Sequence[Pipe], prompts: Prompts) -> Tape:
        """The tape of a rank of ``schedule`` that has run nothing."""
        buffers = schedule.programs[rank].buffers
        around = [-1, *schedule.stage_ranks, -1]
        return cls(
            rank,
            buffers,
            schedule,
            prompts,
            todo=[bytearray(_NONE) for _ in around[1:]],
            unsampled=bytearray(_NONE),
            send_to=[_other(rank, here, there) for here, there in pairwise(around[1:])] + [-1],
            recv_from=[_other(rank, here, there) for there, here in pairwise(around)],
            outgoing={p.id: (p.dst, p.sent.append, p.sent_at.append) for p in pipes if p.src == rank},
            incoming={p.id: (p.src, p.received.append, p.received_at.append) for p in pipes if p.dst == rank},
            holds=[FREE] * buffers + [0, FREE, 0],
            since=[0] * (buffers + 2),
        )

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of every stage."""
        return self.schedule.stage_ranks

    @property
    def spare(self) -> int:
        """A buffer that no program can name, for transfers whose own cannot be used."""
        return self.buffers + 1

    def expect(self, first: int) -> None:
        """The chunks from number ``first`` on are to run and to be sampled."""
        samples = self.prompts.samples[first:]
        for stage, rank in enumerate(self.stage_ranks):
            if rank == self.rank:
                self.todo[stage][-1:] = b"\1" * len(samples) + _NONE
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


def _other(rank: int, here: int, there: int) -> int:
    """``there`` if an edge between a stage on ``here`` and one on ``there`` leaves this rank, else -1."""
    return there if here == rank != there else -1


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
