"""Two schedules, or a plan and its run, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vppc.analysis.activity import Activity
from vppc.analysis.breakdown import first_tokens, makespan
from vppc.analysis.bubbles import CAUSES, bubbles, totals
from vppc.analysis.differences import Fork, Shift, fork, order_of, same_programs, same_work, shifts
from vppc.analysis.report import Report
from vppc.analysis.slip import Slip, slip
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Op
from vppc.profiles.measured import Difference, differences
from vppc.render.lanes import Run
from vppc.render.profile import differences_table
from vppc.render.slip import slip_json, slip_text, worst
from vppc.render.tables import count, percent, printable, seconds, signed, signed_percent, table

LISTED_RANKS = 16
"""So many ranks are compared one by one; of more, the first."""


@dataclass(frozen=True)
class Side:
    """One of the two: a run, with its report where costs are known."""

    run: Run
    report: Report | None


@dataclass(frozen=True)
class Comparison:
    """How two runs differ; ``instructions`` and ``slip`` where their programs are the same, ``operations`` where the
    work is."""

    sides: tuple[Side, Side]
    same_prompts: bool
    chunks: Fork
    orders: tuple[Fork, ...]
    instructions: tuple[Difference, ...] | None
    slip: Slip | None
    operations: tuple[Shift, ...] | None


def compare_runs(ours: Side, theirs: Side, listed: int) -> Comparison:
    """Compare two runs, with the ``listed`` largest differences in time."""
    one, other = ours.run.schedule, theirs.run.schedule
    identical = same_programs(one, other)
    instructions = differences(one, ours.run.timing, theirs.run.timing, listed) if identical else None
    pair = (one, ours.run.timing), (other, theirs.run.timing)
    return Comparison(
        (ours, theirs),
        [(each.id, each.prompt_tokens, each.cached_tokens, each.arrival) for each in one.requests]
        == [(each.id, each.prompt_tokens, each.cached_tokens, each.arrival) for each in other.requests],
        fork([chunk.tokens for chunk in one.chunks], [chunk.tokens for chunk in other.chunks]),
        tuple(fork(order_of(one, rank), order_of(other, rank)) for rank in range(min(one.pp, other.pp))),
        instructions,
        slip(*(Activity.of(side.run.schedule, side.run.timing) for side in (ours, theirs))) if identical else None,
        tuple(shifts(*pair, listed)) if not identical and same_work(one, other) else None,
    )


def diff_text(comparison: Comparison, names: tuple[str, str]) -> str:
    """The comparison as tables and sentences; ends without a newline."""
    schedule = comparison.sides[0].run.schedule
    parts = [table(("", "A", "B", "B to A"), list(_facts(comparison)), "<>>>")]
    parts[0] = "\n".join(
        [*(f"{letter}  {printable(name)}" for letter, name in zip("AB", names, strict=True)), "", parts[0]]
    )
    parts.append("\n".join(_sentences(comparison)))
    if comparison.instructions is not None and comparison.slip is not None:
        if worst(comparison.slip, 1) or comparison.slip.seconds:
            parts.append(slip_text(schedule, comparison.slip, ("A", "B"), len(comparison.instructions)))
        moved = [each for each in comparison.instructions if each.measured != each.planned]
        if moved:
            head = "largest differences in what instructions took"
            parts.append(f"{head}\n{differences_table(schedule, moved, ('A', 'B')).text()}")
        elif comparison.instructions:  # none are where none were to be listed
            parts.append("every instruction takes the same time in both")
    if comparison.operations is not None:
        rows = [
            (
                f"C{shift.op.chunk} s{shift.op.stage}",
                str(schedule.stage_ranks[shift.op.stage]),
                seconds(shift.our_start),
                seconds(shift.their_start),
                signed(round(shift.their_start - shift.our_start, 9)),
                signed(round(shift.their_seconds - shift.our_seconds, 9)),
            )
            for shift in comparison.operations
            if shift.their_start != shift.our_start
        ]
        headers = ("operation", "rank", "in A at", "in B at", "later by", "longer by")
        if rows:
            parts.append(f"operations that moved most\n{table(headers, rows, '<>')}")
    return "\n\n".join(parts)


def diff_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as data; times in seconds."""
    schedule = comparison.sides[1].run.schedule
    return {
        "a": _side_json(comparison.sides[0]),
        "b": _side_json(comparison.sides[1]),
        "same_prompts": comparison.same_prompts,
        "same_programs": comparison.instructions is not None,
        "chunks": _fork_json(comparison.chunks),
        "orders": [_fork_json(each) for each in comparison.orders],
        "instructions": None
        if comparison.instructions is None
        else [
            {
                "rank": each.rank,
                "i": each.index,
                "a": {"start": each.planned_start, "seconds": each.planned},
                "b": {"start": each.measured_start, "seconds": each.measured},
            }
            for each in comparison.instructions
        ],
        "slip": None
        if comparison.slip is None or comparison.instructions is None
        else slip_json(schedule, comparison.slip, len(comparison.instructions)),
        "operations": None
        if comparison.operations is None
        else [
            {
                "chunk": shift.op.chunk,
                "stage": shift.op.stage,
                "a": {"start": shift.our_start, "seconds": shift.our_seconds},
                "b": {"start": shift.their_start, "seconds": shift.their_seconds},
            }
            for shift in comparison.operations
        ],
    }


def _facts(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    sides = comparison.sides
    schedules = [side.run.schedule for side in sides]

    def row(name: str, values: list[str], change: str = "") -> tuple[str, str, str, str]:
        return name, values[0], values[1], change or ("same" if values[0] == values[1] else "")

    yield row("strategy", [printable(each.strategy) for each in schedules])
    yield row("ranks x stages", [f"{each.pp} x {each.vp}" for each in schedules])
    yield row("layers a stage", [_layers([stage.layers for stage in each.stages]) for each in schedules])
    yield row("chunks", [count(len(each.chunks)) for each in schedules])
    yield row("instructions", [count(sum(map(len, each.programs))) for each in schedules])
    yield row("buffers a rank", [str(max((p.buffers for p in each.programs), default=0)) for each in schedules])
    spans = [makespan(side.run.schedule, side.run.timing) for side in sides]
    yield row("makespan", [seconds(each) for each in spans], _ratio(*spans))
    if comparison.sides[0].report is not None and comparison.sides[1].report is not None:
        reports = [side.report for side in sides if side.report is not None]
        yield row("efficiency", [percent(each.efficiency) for each in reports])
        yield row("lower bound", [seconds(each.bound.seconds) for each in reports])
    tokens = [_mean(first_tokens(side.run.schedule, side.run.timing)) for side in sides]
    yield row("mean TTFT", [seconds(each) for each in tokens], _ratio(*tokens))
    work = [[_work(side.run, rank) for rank in range(side.run.schedule.pp)] for side in sides]
    for rank in range(min(LISTED_RANKS, *map(len, work))):
        pair = [side[rank] for side in work]
        yield row(f"work, rank {rank}", [seconds(each) for each in pair], _ratio(*pair))
    activities = [Activity.of(side.run.schedule, side.run.timing) for side in sides]
    pieces = [bubbles(activity) for activity in activities]
    idle = [[sum(piece.seconds for piece in rank) for rank in side] for side in pieces]
    for rank in range(min(LISTED_RANKS, *map(len, idle))):
        pair = [side[rank] for side in idle]
        yield row(f"idle, rank {rank}", [seconds(each) for each in pair], _ratio(*pair))
    sums = [totals([piece for rank in side for piece in rank], "cause") for side in pieces]
    for cause in CAUSES:
        pair = [side[cause] for side in sums]
        if any(pair):
            yield row(f"{cause}, all ranks", [seconds(each) for each in pair], _ratio(*pair))


def _sentences(comparison: Comparison) -> Iterator[str]:
    if not comparison.same_prompts:
        yield "prompts: not the same, so times say little"
    chunks = comparison.chunks
    if chunks.same:
        yield f"chunks: the same {count(chunks.common)} sizes"
    else:
        sizes = [
            f"{count(each, 'token')}" if isinstance(each, int) else "none" for each in (chunks.ours, chunks.theirs)
        ]
        first = f"{count(chunks.common, 'chunk')} of the same sizes first, then " if chunks.common else ""
        yield f"chunks: {first}A has {sizes[0]}, and B {sizes[1]}"
        yield "order: not compared, for the chunks are others"
        return
    for rank, order in enumerate(comparison.orders[:LISTED_RANKS]):
        if order.same:
            yield f"order: rank {rank} runs the same {count(order.common, 'operation')} in both"
        else:
            then = f"then A runs {_op(order.ours)}, and B {_op(order.theirs)}"
            yield f"order: rank {rank} runs the same {count(order.common, 'operation')} first, {then}"


def _work(run: Run, rank: int) -> float:
    """The seconds of a rank's FORWARDs."""
    rows, starts, ends = run.schedule.programs[rank].rows(), run.timing.starts[rank], run.timing.ends[rank]
    return sum(end - start for (op, *_), start, end in zip(rows, starts, ends, strict=True) if op == FORWARD)


def _op(op: object) -> str:
    return f"C{op.chunk} s{op.stage}" if isinstance(op, Op) else "nothing"


def _layers(ranges: list[tuple[int, int]]) -> str:
    counts = [str(last - first) for first, last in ranges]
    return " ".join(counts if len(counts) <= 8 else [*counts[:7], "..."])


def _mean(tokens: tuple[float | None, ...]) -> float:
    known = [each for each in tokens if each is not None]
    return sum(known) / len(known) if known else 0.0


def _ratio(ours: float, theirs: float) -> str:
    if math.isclose(ours, theirs, rel_tol=1e-9):
        return "same"
    return signed_percent(theirs / ours - 1) if ours else ""


def _fork_json(found: Fork) -> dict[str, Any]:
    return {"same": found.same, "common": found.common, "a": found.ours, "b": found.theirs}


def _side_json(side: Side) -> dict[str, Any]:
    schedule, timing = side.run.schedule, side.run.timing
    return {
        "strategy": schedule.strategy,
        "pp": schedule.pp,
        "vp": schedule.vp,
        "layers": [list(stage.layers) for stage in schedule.stages],
        "chunks": [chunk.tokens for chunk in schedule.chunks],
        "makespan": makespan(schedule, timing),
        "ttft": list(first_tokens(schedule, timing)),
        "report": None if side.report is None else side.report.json(),
    }
