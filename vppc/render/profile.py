"""What ``vppc profile`` prints of device profiles and of journals: the paper's Tables 1 and 2 for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from vppc.ir.assembly import instruction_lines
from vppc.ir.schedule import Schedule
from vppc.profiles.communication import Collective
from vppc.profiles.folder import Profile, RankProfile
from vppc.profiles.kernels import CLASSES, Total, by_class, kernel_class
from vppc.profiles.measured import Difference, Measured
from vppc.profiles.step_times import StepTimes
from vppc.render.report import report_text
from vppc.render.slip import slip_json, slip_text
from vppc.render.tables import Table, count, percent, seconds, signed, table

LISTED_TYPES = 8
"""So many kernel types are listed, those that take longest."""
LISTED_RANKS = 16
"""So many ranks are listed."""
UNEVEN = 1.05
"""Ranks whose ratios differ by more are told one by one."""
MAPPING = """\
exposed comm   Communication(Not Overlapped), what a rank waits in receives included
in receives    the profiler's column Bubble: time in hcom_receive*, which is not the paper's bubble
bubble         Free and, where the profiler tells it (Preparing), the launch stall
overlap        hidden communication over all communication"""


def profile_text(profile: Profile) -> str:
    """The tables for the ranks of a device profile; ends without a newline."""
    ranks = profile.ranks
    parts = [_times(ranks), _classes(ranks), _bubbles(ranks), _types(ranks), _collectives(ranks)]
    remarks = ["\n".join(f"note: {remark}" for remark in profile.remarks)] if profile.remarks else []
    return "\n\n".join([*chain.from_iterable(parts), *remarks])


def profile_json(profile: Profile) -> dict[str, Any]:
    """The keys of ``simulate --json``, as far as a profile has them (null where not), and what it has beside them.

    ``collective`` is exposed communication without receives, ``exposed_transfer`` time in receives.
    """
    totals = [rank.times.total for rank in profile.ranks if rank.times is not None]
    return {
        "makespan": max(totals, default=None),
        "ideal": None,
        "efficiency": None,
        "lower_bound": None,
        "ttft": [],
        "requests": [],
        "ranks": [_rank_json(rank) for rank in profile.ranks],
        "remarks": list(profile.remarks),
    }


def measured_text(measured: Measured) -> str:
    """A journal's report, and plan against fact; ends without a newline."""
    schedule, plan, fact = measured.journal.schedule, measured.plan, measured.report
    ratio = fact.makespan / plan.makespan if plan.makespan else 1.0
    lines = [
        f"planned    {seconds(plan.makespan)}; measured {seconds(fact.makespan)}, {ratio:.3f} of it",
        f"forwards   {pace(measured)}",
        f"clocks     agree to within {seconds(measured.journal.uncertainty)}",
    ]
    if not 0.8 <= measured.forwards_ratio <= 1.25:
        lines.append(
            "note: these costs, and the efficiency, are another machine's (vppc calibrate fits some to a journal), or "
            "this one\nwas busy, now or when they were measured: then run again when it is idle"
        )
    slipped = slip_text(schedule, measured.slip, ("the plan", "the run"), len(measured.differences))
    parts = [report_text(schedule, fact), "\n".join(lines), slipped]
    if measured.differences:
        differences = differences_table(schedule, measured.differences, ("planned", "measured")).text()
        parts.append(f"largest differences between plan and fact\n{differences}")
    return "\n\n".join(parts)


def pace(measured: Measured) -> str:
    """What the FORWARDs took beside the plan; of every rank, where these differ."""
    said = f"took {measured.forwards_ratio:.3f} of what was planned"
    ratios = measured.rank_ratios
    if max(ratios) <= UNEVEN * min(ratios):
        return said
    listed = ", ".join(f"{ratio:.3f}" for ratio in ratios[:LISTED_RANKS])
    slowest = f"rank {ratios.index(max(ratios))} is the slowest, {max(ratios):.3f}"
    return f"{said}; {slowest}; by rank {listed}{', ..' if len(ratios) > LISTED_RANKS else ''}"


def differences_table(schedule: Schedule, differences: Sequence[Difference], names: tuple[str, str]) -> Table:
    """Instructions that took different times in two runs of a schedule, which are called ``names``."""
    return Table(
        ("rank", "instruction", f"{names[0]} at", "took", f"{names[1]} at", "took", "difference"),
        [
            (
                str(each.rank),
                _instruction(schedule, each),
                seconds(each.planned_start),
                seconds(each.planned),
                seconds(each.measured_start),
                seconds(each.measured),
                signed(each.measured - each.planned),
            )
            for each in differences
        ],
        "><",
    )


def measured_json(measured: Measured) -> dict[str, Any]:
    """The keys of ``simulate --json``, measured, and the plan with the differences."""
    return {
        **measured.report.json(),
        "requests": [request.id for request in measured.journal.schedule.requests],
        "plan": measured.plan.json(),
        "forwards_ratio": measured.forwards_ratio,
        "rank_ratios": list(measured.rank_ratios),
        "clock_uncertainty": measured.journal.uncertainty,
        "differences": [
            {
                "rank": each.rank,
                "i": each.index,
                "instruction": _instruction(measured.journal.schedule, each),
                "planned": {"start": each.planned_start, "seconds": each.planned},
                "measured": {"start": each.measured_start, "seconds": each.measured},
            }
            for each in measured.differences
        ],
        "slip": slip_json(measured.journal.schedule, measured.slip, len(measured.differences)),
    }


def _times(ranks: Sequence[RankProfile]) -> Iterator[str]:
    timed = _timed(ranks)
    if not timed:
        return
    headers = ("rank", "compute", "bubble", "exposed comm", "in receives", "total", "bubble ratio", "overlap")
    rows = [_time_row(name, times) for name, times in timed]
    if len(timed) > 1:
        name, longest = max(timed, key=lambda each: each[1].total)
        rows.append(_time_row(f"longest: {name}", longest))
    steps = sorted({rank.step for rank in ranks if rank.step})
    title = f"(a) end to end, step {' and '.join(steps)}" if steps else "(a) end to end"
    yield f"{title}\n{table(headers, rows)}\n\n{MAPPING}"


def _bubbles(ranks: Sequence[RankProfile]) -> Iterator[str]:
    rows = [
        (name, seconds(times.free), "unknown" if times.preparing is None else seconds(times.preparing))
        for name, times in _timed(ranks)
    ]
    if rows:
        yield f"(c) bubble\n{table(('rank', 'free', 'launch stall'), rows)}"


def _timed(ranks: Iterable[RankProfile]) -> list[tuple[str, StepTimes]]:
    return [(rank.name, rank.times) for rank in ranks if rank.times is not None]


def _time_row(name: str, times: StepTimes) -> tuple[str, ...]:
    return (
        name,
        seconds(times.computing),
        seconds(times.bubble),
        seconds(times.exposed),
        seconds(times.receive),
        seconds(times.total),
        percent(times.bubble_ratio),
        percent(times.overlap_ratio),
    )


def _classes(ranks: Iterable[RankProfile]) -> Iterator[str]:
    rows = []
    for rank in ranks:
        if rank.types:
            launches = sum(total.count for total in rank.types.values())
            host = "unknown" if rank.host_launches is None else count(rank.host_launches)
            rows.append((rank.name, *map(_counted, by_class(rank.types).values()), count(launches), host))
    if rows:
        yield f"(b) compute by kernel class\n{table(('rank', *CLASSES, 'kernels', 'host launches'), rows)}"


def _types(ranks: Iterable[RankProfile]) -> Iterator[str]:
    for rank in ranks:
        if not rank.types:
            continue
        longest = sorted(rank.types.items(), key=lambda item: -item[1].seconds)
        rows = [
            (kind, kernel_class(kind), count(total.count), seconds(total.seconds), seconds(total.mean))
            for kind, total in longest[:LISTED_TYPES]
        ]
        more = f"\nand {count(len(longest) - LISTED_TYPES, 'type')} more" if len(longest) > LISTED_TYPES else ""
        yield f"{rank.name}, kernels\n{table(('type', 'class', 'count', 'total', 'mean'), rows, '<<')}{more}"


def _counted(total: Total) -> str:
    return f"{seconds(total.seconds)} in {count(total.count)}" if total.count else "none"


def _collectives(ranks: Iterable[RankProfile]) -> Iterator[str]:
    for rank in ranks:
        if not rank.collectives:
            continue
        rows = [
            (
                kind,
                count(total.count),
                seconds(total.seconds),
                seconds(total.mean),
                seconds(total.wait) if isinstance(total, Collective) else "unknown",
            )
            for kind, total in sorted(rank.collectives.items(), key=lambda item: -item[1].seconds)
        ]
        headers = ("operator", "count", "total", "mean", "waiting in it")
        yield f"{rank.name}, communication\n{table(headers, rows)}"


def _rank_json(rank: RankProfile) -> dict[str, Any]:
    times = rank.times
    shown: dict[str, Any] = {"rank": rank.rank, "name": rank.name, "step": rank.step}
    if times is not None:
        shown |= {
            "compute": times.computing,
            "collective": times.exposed_without_receive,
            "exposed_transfer": times.receive,
            "hidden_transfer": times.overlapped,
            "launch_stall": times.preparing,
            "free": times.free,
            "bubble_ratio": times.bubble_ratio,
            "exposed_communication": times.exposed,
            "overlap_ratio": times.overlap_ratio,
            "total": times.total,
        }
    return shown | {
        "kernels": {name: _total_json(total) for name, total in by_class(rank.types).items()} if rank.types else None,
        "kernel_types": {name: _total_json(total) for name, total in rank.types.items()},
        "launches": sum(total.count for total in rank.types.values()) if rank.types else None,
        "host_launches": rank.host_launches,
        "communication": {name: _total_json(total) for name, total in rank.collectives.items()},
    }


def _total_json(total: Total) -> dict[str, Any]:
    shown = {"count": total.count, "seconds": total.seconds, "mean": total.mean}
    return shown | {"transit": total.transit, "wait": total.wait} if isinstance(total, Collective) else shown


def _instruction(schedule: Schedule, each: Difference) -> str:
    """The instruction as ``vppc show`` has it, with its index."""
    line = next(instruction_lines(schedule, schedule.programs[each.rank], each.index, each.index + 1))
    return " ".join(line.split())
