"""The report of a schedule or of a run: what it comes to, where its time goes, why, and what else there would be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from vppc.analysis.activity import Activity, Doing
from vppc.analysis.bubbles import CAUSES, PHASES, Bubble, bubbles, totals
from vppc.analysis.critical import CriticalPath, critical_path
from vppc.analysis.memory import MEMORY_COLUMNS, known_memory, memory_line, memory_row
from vppc.analysis.report import Report
from vppc.analysis.work import compute_parts
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, OpCosts
from vppc.explain import Outcome, Priced, Step, Trial
from vppc.profiles.measured import Measured
from vppc.render.explain import path_text, steps_table, trials_notes, trials_table, waits_text
from vppc.render.html_report import charts
from vppc.render.html_report.page import Page, Section, html_table, paragraph
from vppc.render.lanes import Run
from vppc.render.listing import headline
from vppc.render.palette import HUES
from vppc.render.profile import differences_table, pace
from vppc.render.report import EFFICIENCY
from vppc.render.slip import left_line, slip_line, slip_table, worst
from vppc.render.tables import count, percent, seconds

LISTED_HUES = 16
"""So many requests have their hue told."""
FAR_BEHIND = 1.02
"""A strategy whose makespan is so many times the best one's is far behind."""
LISTED_REQUESTS = 40
"""So many requests are listed one by one."""


@dataclass(frozen=True, slots=True)
class Studied:
    """What was tried around a schedule: it as it is, changes one by one, other strategies by chunk size, its passes."""

    before: Outcome
    free: Outcome
    trials: tuple[Trial, ...] = ()
    refused: tuple[str, ...] = ()
    sweep: tuple[Priced, ...] = ()
    steps: tuple[Step, ...] = ()


def run_page(
    title: str,
    runs: Sequence[Run],
    report: Report | None,
    cost: CostModel | None,
    measured: Measured | None,
    studied: Studied | None,
    provenance: Mapping[str, str],
) -> Page:
    """The page of a run, the last of ``runs``; others before it are drawn above it, on the same axis of time."""
    run = runs[-1]
    schedule = run.schedule
    activities = [Activity.of(each.schedule, each.timing) for each in runs]
    judged = [(each, activity, bubbles(activity)) for each, activity in zip(runs, activities, strict=True)]
    _, activity, pieces = judged[-1]
    path = critical_path(activity)
    causes, phases = charts.bubble_bars(pieces)
    drawn = {
        "timeline": charts.timelines(judged),
        "causes": charts.bars("bubbles by cause", causes),
        "phases": charts.bars("bubbles by phase", phases),
        "buffers": charts.held(run, activity, "buffers"),
        "kv": charts.held(run, activity, "KV tokens"),
    }
    if report is not None:
        drawn["work"] = charts.bars(
            "the makespan as each rank spends it",
            charts.work_bars(
                [f"rank {rank.rank}" for rank in report.ranks],
                [
                    (rank.compute, rank.collective, rank.exposed_transfer, rank.launch_stall, rank.free)
                    for rank in report.ranks
                ],
            ),
        )
    drawn["chunks"] = charts.chunks(run, _chunk_seconds(run, cost))
    if studied is not None and studied.sweep:
        drawn["sweep"] = charts.lines(
            "makespan by strategy and chunk size", "tokens a chunk", "seconds", _by_strategy(studied)
        )
    head, scripts, places = charts.embedded(drawn)
    sections = [
        Section(
            "Timeline",
            "<p>Scroll to zoom, drag to move, rest on anything for what it is and why a rank waits. "
            "Blocks: hue by request, light and dark by sweep over the ranks.</p>" + _hues(run) + places["timeline"],
        ),
        *_breakdown(report, cost, run, places),
        Section("Bubbles, and what ranks really wait for", _bubbles(activity, pieces, places)),
        Section("What is critical", _critical(activity, path, report, studied)),
        *_differences(measured),
        Section("Chunks and prompts", places["chunks"] + _requests(run, report)),
        *_study(studied, places),
        Section("Memory a rank", _pair(places["kv"], places["buffers"]) + _memory(run)),
    ]
    lines = list(headline(schedule))
    facts = _facts(activity, report)
    sources = {**({"costs": cost.name or "unnamed"} if cost is not None else {}), **provenance}
    page_sections = [*sections, *([_costs(cost)] if cost is not None else [])]
    return Page(title, ". ".join(lines) + ".", facts, page_sections, head, scripts, sources)


def _hues(run: Run) -> str:
    """Whose hue is which, where there are several requests; of many, the first."""
    requests = run.schedule.requests
    if len(requests) < 2:
        return ""
    swatch = '<span style="background:{};border-radius:3px;padding:0 .5em">&nbsp;</span> {}'
    told = [
        swatch.format(HUES[number % len(HUES)].dark, escape(request.id))
        for number, request in enumerate(requests[:LISTED_HUES])
    ]
    more = [f"and {count(len(requests) - LISTED_HUES, 'request')} more"] if len(requests) > LISTED_HUES else []
    return f"<p>{' &ensp; '.join(told + more)}</p>"


def _facts(activity: Activity, report: Report | None) -> dict[str, str]:
    schedule = activity.schedule
    total = activity.end - activity.start
    facts = {"makespan": seconds(total)}
    tokens = sum(chunk.tokens for chunk in schedule.chunks)
    rate = tokens / total if total else 0.0
    facts["tokens a second"] = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    if report is not None:
        bubble = [rank.bubble_ratio for rank in report.ranks]
        low, high = percent(min(bubble)), percent(max(bubble))
        facts["efficiency"] = percent(report.efficiency)
        facts["lower bound of any order"] = seconds(report.bound.seconds)
        facts["above the lower bound"] = percent(abs(report.gap))
        facts["bubble of a rank"] = low if low == high else f"{low} to {high}"
        known = [ttft for ttft in report.ttft if ttft is not None]
        if known:
            facts["first token, mean"] = seconds(sum(known) / len(known))
    return facts


def _breakdown(report: Report | None, cost: CostModel | None, run: Run, places: Mapping[str, str]) -> list[Section]:
    """The paper's Table 1, and the panels of its Table 2, for every rank."""
    if report is None or cost is None:
        return []
    total = report.makespan
    table_1 = html_table(
        ("rank", "computing", "bubble", "exposed comm.", "total", "bubble ratio", "hidden transfer"),
        (
            (
                str(rank.rank),
                seconds(rank.compute),
                seconds(rank.launch_stall + rank.free),
                seconds(rank.collective + rank.exposed_transfer),
                seconds(total),
                percent(rank.bubble_ratio),
                seconds(rank.hidden_transfer),
            )
            for rank in report.ranks
        ),
        ">",
    )
    detail = html_table(
        ("rank", "free", "launch stall", "collective", "exposed transfer"),
        (
            tuple(map(str, (rank.rank,)))
            + tuple(map(seconds, (rank.free, rank.launch_stall, rank.collective, rank.exposed_transfer)))
            for rank in report.ranks
        ),
        ">",
    )
    body = f"{places['work']}<h3>As Table 1 of the paper on virtual pipeline parallelism</h3>{table_1}"
    parts = compute_parts(run.schedule, cost)
    kinds = [part for part in parts[0] if any(each[part] for each in parts)] if parts else []
    rows = ((str(rank), *(seconds(each[part]) for part in kinds)) for rank, each in enumerate(parts))
    body += f"<h3>As its Table 2 (b), computation by terms of the costs</h3>{html_table(('rank', *kinds), rows, '>')}"
    body += f"<h3>As its Table 2 (c), bubbles and communication</h3>{detail}{paragraph(EFFICIENCY)}"
    return [Section("Where the time goes", body)]


def _bubbles(activity: Activity, pieces: Sequence[Sequence[Bubble]], places: Mapping[str, str]) -> str:
    headers = ("rank", "idle", *CAUSES, *(f"in {phase}" for phase in PHASES))
    rows = []
    for rank, each in enumerate(pieces):
        causes, phases = totals(each, "cause"), totals(each, "phase")
        idle = sum(causes.values())
        rows.append((str(rank), *map(seconds, (idle, *causes.values(), *phases.values()))))
    return (
        _pair(places["causes"], places["phases"])
        + html_table(headers, rows, ">")
        + paragraph(waits_text(activity, pieces))
    )


def _critical(activity: Activity, path: CriticalPath, report: Report | None, studied: Studied | None) -> str:
    text = paragraph(path_text(activity, path, report, None if studied is None else studied.free))
    stretches = [(rank, list(links)) for rank, links in groupby(path.links, key=lambda link: link.rank)]
    rows = [
        (
            seconds(links[0].start - activity.start),
            seconds(links[-1].end - activity.start),
            f"rank {rank}",
            seconds(sum(link.seconds for link in links if link.doing is Doing.RUN)),
            seconds(sum(link.seconds for link in links if link.doing is not Doing.RUN)),
        )
        for rank, links in stretches[:LISTED_REQUESTS]
    ]
    table = html_table(("from", "to", "on", "at work", "in transfers and waits"), rows, ">><")
    return f"{text}<details><summary>the path, stretch by stretch</summary>{table}</details>"


def _differences(measured: Measured | None) -> list[Section]:
    if measured is None:
        return []
    plan, fact = measured.plan.makespan, measured.report.makespan
    text = (
        f"Planned {seconds(plan)}, measured {seconds(fact)}; forwards {pace(measured)}. "
        f"Clocks agree to within {seconds(measured.journal.uncertainty)}."
    )
    table = differences_table(measured.journal.schedule, measured.differences, ("planned", "measured"))
    schedule, listed, slipped = measured.journal.schedule, len(measured.differences), measured.slip
    names = "the plan", "the run"
    body = paragraph(f"{text}\n{slip_line(slipped, names)}.")
    if worst(slipped, listed):
        body += html_table(*slip_table(schedule, slipped, names, listed)) + paragraph(left_line(slipped, listed))
    return [Section("Plan and fact", f"{body}<h3>Instructions that took another time</h3>{html_table(*table)}")]


def _requests(run: Run, report: Report | None) -> str:
    requests = run.schedule.requests
    ttft = report.ttft if report is not None else [None] * len(requests)
    rows = [
        (
            request.id,
            count(request.prompt_tokens),
            count(request.cached_tokens),
            seconds(request.arrival),
            "" if token is None else seconds(token),
        )
        for request, token in list(zip(requests, ttft, strict=True))[:LISTED_REQUESTS]
    ]
    more = len(requests) - len(rows)
    listed = html_table(("request", "prompt", "cached", "arrival", "first token after"), rows)
    return listed + (paragraph(f"and {count(more, 'request')} more") if more else "")


def _study(studied: Studied | None, places: Mapping[str, str]) -> list[Section]:
    if studied is None:
        return []
    sections = []
    if studied.trials or studied.refused:
        found = trials_table(studied.before, studied.trials)
        changes = "" if found is None else html_table(*found)
        said = [] if found is not None else ["nothing of what was tried would help"]
        notes = "\n".join([*said, *trials_notes(studied.before, studied.trials, studied.refused)])
        body = places.get("sweep", "") + _far_behind(studied) + changes + paragraph(notes)
        sections.append(Section("What would help", body))
    if studied.steps:
        sections.append(Section("What each pass did", html_table(*steps_table(studied.steps))))
    return sections


def _far_behind(studied: Studied) -> str:
    """Why ``vpp-async`` is far behind where prompts queue, if it is: it looks like a mistake."""
    best = {name: min(seconds for _, seconds in points) for name, points in _by_strategy(studied).items()}
    mine = best.get("vpp-async")
    if mine is None or mine <= FAR_BEHIND * min(best.values()):
        return ""
    return paragraph(
        "vpp-async runs one prompt at a time, so that it drains the pipeline between two; vpp-packed starts the next "
        "prompt in the gaps of the one before."
    )


def _by_strategy(studied: Studied) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for each in studied.sweep:
        if each.outcome is not None:
            found.setdefault(each.strategy, []).append((each.chunk_size, each.outcome.makespan))
    return found


def _memory(run: Run) -> str:
    """What the compiler wrote of each rank's memory; nothing where the device was not known."""
    known = known_memory(run.schedule)
    if not known:
        return paragraph("Bytes are not known: the schedule was compiled without a model and a device.")
    shown = html_table(MEMORY_COLUMNS, map(memory_row, known), ">")
    return f"{shown}{paragraph(f'GiB on each device of a rank: {memory_line(known)}.')}"


def _chunk_seconds(run: Run, cost: CostModel | None) -> list[float]:
    schedule = run.schedule
    if cost is None:
        return [0.0] * len(schedule.chunks)
    stages, priced = len(schedule.stages), OpCosts.of(schedule, cost).seconds
    return [sum(priced[first : first + stages]) for first in range(0, len(priced), stages)]


def _costs(cost: CostModel) -> Section:
    shown = escape(json.dumps(cost_json(cost), indent=1))
    return Section("Costs", f"<details><summary>the cost file</summary><pre>{shown}</pre></details>")


def _pair(left: str, right: str) -> str:
    return f'<div class="pair"><div>{left}</div><div>{right}</div></div>'
