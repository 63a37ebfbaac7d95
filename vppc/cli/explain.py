"""``vppc explain``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import click

from vppc.analysis.activity import Activity
from vppc.analysis.bubbles import Bubble, bubbles
from vppc.analysis.critical import CriticalPath, critical_path
from vppc.cli.needs import check_beside
from vppc.cli.number import MOMENT
from vppc.cli.output import JSON, Output, wants_json
from vppc.cli.progress import progress
from vppc.cli.runs import Subject, read_subject
from vppc.errors import InputError
from vppc.explain import MOST_OPERATIONS, Step, Trial, changes, outcome, steps, trials, with_free_transfers
from vppc.files import write_text
from vppc.ir.schedule import Schedule
from vppc.render.explain import (
    bubbles_text,
    explanation_json,
    instruction_text,
    moment_text,
    path_text,
    steps_text,
    trials_text,
    waits_text,
)
from vppc.render.listing import headline, prediction
from vppc.render.profile import pace
from vppc.render.tables import seconds


@click.command(name="explain")
@click.argument("file", metavar="FILE")
@click.option("--at", "moment", type=MOMENT, metavar="TIME", help="What every rank does at a time: 1.5, 20ms.")
@click.option("--instruction", metavar="RANK:INDEX", help="When an instruction ran, and what was waited for.")
@click.option(
    "--try/--no-try", "wanted", default=None, help=f"Try changes [default: up to {MOST_OPERATIONS:,} operations]."
)
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file [default: the one embedded in the schedule].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of words.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("an explanation", *JSON),
    help="Where to write: text, or .json [default: stdout].",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    moment: float | None,
    instruction: str | None,
    wanted: bool | None,
    cost_file: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Say why a schedule FILE (- is stdin), or a run from its journal, takes as long as it does.

    \b
    vppc explain plan.json
    vppc explain plan.json --at 1.5
    vppc explain out/run --instruction 1:17

    Every bubble is followed to what the rank is really waiting for, and so has a cause:

    \b
    fill       the first chunk is not here yet
    drain      the last chunk has entered, and no other
    imbalance  another rank takes longer for what comes next
    transfer   a transfer between other ranks
    request    a request has not arrived
    overhead   time between instructions, only when measured

    Then the critical path; changes that would help, each compiled and simulated by itself; and what each pass did.
    """
    if moment is not None and instruction is not None:
        raise InputError("give one of --at and --instruction")
    part = "--at" if moment is not None else "--instruction" if instruction is not None else None
    if part is not None:
        check_beside(context, part, ["as_json", "wanted"])
        if wants_json(output, as_json):
            raise InputError(f"{part} is told in words", file=output or "", place="-o", remedy="another name")
    subject = read_subject(file, cost_file)
    if wanted and not subject.simulated:
        raise InputError(
            "changes are tried of a schedule, not of a run", place="--try", remedy="give the schedule file"
        )
    activity = Activity.of(subject.run.schedule, subject.run.timing)
    if moment is not None and moment > activity.end - activity.start:
        over = seconds(activity.end - activity.start)
        raise InputError(f"the run is over after {over}", place="--at", remedy="an earlier time")
    pieces, path = bubbles(activity), critical_path(activity)
    if instruction is not None:
        text = instruction_text(activity, pieces, path, *_place(instruction, activity.schedule))
    elif moment is not None:
        text = moment_text(activity, pieces, moment)
    else:
        text = _whole(subject, activity, pieces, path, wanted, wants_json(output, as_json))
    write_text(output, text + "\n")


def _whole(
    subject: Subject,
    activity: Activity,
    pieces: Sequence[Sequence[Bubble]],
    path: CriticalPath,
    wanted: bool | None,
    as_json: bool,
) -> str:
    schedule, cost = activity.schedule, subject.cost
    small = len(schedule.chunks) * len(schedule.stages) <= MOST_OPERATIONS
    trying = wanted is True or (wanted is None and small)
    before = free = None
    tried: tuple[Trial, ...] = ()
    refused: tuple[str, ...] = ()
    made: tuple[Step, ...] = ()
    if cost is not None and subject.simulated:
        before, free = outcome(schedule, cost), with_free_transfers(schedule, cost)
        if trying:
            with progress("try", sum(1 for _ in changes(schedule, cost))) as done:
                tried, refused = trials(schedule, cost, done)
            made = steps(schedule, cost)
    if as_json:
        return json.dumps(explanation_json(activity, pieces, path, before, tried, made), indent=1, allow_nan=False)
    parts = ["\n".join([*headline(schedule), *(prediction(subject.report) if subject.report is not None else ())])]
    parts += [bubbles_text(activity, pieces), waits_text(activity, pieces)]
    parts.append(path_text(activity, path, subject.report, free))
    if subject.measured is not None:
        parts.append(f"forwards {pace(subject.measured)}")
    if before is not None and trying:
        parts += [trials_text(before, tried, refused), steps_text(made)]
    elif before is not None and wanted is None:
        parts.append(f"changes are tried of up to {MOST_OPERATIONS:,} operations; --try tries them here, too")
    return "\n\n".join(parts)


def _place(text: str, schedule: Schedule) -> tuple[int, int]:
    """The rank and the index of ``RANK:INDEX``."""
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if found is None:
        raise InputError(f"{text!r} is no instruction", place="--instruction", remedy="a rank and an index: 1:17")
    rank, index = int(found[1]), int(found[2])
    if rank >= schedule.pp:
        raise InputError(f"there is no rank {rank}", place="--instruction", remedy=f"ranks 0 to {schedule.pp - 1}")
    last = len(schedule.programs[rank]) - 1
    if index > last:
        raise InputError(f"rank {rank} has no instruction {index}", place="--instruction", remedy=f"0 to {last}")
    return rank, index
