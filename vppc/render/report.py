"""A priced or measured schedule as text: the summary and tables of ``vppc simulate`` and ``vppc profile``."""

from __future__ import annotations

from math import ceil

from vppc.analysis.memory import known_memory, memory_line
from vppc.analysis.report import Report
from vppc.ir.schedule import Schedule
from vppc.render.tables import count, percent, printable, seconds, table

LISTED_REQUESTS = 8
"""So many requests are listed one by one; of more, the distribution of their first tokens is shown."""

EFFICIENCY = "efficiency: the ideal, the prompts' work without what chunks cost, shared evenly, over the makespan"
"""What tables with an efficiency say below it."""
_LEGEND = "bubble: launch stall (until the first input) and free; transfers: exposed is waited for, hidden is not"


def report_text(schedule: Schedule, report: Report) -> str:
    """Makespan, bound, first tokens, where each rank's time goes, and the memory where it is known; ends without a
    newline."""
    parts = (_summary(schedule, report), _first_tokens(schedule, report), _ranks(report))
    known = known_memory(schedule)
    return "\n\n".join((*parts, memory_line(known)) if known else parts)


def _summary(schedule: Schedule, report: Report) -> str:
    bound = report.bound
    what = (
        printable(schedule.strategy),
        f"{count(schedule.pp, 'rank')} x {count(schedule.vp, 'stage')}",
        count(len(schedule.requests), "request"),
        count(len(schedule.chunks), "chunk"),
        count(sum(map(len, schedule.programs)), "instruction"),
    )
    lines = (
        ("makespan", seconds(report.makespan)),
        ("efficiency", f"{percent(report.efficiency)} of the ideal {seconds(report.ideal)}"),
        ("lower bound", f"{seconds(bound.seconds)}, and this takes {percent(abs(report.gap))} longer"),
        (
            "bound by",
            f"{bound.resource}: {seconds(bound.head)} before + {seconds(bound.work)} of work there"
            f" + {seconds(bound.tail)} after",
        ),
    )
    return "\n".join((", ".join(what), *(f"{name:12} {value}" for name, value in lines)))


def _first_tokens(schedule: Schedule, report: Report) -> str:
    requests = list(zip(schedule.requests, report.ttft, strict=True))
    if len(requests) <= LISTED_REQUESTS:
        return table(
            ("request", "prompt", "cached", "arrival", "TTFT"),
            [
                (r.id, count(r.prompt_tokens), count(r.cached_tokens), seconds(r.arrival), _moment(ttft))
                for r, ttft in requests
            ],
        )
    return ttft_table(report)


def ttft_table(report: Report) -> str:
    """How the first tokens of many requests are spread: mean, percentiles by nearest rank, and the longest."""
    times = sorted(ttft for ttft in report.ttft if ttft is not None)
    if not times:
        return f"TTFT: none of {count(len(report.ttft), 'request')} is sampled"
    shares = {"P50": 0.5, "P90": 0.9, "P99": 0.99, "longest": 1.0}
    return table(
        ("TTFT of", "mean", *shares),
        [
            (
                count(len(times), "request"),
                seconds(sum(times) / len(times)),
                *(seconds(times[ceil(share * len(times)) - 1]) for share in shares.values()),
            )
        ],
    )


def _moment(ttft: float | None) -> str:
    return "not sampled" if ttft is None else seconds(ttft)


def _ranks(report: Report) -> str:
    columns = ("compute", "collective", "exposed transfer", "launch stall", "free", "bubble", "hidden transfer")
    lines = table(
        ("rank", *columns),
        [
            (
                str(rank.rank),
                seconds(rank.compute),
                seconds(rank.collective),
                seconds(rank.exposed_transfer),
                seconds(rank.launch_stall),
                seconds(rank.free),
                percent(rank.bubble_ratio),
                seconds(rank.hidden_transfer),
            )
            for rank in report.ranks
        ],
        align=">",
    )
    return f"{lines}\n{_LEGEND}\n{EFFICIENCY}"
