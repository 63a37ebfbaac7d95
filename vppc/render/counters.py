"""What a rank holds in the course of a run, as changes: (seconds on the run's clock, how much more or less)."""

from __future__ import annotations

from collections.abc import Iterator

from vppc.ir.instruction import FORWARD, RECV, SAMPLE, SEND, WAIT
from vppc.render.lanes import Run


def buffers_in_use(run: Run, rank: int) -> Iterator[tuple[float, int]]:
    """When a buffer is taken and given back: written or received into, read, sampled from, or sent."""
    program = run.schedule.programs[rank]
    starts, ends = run.timing.starts[rank], run.timing.ends[rank]
    for index, (op, _, _, x, y, _) in enumerate(program.rows()):
        if op == RECV:
            yield starts[index], 1
        elif op == FORWARD:
            if y >= 0:
                yield starts[index], 1
            if x >= 0:
                yield ends[index], -1
        elif op == SAMPLE or (op == WAIT and program.row(x)[0] == SEND):
            yield ends[index], -1


def kv_tokens(run: Run, rank: int) -> Iterator[tuple[float, int]]:
    """When KV tokens come, with the first forward of their chunk on the rank, and go, with their request's last."""
    schedule, stages = run.schedule, run.schedule.rank_stages[rank]
    last_chunk = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    held: dict[int, int] = {}
    for index, (op, chunk, stage, *_) in enumerate(schedule.programs[rank].rows()):
        if op != FORWARD:
            continue
        parts = schedule.chunks[chunk].parts
        if stage == stages[0]:
            for part in parts:
                tokens = part.tokens if part.request in held else part.end
                held[part.request] = held.get(part.request, 0) + tokens
                yield run.timing.starts[rank][index], tokens
        if stage == stages[-1]:
            for request in {part.request for part in parts if last_chunk[part.request] == chunk}:
                yield run.timing.ends[rank][index], -held.pop(request)
