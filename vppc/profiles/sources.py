"""Measurements from wherever they are: CSV tables, journals, and Ascend kernel tables with the schedule that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vppc.costs.document import parse_cost
from vppc.costs.measurements import Reading, read_tables
from vppc.costs.samples import Layers, Measurements
from vppc.errors import InputError
from vppc.ir.document import read_schedule
from vppc.ir.schedule import Schedule
from vppc.profiles.journal import is_journal, read_journal
from vppc.profiles.kernel_layers import forwards_of_kernels, kernel_table_of
from vppc.profiles.measured import measurements


def gather(
    paths: Sequence[str],
    reading: Reading,
    *,
    schedule_file: str | None = None,
    rank: int | None = None,
    step: str | None = None,
) -> Measurements:
    """All measurements in ``paths``: files are tables, folders journals or profiles of one rank.

    Kernel tables need the schedule that was profiled, the rank where the folder's name does not end in it, and the
    step where they have several.
    Raises InputError, CheckFailed where a profile is not one of the schedule.
    """
    journals = [read_journal(path) for path in paths if is_journal(Path(path))]
    kernels = [(path, table) for path in paths if (table := kernel_table_of(Path(path))) is not None]
    tables = [path for path in paths if not is_journal(Path(path)) and path not in dict(kernels)]
    schedules = [(journal.folder, journal.schedule) for journal in journals]
    if kernels:
        if schedule_file is None:
            raise InputError(
                "tells nothing of chunks: the schedule that was profiled is needed",
                file=kernels[0][0],
                remedy="--schedule FILE",
            )
        schedules.append((schedule_file, read_schedule(schedule_file)))
    if reading.layers is None and schedules:
        reading = replace(reading, layers=_layers(schedules[0][1], reading.topk))
    for file, schedule in schedules:
        if reading.layers is not None and schedule.model.layers != reading.layers.count:
            raise InputError(
                f"is of a model with {schedule.model.layers} layers, not {reading.layers.count}",
                file=file,
                remedy="measurements of one model, and --layers for it",
            )
    found = read_tables(tables, reading)
    for journal in journals:
        found += measurements(journal, found.layers)
    for path, table in kernels:
        found += forwards_of_kernels(path, table, schedules[-1][1], rank, found.layers, step)
    return found


def _layers(schedule: Schedule, topk: int) -> Layers:
    """The layers of a schedule: the kinds that its costs tell apart, or all alike."""
    if "cost" in schedule.extra and not topk:
        return Layers.of(parse_cost(schedule.extra["cost"]).layers)
    return Layers.alike(schedule.model.layers, topk)
