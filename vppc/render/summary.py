"""What ``vppc show`` prints in place of programs that are too long to read: tables of ranks, requests and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vppc.analysis.breakdown import clock_start
from vppc.analysis.report import Report
from vppc.analysis.times import Timing
from vppc.ir.instruction import FORWARD, SEND, WIDTH
from vppc.ir.schedule import Part, Schedule
from vppc.render.tables import count, seconds, table

MOST_ROWS = 12
"""A longer table is cut in the middle, unless all of it is asked for."""
_MOST_STAGES = 4
"""So many stages of a rank are named."""

Parts = Sequence[Sequence[tuple[int, Part]]]
"""For every request its parts, each with the number of its chunk."""
Span = tuple[float, float]
"""Start and end in seconds from the clock's start."""


def parts_of(schedule: Schedule) -> Parts:
    """The parts of every request, in the order of the chunks."""
    found: list[list[tuple[int, Part]]] = [[] for _ in schedule.requests]
    for index, chunk in enumerate(schedule.chunks):
        for part in chunk.parts:
            if part.request < len(found):  # a wrong schedule is shown, too
                found[part.request].append((index, part))
    return found


def chunk_spans(schedule: Schedule, timing: Timing) -> list[Span]:
    """For every chunk when its first stage starts and its last one ends."""
    origin, last = clock_start(schedule), len(schedule.stages) - 1
    begin, end = [0.0] * len(schedule.chunks), [0.0] * len(schedule.chunks)
    for program, starts, ends in zip(schedule.programs, timing.starts, timing.ends, strict=True):
        for (op, chunk, stage, *_), start, stop in zip(program.rows(), starts, ends, strict=True):
            if op == FORWARD and stage == 0:
                begin[chunk] = start - origin
            if op == FORWARD and stage == last:
                end[chunk] = stop - origin
    return list(zip(begin, end, strict=True))


def ranks_table(schedule: Schedule, *, whole: bool) -> str:
    """What each rank holds, and how long its program is."""
    rows = []
    for program in schedule.programs:
        held = [schedule.stages[stage] for stage in schedule.rank_stages[program.rank]]
        named = [f"s{stage.stage} {stage.layers[0]}..{stage.layers[1]}" for stage in held[:_MOST_STAGES]]
        more = ["..."] if len(held) > _MOST_STAGES else []
        ops = list(program.code[::WIDTH])
        rows.append(
            (
                str(program.rank),
                ", ".join(named + more),
                count(len(program)),
                count(ops.count(FORWARD)),
                count(ops.count(SEND)),
                count(program.buffers),
            )
        )
    headers = ("rank", "layers of its stages", "instructions", "forwards", "sends", "buffers")
    return table(headers, _cut(rows, len(headers), whole=whole), "><")


def requests_table(
    schedule: Schedule, parts: Parts, run: tuple[Sequence[Span], Report] | None, chosen: Sequence[int], *, whole: bool
) -> str:
    """The ``chosen`` requests: prompts, chunks, and in a ``run`` when they begin, and how long their tokens take."""
    cached = any(request.cached_tokens for request in schedule.requests)
    arriving = any(request.arrival for request in schedule.requests)
    rows = []
    for index in chosen:
        request, mine = schedule.requests[index], parts[index]
        row = [request.id, count(request.prompt_tokens)]
        row += [count(request.cached_tokens)] if cached else []
        row += [f"{mine[0][0]} to {mine[-1][0]}" if len(mine) > 1 else str(mine[0][0]) if mine else "none"]
        row += [seconds(request.arrival)] if arriving else []
        if run is not None:
            spans, report = run
            token = report.ttft[index]
            row += [seconds(spans[mine[0][0]][0]) if mine else "", "" if token is None else seconds(token)]
        rows.append(row)
    headers = ["request", "tokens", *(["cached"] if cached else []), "chunks", *(["arrives"] if arriving else [])]
    headers += ["begins at", "first token after"] if run is not None else []
    return table(headers, _cut(rows, len(headers), whole=whole))


def chunks_table(parts: Sequence[tuple[int, Part]], spans: Sequence[Span] | None, *, whole: bool) -> str:
    """The chunks of a request: its tokens in each, those before it, and in a run how long each is in the pipeline."""
    rows = []
    for index, part in parts:
        row = [str(index), count(part.tokens), count(part.start)]
        if spans is not None:
            begin, end = spans[index]
            row += [seconds(begin), seconds(end), seconds(end - begin)]
        rows.append(row)
    headers = ["chunk", "tokens", "prefix", *(["begins at", "ends at", "takes"] if spans is not None else [])]
    return table(headers, _cut(rows, len(headers), whole=whole), ">")


def _cut(rows: Sequence[Sequence[str]], columns: int, *, whole: bool) -> Iterator[Sequence[str]]:
    """The rows, of many only the first and last ones and how many are left out."""
    if whole or len(rows) <= MOST_ROWS:
        yield from rows
        return
    half = MOST_ROWS // 2
    yield from rows[:half]
    yield ("...", f"{count(len(rows) - 2 * half)} more", *[""] * (columns - 2))
    yield from rows[-half:]
