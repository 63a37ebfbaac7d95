"""Why one run of a schedule ends later than another, as sums and a list of the largest causes."""

from __future__ import annotations

from typing import Any

from vppc.analysis.activity import Doing
from vppc.analysis.slip import Loss, Slip
from vppc.ir.assembly import instruction_lines
from vppc.ir.schedule import Schedule
from vppc.render.tables import Table, count, seconds, signed

KINDS = {
    Doing.RUN: "forwards and samples",
    Doing.TRANSFER: "transfers",
    Doing.BETWEEN: "between instructions (overhead)",
    Doing.ARRIVAL: "requests that arrive",
}
NOISE = 1e-9
"""Seconds below which a time is none."""


def slip_text(schedule: Schedule, slip: Slip, names: tuple[str, str], listed: int) -> str:
    """What the critical path of the second of two runs, which are called ``names``, took longer; and what is left."""
    lines = [slip_line(slip, names)]
    shown = worst(slip, listed)
    if shown:
        found = slip_table(schedule, slip, names, listed)
        lines += ["", found.text(), "", left_line(slip, listed)]
    return "\n".join(lines)


def slip_line(slip: Slip, names: tuple[str, str]) -> str:
    """The difference of the makespans, by kind of link; exact."""
    kinds = [(name, slip.total(kind)) for kind, name in KINDS.items()]
    told = [f"{name} {_signed(total)}" for name, total in kinds if abs(total) > NOISE]
    if slip.spare > NOISE:
        told.append(f"less {seconds(slip.spare)} that these had spare in {names[0]}")
    how = "later" if slip.seconds > 0 else "earlier"
    ends = f"{seconds(abs(slip.seconds))} {how} than {names[0]}" if abs(slip.seconds) > NOISE else f"with {names[0]}"
    return f"{names[1]} ends {ends}; on its critical path: {', '.join(told) or 'nothing took longer'}"


def worst(slip: Slip, listed: int) -> tuple[Loss, ...]:
    """The links that took longest more."""
    return tuple(loss for loss in slip.losses[:listed] if loss.seconds > NOISE)


def slip_table(schedule: Schedule, slip: Slip, names: tuple[str, str], listed: int) -> Table:
    """The links of the critical path that took longer, the worst first."""
    origin = min(schedule.chunk_arrivals, default=0.0)
    rows = [
        (
            str(loss.link.rank),
            place(schedule, loss),
            seconds(loss.link.start - origin),
            seconds(loss.before if loss.before > NOISE else 0.0),
            seconds(loss.link.seconds),
            signed(loss.seconds),
        )
        for loss in worst(slip, listed)
    ]
    return Table(("rank", "what", f"{names[1]} at", f"{names[0]} took", f"{names[1]} took", "longer by"), rows, "><")


def left_line(slip: Slip, listed: int) -> str:
    """How much of what the path lost is listed, and how much is left."""
    lost = [loss.seconds for loss in slip.losses if loss.seconds > NOISE]
    shown = sum(loss.seconds for loss in worst(slip, listed))
    rest, gained = sum(lost) - shown, -sum(loss.seconds for loss in slip.losses if loss.seconds < -NOISE)
    more = len(lost) - min(listed, len(lost))
    left = f"; {count(more, 'smaller one')} come to {seconds(rest)}" if more else ""
    won = f"; others were {seconds(gained)} quicker" if gained > NOISE else ""
    return f"these come to {seconds(shown)}{left}{won}"


def slip_json(schedule: Schedule, slip: Slip, listed: int) -> dict[str, Any]:
    """The same as data; times in seconds."""
    origin = min(schedule.chunk_arrivals, default=0.0)
    return {
        "seconds": slip.seconds,
        "spare": slip.spare,
        **{kind.name.lower(): slip.total(kind) for kind in KINDS},
        "worst": [
            {
                "doing": loss.link.doing.name.lower(),
                "rank": loss.link.rank,
                "i": loss.link.instruction,
                "start": loss.link.start - origin,
                "before": loss.before,
                "after": loss.link.seconds,
            }
            for loss in worst(slip, listed)
        ],
    }


def place(schedule: Schedule, loss: Loss) -> str:
    """What a link is: an instruction as ``vppc show`` has it, its transfer, or the gap before it."""
    link = loss.link
    if link.instruction >= len(schedule.programs[link.rank]):
        return "after the last instruction"
    lines = instruction_lines(schedule, schedule.programs[link.rank], link.instruction, link.instruction + 1)
    line = " ".join(next(lines).split())
    return {Doing.TRANSFER: "under way: ", Doing.BETWEEN: "gap before ", Doing.ARRIVAL: "arrival for "}.get(
        link.doing, ""
    ) + line


def _signed(value: float) -> str:
    return signed(value) if abs(value) > NOISE else "0 s"
