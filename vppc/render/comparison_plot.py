"""A comparison of strategies as a picture, after the VPP paper's figures 1(a), 4, 6(a) and 8.

For every cost, from top to bottom: the throughput of each strategy at its best chunk size, as a part of the first
one's; where the time of its critical rank (the one with the most work) goes; the mean time to first token, of several
prompts; and the throughput by chunk size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from vppc.analysis.report import Report
from vppc.compare import Outcome, Row, gain
from vppc.render.chart import Bar, Frame, Part, Point, Series, legend
from vppc.render.page import picture
from vppc.render.palette import chart_stylesheet
from vppc.render.svg import text
from vppc.render.tables import count, percent, seconds, signed_percent

WIDTH = 1100
LEFT, RIGHT, TOP = 52.0, 16.0, 14.0
BARS, LINES = 170.0, 150.0
"""Heights of charts."""
ACROSS = 4
"""Charts of lines side by side."""

_HUES = {"cpp": 0, "dcpp": 1, "dcpp-sglang": 1, "vpp": 2, "vpp-async": 2, "vpp-packed": 2}
"""A family of strategies has a hue: fixed chunks, dynamic chunks, folded."""

Bars = Callable[[Outcome, Outcome, Series], Bar]
"""The bar of an outcome that was not refused, in units of the first of those beside it."""


def comparison_plot(rows: Sequence[Row], theme: str = "auto") -> str:
    """The picture as the text of an SVG file."""
    body: list[str] = []
    y = TOP
    for _, group in groupby(rows, key=lambda row: row.case.cost):
        mine = list(group)
        drawn, y = _of_one_cost(mine, series_of({row.case.contestant: row.case.options.strategy for row in mine}), y)
        body += drawn
    return picture("vppc compare", body, WIDTH, y, chart_stylesheet(theme))


def _of_one_cost(rows: list[Row], series: dict[str, Series], y: float) -> tuple[list[str], float]:
    case = rows[0].case
    name = f"{case.cost.name or 'unnamed costs'}, {count(case.options.pp, 'rank')}"
    body = [text(name, LEFT, y + 12, class_="ink b", font_size=14)]
    patterns = (("exposed communication", "exposed"), ("bubble", "bubble"))
    keys, y = legend(series.values(), patterns, LEFT, WIDTH - RIGHT, y + 24)
    body += keys
    charts: list[tuple[str, Bars]] = [
        ("throughput, each at its best chunk size (below), in units of the first bar's; above: the gain", _throughput),
        (
            "where the makespan goes on the rank with the most work, in units of the first bar's; above: the bubble",
            _breakdown,
        ),
    ]
    if any(len(row.case.queue.requests) > 1 for row in rows):
        charts.append(("mean time to first token, in units of the first bar's", _first_token))
    for heading, bar in charts:
        groups = [(queue, _bars(group, series, bar)) for queue, group in _by_queue(rows)]
        high = 1.12 * max((bar.value for _, bars in groups for bar in bars), default=0.0) or 1.0
        frame = Frame(LEFT, y + 30, WIDTH - LEFT - RIGHT, BARS, 0.0, high)
        body += [*frame.axis(heading), *frame.groups(groups)]
        y += 30 + BARS + 36
    if len(rows[0].outcomes) > 1:
        drawn, y = _by_chunk_size(rows, series, y)
        body += drawn
    return body, y + 14


def _bars(rows: list[Row], series: dict[str, Series], bar: Bars) -> list[Bar]:
    done = [row for row in rows if row.best.report is not None]
    return [bar(row.best, done[0].best, series[row.case.contestant]) for row in done]


def _throughput(best: Outcome, base: Outcome, series: Series) -> Bar:
    over = gain(best, base) or 0.0
    words = f"{_words(best)}\n{best.throughput:,.4g} tokens a second, efficiency {percent(_report(best).efficiency)}"
    above = signed_percent(over) if best is not base else ""
    return Bar(series, (Part(1.0 + over, "", words),), above, size_label(best.case.options.chunk_size))


def _breakdown(best: Outcome, base: Outcome, series: Series) -> Bar:
    rank = max(_report(best).ranks, key=lambda each: each.compute + each.collective)
    unit = base.makespan or 1.0
    parts = (
        ("compute", rank.compute, ""),
        ("exposed communication", rank.collective + rank.exposed_transfer, "exposed"),
        ("bubble", rank.launch_stall + rank.free, "bubble"),
    )
    words = f"{_words(best)}\nrank {rank.rank}, "
    drawn = (Part(value / unit, pattern, f"{words}{name}: {seconds(value)}") for name, value, pattern in parts if value)
    return Bar(series, tuple(drawn), percent(rank.bubble_ratio))


def _first_token(best: Outcome, base: Outcome, series: Series) -> Bar:
    mine, unit = (fmean(each for each in _report(one).ttft if each is not None) for one in (best, base))
    part = mine / unit if unit else 1.0
    words = f"{_words(best)}\nmean time to first token {seconds(mine)}"
    return Bar(series, (Part(part, "", words),), "" if best is base else signed_percent(part - 1))


def _report(outcome: Outcome) -> Report:
    """The price of an outcome that was not refused."""
    if outcome.report is None:
        raise ValueError(outcome.refusal)
    return outcome.report


def _by_chunk_size(rows: list[Row], series: dict[str, Series], y: float) -> tuple[list[str], float]:
    """Charts side by side, one a queue, all on one scale: throughput as a part of the first contestant's best."""
    charts = []
    for queue, group in _by_queue(rows):
        base = next((row.best for row in group if row.best.report is not None), group[0].best)
        charts.append((queue, [(row, _points(row, base)) for row in group]))
    values = [point.value for _, lines in charts for _, points in lines for point in points] or [1.0]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05
    names = [size_label(outcome.case.options.chunk_size) for outcome in rows[0].outcomes]
    across = min(ACROSS, len(charts))
    room = (WIDTH - LEFT - RIGHT + 30) / across
    heading = "throughput by chunk size, in units of the first one's best; ringed: the best of each"
    body = [text(heading, LEFT, y + 16, class_="ink", font_size=11)]
    for index, (queue, lines) in enumerate(charts):
        column = index % across
        if column == 0 and index:
            y += 46 + LINES
        frame = Frame(LEFT + column * room, y + 46, room - 44, LINES, low - margin, high + margin)
        body += [*frame.axis(queue), *frame.places(names)]
        for row, points in lines:
            body += frame.line(series[row.case.contestant], points, len(names))
    y += 46 + LINES + 24
    for note in _hidden(charts):
        body.append(text(note, LEFT, y + 12, class_="ink", font_size=11))
        y += 16
    return body, y


def _hidden(charts: list[tuple[str, list[tuple[Row, list[Point]]]]]) -> Iterator[str]:
    """Of lines that lie on one another, whose they are: only the last one is to be seen."""
    for queue, lines in charts:
        alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
        for row, points in lines:
            alike.setdefault(tuple((point.place, point.value) for point in points), []).append(row.case.contestant)
        for names in alike.values():
            if len(names) > 1:
                yield f"at {queue} one line: {', '.join(names)}"


def _points(row: Row, base: Outcome) -> list[Point]:
    found = []
    for place, outcome in enumerate(row.outcomes):
        over = gain(outcome, base)
        if over is not None:
            found.append(Point(place, 1.0 + over, _words(outcome), outcome is row.best))
    return found


def _words(outcome: Outcome) -> str:
    case = outcome.case
    chunks = f"{count(outcome.chunks, 'chunk')} of up to {count(case.options.chunk_size)}"
    return f"{case.contestant}, {case.queue.name} tokens in {chunks}: {seconds(outcome.makespan)}"


def _by_queue(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    for queue, group in groupby(rows, key=lambda row: row.case.queue):
        yield queue.name, list(group)


def series_of(strategies: Mapping[str, str]) -> dict[str, Series]:
    """Contestants with their strategies, in order: the look of each."""
    variants = Counter(_HUES[strategy] for strategy in strategies.values())
    seen: Counter[int] = Counter()
    found = {}
    for contestant, strategy in strategies.items():
        hue = _HUES[strategy]
        found[contestant] = Series(contestant, hue, seen[hue], variants[hue])
        seen[hue] += 1
    return found


def size_label(tokens: int) -> str:
    """A chunk size, in K where it is whole."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else count(tokens)
