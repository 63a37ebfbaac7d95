"""Explanations in words: why ranks wait, what is critical, what would help, and what each pass did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from vppc.analysis.activity import Activity, Doing, Root, Span
from vppc.analysis.bubbles import CAUSES, PHASES, Bubble, totals
from vppc.analysis.critical import CriticalPath
from vppc.analysis.report import Report
from vppc.explain import Outcome, Step, Trial
from vppc.ir.assembly import instruction_lines
from vppc.ir.instruction import FORWARD, RECV, SEND, WAIT
from vppc.ir.schedule import Schedule
from vppc.render.lanes import awaits
from vppc.render.tables import Table, count, percent, printable, seconds, signed_percent, table

LONGEST = 5
"""So many waits of a run are told in words."""
TOLD_RANKS = 4
"""So many ranks of the critical path are named."""
LISTED_PIECES = 12
"""So many reasons of one wait are told."""
LONGEST_CHAIN = 4
"""So many ranks of a chain of waits are named; of a longer one, the ends."""
LISTED_RANKS = 32
"""So many ranks have a line in a table; of more, those that idle most."""
NEGLIGIBLE = 0.0005
"""A gain below this is none."""


def bubbles_text(activity: Activity, bubbles: Sequence[Sequence[Bubble]]) -> str:
    """Every rank's bubble by cause and by phase, causes without any time left out."""
    by_cause = [totals(pieces, "cause") for pieces in bubbles]
    by_phase = [totals(pieces, "phase") for pieces in bubbles]
    causes = [cause for cause in CAUSES if any(each[cause] for each in by_cause)]
    total = activity.end - activity.start
    idle = [sum(each.values()) for each in by_cause]
    ranks = sorted(range(len(idle)), key=lambda rank: -idle[rank])[:LISTED_RANKS]
    rows = [
        (
            str(rank),
            seconds(idle[rank]),
            percent(idle[rank] / total if total else 0.0),
            *(seconds(by_cause[rank][cause]) for cause in causes),
            *(seconds(by_phase[rank][phase]) for phase in PHASES),
        )
        for rank in sorted(ranks)
    ]
    phases = [f"in {phase}" if phase != "drain" else "in the drain" for phase in PHASES]
    more = f"\nand {count(len(idle) - len(ranks), 'rank')} that idle less" if len(idle) > len(ranks) else ""
    return f"idle, by cause and by phase\n{table(('rank', 'idle', '', *causes, *phases), rows, '>')}{more}"


def waits_text(activity: Activity, bubbles: Sequence[Sequence[Bubble]]) -> str:
    """The longest waits of the run, a line each; empty where there is none."""
    waits = [(rank, list(pieces)) for rank, each in enumerate(bubbles) for _, pieces in groupby(each, key=_reason)]
    waits.sort(key=lambda wait: -sum(piece.seconds for piece in wait[1]))
    if not waits:
        return "no rank ever waits"
    lines = []
    for rank, pieces in waits[:LONGEST]:
        first = pieces[0]
        length = sum(piece.seconds for piece in pieces)
        lines.append(
            f"{seconds(length)} from {_moment(activity, first.start)} ({first.cause}): "
            f"rank {rank} {because(activity, first.root, first.root.end)}"
        )
    return "\n".join(["longest waits", *lines])


def path_text(activity: Activity, path: CriticalPath, report: Report | None, free: Outcome | None) -> str:
    """Where the critical path runs, what bounds the schedule, and what transfers cost it."""
    total = activity.end - activity.start
    runs = sorted(((path.seconds(Doing.RUN, rank), rank) for rank in range(len(activity.spans))), reverse=True)
    shares = [(length, f"on rank {rank}") for length, rank in runs[:TOLD_RANKS]]
    shares += [
        (sum(length for length, _ in runs[TOLD_RANKS:]), "on other ranks"),
        (path.seconds(Doing.TRANSFER), "in transfers"),
        (path.seconds(Doing.ARRIVAL), "before a request arrives"),
        (path.seconds(Doing.BETWEEN), "between instructions"),
    ]
    told = [f"{seconds(length)} ({percent(length / total)}) {where}" for length, where in shares if length]
    over = count(path.hand_overs, "hand-over")
    lines = [f"critical path: {', '.join(told)}; {over} from rank to rank" if told else "critical path: none"]
    if report is not None:
        bound = report.bound
        lines.append(
            f"no order of these chunks on these stages is quicker than {seconds(bound.seconds)}, for {bound.resource} "
            f"has {seconds(bound.head)} before its work, {seconds(bound.work)} of work and {seconds(bound.tail)} after"
        )
    if free is not None and total:
        lines.append(
            f"were transfers to take no time: {seconds(free.makespan)} ({percent(1 - free.makespan / total)} less)"
        )
    return "\n".join(lines)


def trials_text(before: Outcome, trials: Sequence[Trial], refused: Sequence[str]) -> str:
    """The changes that help, each by itself, and those that do not."""
    found = trials_table(before, trials)
    if not trials and not refused:
        lines = ["there is nothing to try"]
    elif found is None:
        lines = ["nothing of what was tried would help"]
    else:
        lines = ["what would help, each compiled and simulated by itself", found.text()]
    return "\n".join([*lines, *trials_notes(before, trials, refused)])


def trials_notes(before: Outcome, trials: Sequence[Trial], refused: Sequence[str]) -> Iterator[str]:
    """Which changes would not help, and which cannot be made; a line each."""
    others = [trial.change.kind for trial in trials if trial.gain_over(before) <= NEGLIGIBLE]
    if others:
        yield f"no gain: {', '.join(others)}"
    if refused:
        yield f"not possible here: {', '.join(refused)}"
    if before.limited and any(trial.gain_over(before) > NEGLIGIBLE for trial in trials):
        yield "what these need of the memory that ranks have is not known here; vppc compile with the same --model says"


def trials_table(before: Outcome, trials: Sequence[Trial]) -> Table | None:
    """The changes that help, each by itself; None where none does."""
    good = [trial for trial in trials if trial.gain_over(before) > NEGLIGIBLE]
    if not good:
        return None
    rows = [("as it is", "", "", seconds(before.makespan), seconds(before.ttft), str(before.buffers), "")]
    for trial in good:
        after = trial.outcome
        gain = f"+{percent(trial.gain_over(before))}"
        change = trial.change
        rows.append(
            (
                change.kind,
                change.what,
                gain,
                seconds(after.makespan),
                seconds(after.ttft),
                str(after.buffers),
                change.how,
            )
        )
    headers = ("change", "to", "throughput", "makespan", "mean TTFT", "buffers", "with")
    return Table(headers, rows, "<<>>>><")


def steps_text(steps: Sequence[Step]) -> str:
    """What each pass did, or that the programs are not what passes make."""
    if not steps:
        return (
            "passes: these programs are not what the strategy's passes make of these chunks and stages by default; "
            "they were tuned, edited, or compiled with limits"
        )
    return f"what each pass did\n{steps_table(steps).text()}"


def steps_table(steps: Sequence[Step]) -> Table:
    """What each pass made, and what that is priced at."""
    rows = []
    before: float | None = None
    for step in steps:
        after = step.makespan
        change = ""
        if after is not None and before:
            change = "as before" if abs(after / before - 1) < NEGLIGIBLE else signed_percent(after / before - 1)
        rows.append((step.name, _made(step.schedule), "" if after is None else seconds(after), change))
        before = after if after is not None else before
    return Table(("pass", "made", "makespan", ""), rows, "<<>>")


def moment_text(activity: Activity, bubbles: Sequence[Sequence[Bubble]], moment: float) -> str:
    """What every rank does at a moment, in seconds from the start of the clock, and why those that wait do."""
    clock = moment + activity.start
    lines = [f"at {seconds(moment)} of {seconds(activity.end - activity.start)}"]
    for rank in range(len(activity.spans)):
        span = activity.at(rank, clock)
        if span.doing is Doing.RUN:
            what = f"{_running(activity, rank, span)}, from {_moment(activity, span.start)} to"
            lines.append(f"rank {rank} {what} {_moment(activity, span.end)}")
            continue
        if span.doing is Doing.TRANSFER:
            lines.append(f"rank {rank} {because(activity, Root(span.start, span.end, ((rank, span),)), span.end)}")
            continue
        piece = next((piece for piece in bubbles[rank] if piece.start <= clock < piece.end), None)
        if piece is None:
            lines.append(f"rank {rank} {span.doing.value}")
        else:
            why = because(activity, piece.root, piece.root.end)
            lines.append(f"rank {rank} {why} ({piece.cause}, in {_the(piece.phase)})")
    return "\n".join(lines)


def instruction_text(
    activity: Activity, bubbles: Sequence[Sequence[Bubble]], path: CriticalPath, rank: int, index: int
) -> str:
    """One instruction: what it is, when it ran, what the rank waited for in it or before it, and what waits for it."""
    schedule, timing = activity.schedule, activity.timing
    program = schedule.programs[rank]
    line = " ".join(next(instruction_lines(schedule, program, index, index + 1)).split())
    start, end = timing.starts[rank][index], timing.ends[rank][index]
    op, _, _, x, _, _ = program.row(index)
    told = [
        f"rank {rank}: {line}",
        f"from {_moment(activity, start)} to {_moment(activity, end)}: {seconds(end - start)}",
    ]
    if op in (SEND, RECV):
        told.append(_meeting(activity, rank, index))
    begin = start if op == WAIT else _idle_since(activity, rank, index)
    reasons = list(_reasons(activity, bubbles, rank, begin, end if op == WAIT else start))
    if reasons:
        told.append("the rank waited in it:" if op == WAIT else "before it the rank waited:")
        told += reasons[:LISTED_PIECES]
        if len(reasons) > LISTED_PIECES:
            told.append(f"  and {count(len(reasons) - LISTED_PIECES, 'reason')} more")
    elif op == WAIT:
        told.append("the rank did not wait in it")
    critical = [
        link for link in path.links if link.rank == rank and link.instruction in (index, x if op == WAIT else index)
    ]
    on_it = sum(link.seconds for link in critical)
    told.append(f"{seconds(on_it)} of it are on the critical path" if on_it else "it is not on the critical path")
    return "\n".join(told)


def explanation_json(
    activity: Activity,
    bubbles: Sequence[Sequence[Bubble]],
    path: CriticalPath,
    before: Outcome | None,
    trials: Sequence[Trial],
    steps: Sequence[Step],
) -> dict[str, Any]:
    """The explanation as data; times in seconds."""
    return {
        "makespan": activity.end - activity.start,
        "ranks": [
            {
                "rank": rank,
                "causes": totals(pieces, "cause"),
                "phases": totals(pieces, "phase"),
                "bubbles": [
                    {
                        "start": piece.start - activity.start,
                        "end": piece.end - activity.start,
                        "cause": piece.cause,
                        "phase": piece.phase,
                        "why": because(activity, piece.root, piece.end),
                    }
                    for piece in pieces
                ],
            }
            for rank, pieces in enumerate(bubbles)
        ],
        "critical_path": [
            {
                "start": link.start - activity.start,
                "end": link.end - activity.start,
                "doing": link.doing.name.lower(),
                "rank": link.rank,
                "i": link.instruction,
            }
            for link in path.links
        ],
        "as_it_is": None if before is None else asdict(before),
        "changes": [
            {**asdict(trial.change), **asdict(trial.outcome), "gain": trial.gain_over(before)}
            for trial in trials
            if before is not None
        ],
        "passes": [{"pass": step.name, "made": _made(step.schedule), "makespan": step.makespan} for step in steps],
    }


def because(activity: Activity, root: Root, until: float) -> str:
    """Why a rank waits, after its name: "waits for the input of C3 s2 from rank 1, which runs C3 s1 until 4 s"."""
    links = root.links
    told = [_link(activity, rank, span) for rank, span in links]
    if len(links) > LONGEST_CHAIN:
        between = count(len(links) - 3, "rank")
        told[1:-1] = [f"waits through {between} for rank {links[-1][0]}"]
    text = ", which ".join(told)
    return text if root.span.doing is Doing.DONE else f"{text} until {_moment(activity, until)}"


def _link(activity: Activity, rank: int, span: Span) -> str:
    if span.doing is Doing.RUN:
        return _running(activity, rank, span)
    if span.doing in (Doing.PEER, Doing.TRANSFER):
        op, chunk, stage, _, peer, _ = activity.schedule.programs[rank].row(span.instruction)
        return awaits(op, chunk, stage, peer) + (", under way" if span.doing is Doing.TRANSFER else "")
    if span.doing is Doing.ARRIVAL:
        chunk = activity.schedule.programs[rank].row(span.instruction)[1]
        parts = activity.schedule.chunks[chunk].parts
        latest = max((activity.schedule.requests[part.request] for part in parts), key=lambda each: each.arrival)
        return f"waits for {printable(latest.id)} to arrive"
    return str(span.doing.value)


def _running(activity: Activity, rank: int, span: Span) -> str:
    op, chunk, stage, *_ = activity.schedule.programs[rank].row(span.instruction)
    return f"runs C{chunk} s{stage}" if op == FORWARD else f"samples C{chunk}"


def _reason(piece: Bubble) -> tuple[object, ...]:
    """What pieces that are told of as one wait have in common."""
    return piece.awaited, piece.cause, piece.root.rank, piece.root.span.instruction


def _moment(activity: Activity, moment: float) -> str:
    return seconds(moment - activity.start)


def _the(phase: str) -> str:
    return "the steady state" if phase == "steady" else f"the {phase}"


def _reasons(
    activity: Activity, bubbles: Sequence[Sequence[Bubble]], rank: int, start: float, end: float
) -> Iterator[str]:
    pieces = [piece for piece in bubbles[rank] if piece.start < end and piece.end > start]
    for _, group in groupby(pieces, key=_reason):
        same = list(group)
        length = sum(min(piece.end, end) - max(piece.start, start) for piece in same)
        yield f"  {seconds(length)} ({same[0].cause}): {because(activity, same[0].root, same[-1].end)}"
    for span in activity.during(rank, start, end):
        if span.doing is Doing.TRANSFER:
            yield f"  {seconds(span.end - span.start)} (exposed transfer): {_link(activity, rank, span)}"


def _idle_since(activity: Activity, rank: int, index: int) -> float:
    """Since when a rank had run nothing when it came to an instruction."""
    program, ends = activity.schedule.programs[rank], activity.timing.ends[rank]
    for earlier in range(index - 1, -1, -1):
        if program.row(earlier)[0] == FORWARD:
            return ends[earlier]
    return activity.start


def _meeting(activity: Activity, rank: int, index: int) -> str:
    schedule = activity.schedule
    op, *_, channel = schedule.programs[rank].row(index)
    place = next(place for place, each in enumerate(schedule.channels) if each.id == channel)
    each = activity.timing.transfers[place]
    number = (each.sends if op == SEND else each.recvs).index(index)
    return (
        f"sent at {_moment(activity, each.send_posted[number])}, received for at "
        f"{_moment(activity, each.recv_posted[number])}, under way from "
        f"{_moment(activity, each.starts[number])} to {_moment(activity, each.ends[number])}"
    )


def _made(schedule: Schedule) -> str:
    """What there is of a schedule after a pass, the last thing made."""
    if schedule.programs:
        moved = sum(op == SEND for program in schedule.programs for op, *_ in program.rows())
        buffers = max(program.buffers for program in schedule.programs)
        listed = sum(map(len, schedule.programs))
        return f"{count(listed, 'instruction')}, {count(moved, 'transfer')}, up to {count(buffers, 'buffer')} a rank"
    if schedule.order is not None:
        how = "step by step" if schedule.order.steps is not None else "as their inputs come"
        return f"the order of {count(sum(map(len, schedule.order.ranks)), 'operation')}, {how}"
    if schedule.stages:
        layers = [last - first for first, last in (stage.layers for stage in schedule.stages)]
        stages, channels = count(len(layers), "stage"), count(len(schedule.channels), "channel")
        return f"{stages} of {_range(layers, 'layer')}, {channels}"
    sizes = [chunk.tokens for chunk in schedule.chunks]
    return f"{count(len(sizes), 'chunk')} of {_range(sizes, 'token')}" if sizes else "no chunks"


def _range(numbers: Sequence[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    return count(high, noun) if low == high else f"{count(low)} to {count(high, noun)}"
