"""The runs that a command draws: of schedules, simulated; of journals, planned and measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from vppc.analysis.report import Report, report
from vppc.analysis.timing import simulate
from vppc.costs.chosen import chosen_cost
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import CheckFailed, InputError
from vppc.files import check_one_stdin, source_name
from vppc.ir.document import parse_schedule, read_schedule
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule
from vppc.profiles.journal import SCHEDULE, is_journal, read_journal
from vppc.profiles.measured import Measured, measure, timing_of
from vppc.render.lanes import Run


def check_read_once(paths: Sequence[str], cost_file: str | None) -> None:
    """Raises InputError where stdin would be read twice: for two of the paths, or as the costs of each of them."""
    check_one_stdin((*paths, cost_file))
    if cost_file == "-" and len(paths) > 1:
        raise InputError("is read for each of the files, which stdin cannot be", place="--cost", remedy="name a file")


def read_runs(paths: Sequence[str], cost_file: str | None) -> tuple[Run, ...]:
    """The run of every schedule file, and the plan and the measured run of every journal folder.

    Costs are those in ``cost_file``, or else those that a schedule embeds; a journal without costs has no plan.
    Raises InputError and CheckFailed when a file is wrong, or a schedule has no costs.
    """
    check_read_once(paths, cost_file)
    named = [(path, run) for path in paths for run in _runs(path, cost_file)]
    uses = Counter(run.name for _, run in named)
    return tuple(
        run if uses[run.name] == 1 else replace(run, name=f"{run.name} ({PurePath(source_name(path)).stem})")
        for path, run in named
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """One run to be judged: simulated, with its costs; or measured, with costs and report where costs are known."""

    run: Run
    cost: CostModel | None
    report: Report | None
    measured: Measured | None = None

    @property
    def simulated(self) -> bool:
        """Whether the run is a schedule's, and not a journal's."""
        return self.cost is not None and self.measured is None


def read_subject(
    path: str,
    cost_file: str | None,
    listed: int = 10,
    text: str | None = None,
    accept: Callable[[Schedule], object] = lambda schedule: None,
) -> Subject:
    """The run of a schedule file, or the measured run of a journal folder, with ``listed`` differences to its plan.

    ``text`` is what the file holds, if that was read already. ``accept`` sees the schedule before any work is done on
    it, and may raise. Raises as :func:`read_runs` does.
    """
    if is_journal(Path(path)):
        journal = read_journal(path)
        accept(journal.schedule)
        cost = chosen_cost(journal.schedule, str(Path(path) / SCHEDULE), cost_file)
        if cost is None:
            return Subject(Run("journal", journal.schedule, timing_of(journal)), None, None)
        measured = measure(journal, cost, listed)
        return Subject(Run("journal", journal.schedule, measured.timing), cost, measured.report, measured)
    schedule = read_schedule(path) if text is None else parse_schedule(text, source_name(path))
    accept(schedule)
    findings = check(schedule)
    if findings:
        raise CheckFailed(findings, file=source_name(path))
    cost = chosen_cost(schedule, path, cost_file)
    if cost is None:
        raise InputError("no costs are embedded", file=source_name(path), place="cost", remedy="give --cost FILE")
    run = planned(schedule.strategy, schedule, cost)
    return Subject(run, cost, report(schedule, cost, OpCosts.of(schedule, cost), run.timing))


def planned(name: str, schedule: Schedule, cost: CostModel) -> Run:
    """The simulated run of a schedule."""
    return Run(name, schedule, simulate(schedule, OpCosts.of(schedule, cost), cost.interference))


def _runs(path: str, cost_file: str | None) -> tuple[Run, ...]:
    subject = read_subject(path, cost_file)
    if not is_journal(Path(path)):
        return (subject.run,)
    schedule, cost = subject.run.schedule, subject.cost
    return (subject.run,) if cost is None else (planned("plan", schedule, cost), subject.run)
