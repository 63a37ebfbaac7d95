"""Forgetting: what a proven stream is through with need not be kept, so that the proof of one without end stays small.

What is left counts from 0 again. :class:`Forgotten` is how much was dropped, and turns the numbers of the segments
that follow into those of what is left.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vppc.analysis.deadlock import Progress
from vppc.ir.instruction import WAIT, WIDTH
from vppc.ir.rules.program import FREE, Pipe, Tape
from vppc.ir.rules.prompts import Prompts
from vppc.ir.schedule import Chunk
from vppc.ir.segment import Segment


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many requests, chunks, and instructions of every rank a stream no longer has."""

    requests: int
    chunks: int
    instructions: tuple[int, ...]

    def shifted(self, segment: Segment) -> Segment:
        """A segment of the stream in the numbers of what is left."""
        programs = []
        for more in segment.programs:
            before = self.instructions[more.rank] if 0 <= more.rank < len(self.instructions) else 0
            programs.append(replace(more, start=more.start - before, code=_shifted(more.code, before, self.chunks)))
        extra = dict(segment.extra)
        if "cancelled" in extra:
            extra["cancelled"] = [request - self.requests for request in extra["cancelled"]]
        chunks = tuple(_shifted_chunk(chunk, self.requests) for chunk in segment.chunks)
        return replace(segment, chunks=chunks, programs=tuple(programs), extra=extra)

    def and_then(self, other: Forgotten) -> Forgotten:
        """This, and then as much again as the other says."""
        instructions = tuple(a + b for a, b in zip(self.instructions, other.instructions, strict=True))
        return Forgotten(self.requests + other.requests, self.chunks + other.chunks, instructions)


def forget(over: int, tapes: Sequence[Tape], pipes: Sequence[Pipe], prompts: Prompts, progress: Progress) -> Forgotten:
    """Drop what a stream without findings is through with, and say how much that was.

    These are chunks that all stages have run, requests of which no part is left, among the first ``over``, and
    instructions that have been passed and that no open transfer or buffer refers to.
    """
    chunks = min(min(_open_chunks(tape), default=len(prompts.chunks)) for tape in tapes)
    for pipe in pipes:
        width = len(tapes[pipe.src].stage_ranks) + 1
        chunks = min([chunks, *(value // width for value in (*pipe.sent[pipe.met :], *pipe.received[pipe.met :]))])
    instructions = tuple(max(0, min(_needed(tape, pipes, progress))) for tape in tapes)
    requests = _requests_over(over, prompts, chunks)
    gone = Forgotten(requests, chunks, instructions)
    for pipe in pipes:
        _forget_transfers(pipe, gone, len(tapes[pipe.src].stage_ranks) + 1)
    for tape in tapes:
        _forget_instructions(tape, gone, progress)
    prompts.forget(requests, chunks)
    return gone


def _open_chunks(tape: Tape) -> Iterator[int]:
    """Chunks that have something to do on a rank, the earliest of each kind, or whose values it holds."""
    width = len(tape.stage_ranks) + 1
    yield from (chunk for row in (*tape.todo.values(), tape.unsampled) if (chunk := row.find(1)) >= 0)
    yield from (max(content, ~content) // width for content in tape.holds[: tape.buffers] if content != FREE)


def _needed(tape: Tape, pipes: Sequence[Pipe], progress: Progress) -> Iterator[int]:
    """Instructions that are still needed; and the last that was passed, which shows that all before it were."""
    yield progress.reached[tape.rank] - 1
    yield from tape.flight
    yield from (tape.since[buffer] for buffer in range(tape.buffers) if tape.holds[buffer] != FREE)
    yield from (tape.code[wait * WIDTH + 3] for wait in tape.waits[progress.passed[tape.rank] :])
    for pipe in pipes:
        if pipe.src == tape.rank:
            yield from pipe.sent_at[pipe.met :]
        if pipe.dst == tape.rank:
            yield from pipe.received_at[pipe.met :]


def _requests_over(over: int, prompts: Prompts, chunks: int) -> int:
    """How many requests, from the first on, nothing that is left belongs to."""
    kept = [part.request for chunk in prompts.chunks[chunks:] for part in chunk.parts]
    return min([over, len(prompts.requests), *kept, *prompts.unfinished()])


def _forget_transfers(pipe: Pipe, gone: Forgotten, width: int) -> None:
    pipe.used = pipe.used or pipe.met > 0
    for values in (pipe.sent, pipe.received):
        values[:] = array("q", [value - gone.chunks * width for value in values[pipe.met :]])
    for indices, rank in ((pipe.sent_at, pipe.src), (pipe.received_at, pipe.dst)):
        indices[:] = array("i", [index - gone.instructions[rank] for index in indices[pipe.met :]])
    pipe.met = 0


def _forget_instructions(tape: Tape, gone: Forgotten, progress: Progress) -> None:
    first, rank = gone.instructions[tape.rank], tape.rank
    width = len(tape.stage_ranks) + 1
    for row in tape.todo.values():
        del row[: gone.chunks]
    if tape.stage_ranks[-1] == rank:
        del tape.unsampled[: gone.chunks]
    for buffer, content in enumerate(tape.holds[: tape.buffers]):
        if content != FREE:
            tape.since[buffer] -= first
            tape.holds[buffer] += -gone.chunks * width if content > 0 else gone.chunks * width
        else:
            tape.since[buffer] = 0
    tape.flight = {index - first: buffer for index, buffer in tape.flight.items()}
    del tape.ends[:first], tape.partner[:first], tape.waits[: progress.passed[rank]]
    tape.ends[:] = array("i", [max(0, end - first) for end in tape.ends])
    tape.waits[:] = array("i", [wait - first for wait in tape.waits])
    tape.code[:] = _shifted(tape.code[first * WIDTH :], first, gone.chunks)
    peers = tape.code[4::WIDTH]
    posts = zip(tape.partner, peers, strict=True)
    tape.partner[:] = array("i", [p if p < 0 else max(0, p - gone.instructions[peer]) for p, peer in posts])
    progress.passed[rank] = 0
    progress.reached[rank] -= first


def _shifted(code: array[int], instructions: int, chunks: int) -> array[int]:
    """Instructions in the numbers of what is left; a chunk that is no more becomes -1, which none is."""
    shifted = array("i", code)
    shifted[1::WIDTH] = array("i", [max(-1, chunk - chunks) for chunk in code[1::WIDTH]])
    for index in range(0, len(code), WIDTH):
        if code[index] == WAIT:
            shifted[index + 3] -= instructions
    return shifted


def _shifted_chunk(chunk: Chunk, requests: int) -> Chunk:
    return Chunk(tuple(replace(part, request=part.request - requests) for part in chunk.parts), chunk.extra)
