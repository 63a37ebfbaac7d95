"""What serving came to, as a picture, after the VPP paper's figures 3 and 5.

From top to bottom: the throughput of each contestant on every workload, as a part of the first one's; its mean time to
first token; where the time of its critical rank (the one with the most work) goes; and, of a workload at several
concurrencies or rates, the throughput by queue depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from vppc.render.chart import Bar, Frame, Part, Point, Series, legend
from vppc.render.comparison_plot import BARS, LEFT, LINES, RIGHT, TOP, WIDTH, series_of, size_label
from vppc.render.page import picture
from vppc.render.palette import chart_stylesheet
from vppc.render.serving import depths, pace, rate
from vppc.render.svg import text
from vppc.render.tables import count, percent, seconds, signed_percent
from vppc.serving.contest import Entry, Served
from vppc.serving.metrics import ServingReport
from vppc.serving.workloads import Workload

Bars = Callable[[Served, ServingReport, ServingReport, Series], Bar]
"""The bar of what came to a report, in units of the first report of its workload."""


def serving_plot(entries: Sequence[Entry], theme: str = "auto") -> str:
    """The picture as the text of an SVG file."""
    settings = {entry.contestant: entry.tried[0].trial.setting for entry in entries}
    series = series_of({name: setting.options.strategy for name, setting in settings.items()})
    setting = entries[0].tried[0].trial.setting
    name = f"{setting.cost.name or 'unnamed costs'}, {count(setting.options.pp, 'rank')}"
    body = [text(name, LEFT, TOP + 12, class_="ink b", font_size=14)]
    patterns = (("exposed communication", "exposed"), ("bubble", "bubble"))
    keys, y = legend(series.values(), patterns, LEFT, WIDTH - RIGHT, TOP + 24)
    body += keys
    levels = [list(group) for _, group in groupby(entries, key=lambda entry: entry.workload)]
    charts: tuple[tuple[str, Bars], ...] = (
        ("throughput, each at its best chunk size (below), in units of the first bar's; above: the gain", _throughput),
        ("mean time to first token, in units of the first bar's", _first_token),
        ("where the time goes on the rank with the most work, in units of the first bar's; above: the bubble", _use),
    )
    for heading, bar in charts:
        groups = [(_name(level, levels), _bars(level, series, bar)) for level in levels]
        high = 1.12 * max((bar.value for _, bars in groups for bar in bars), default=0.0) or 1.0
        frame = Frame(LEFT, y + 30, WIDTH - LEFT - RIGHT, BARS, 0.0, high)
        body += [*frame.axis(heading), *frame.groups(groups)]
        y += 30 + BARS + 36
    for workload, same in depths(entries):
        drawn, y = _by_depth(workload, same, series, y)
        body += drawn
    return picture("vppc serve-sim", body, WIDTH, y + 14, chart_stylesheet(theme))


def _name(level: list[Entry], levels: list[list[Entry]]) -> str:
    """What to call a workload below its bars: with its pace, if it is there at several."""
    workload = level[0].workload
    alike = sum(other[0].workload.name == workload.name for other in levels)
    return f"{workload.name}, {pace(workload)}" if alike > 1 else workload.name


def _bars(level: list[Entry], series: dict[str, Series], bar: Bars) -> list[Bar]:
    done = [(entry, entry.best.report) for entry in level if entry.best.report is not None]
    return [bar(entry.best, report, done[0][1], series[entry.contestant]) for entry, report in done]


def _throughput(served: Served, report: ServingReport, base: ServingReport, series: Series) -> Bar:
    over = report.throughput / base.throughput - 1 if base.throughput else 0.0
    words = f"{_words(served, report)}\n{rate(report.throughput)} tokens a second"
    above = signed_percent(over) if report is not base else ""
    return Bar(series, (Part(1.0 + over, "", words),), above, size_label(served.chunk_size))


def _first_token(served: Served, report: ServingReport, base: ServingReport, series: Series) -> Bar:
    part = report.ttft.mean / base.ttft.mean if base.ttft.mean else 1.0
    ttft = report.ttft
    words = (
        f"{_words(served, report)}\ntime to first token: mean {seconds(ttft.mean)}, P50 {seconds(ttft.p50)}, "
        f"P90 {seconds(ttft.p90)}, P99 {seconds(ttft.p99)}\nqueueing: mean {seconds(report.queueing.mean)}"
    )
    return Bar(series, (Part(part, "", words),), "" if report is base else signed_percent(part - 1))


def _use(served: Served, report: ServingReport, base: ServingReport, series: Series) -> Bar:
    use = max(report.ranks, key=lambda each: each.compute + each.collective)
    unit = base.makespan or 1.0
    bubble = ", ".join(f"{cause} {seconds(getattr(use, cause))}" for cause in ("imbalance", "held", "starved", "empty"))
    parts = (
        ("compute", use.compute, ""),
        ("exposed communication", use.collective + use.transfer, "exposed"),
        (f"bubble ({bubble})", use.bubble, "bubble"),
    )
    words = f"{_words(served, report)}\nrank {use.rank}, "
    drawn = (Part(value / unit, pattern, f"{words}{name}: {seconds(value)}") for name, value, pattern in parts if value)
    return Bar(series, tuple(drawn), percent(report.bubble_ratio(use)))


def _by_depth(name: str, levels: list[list[Entry]], series: dict[str, Series], y: float) -> tuple[list[str], float]:
    """Lines over the paces of a workload: what counts, in units of the first contestant's at the same pace."""
    lines: dict[str, list[Point]] = {entry.contestant: [] for entry in levels[0]}
    for place, level in enumerate(levels):
        for entry in level:
            part, report = entry.gain_over(level[0]), entry.best.report
            if part is not None and report is not None:
                words = f"{_words(entry.best, report)}\n{report.depth:.1f} requests in the system"
                lines[entry.contestant].append(Point(place, 1.0 + part, words))
    values = [point.value for points in lines.values() for point in points] or [1.0]
    margin = 0.08 * (max(values) - min(values)) or 0.05
    frame = Frame(LEFT, y + 30, WIDTH - LEFT - RIGHT, LINES, min(values) - margin, max(values) + margin)
    names = [pace(level[0].workload) for level in levels]
    what = "throughput" if levels[0][0].workload.rate is None else "mean time to first token"
    body = [*frame.axis(f"{name}: {what} by queue depth, in units of the first's"), *frame.places(names)]
    for contestant, points in lines.items():
        body += frame.line(series[contestant], points, len(names))
    return body, y + 30 + LINES + 30


def _words(served: Served, report: ServingReport) -> str:
    trial = served.trial
    return (
        f"{trial.contestant}, {_title(trial.workload)}: {count(report.requests, 'request')} in "
        f"{count(report.chunks, 'chunk')} of up to {count(served.chunk_size)}, {seconds(report.makespan)}"
    )


def _title(workload: Workload) -> str:
    return f"{workload.name}, {pace(workload)}"
