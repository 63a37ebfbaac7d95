"""Charts for reports, by Bokeh: they need no network, and hold thousands of operations on one canvas.

Only this module imports Bokeh, and only a report imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from bokeh.embed import components
from bokeh.layouts import column
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    HoverTool,
    Legend,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
    RangeTool,
    WheelZoomTool,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from vppc.analysis.activity import Activity, Doing
from vppc.analysis.bubbles import CAUSES, PHASES, Bubble, totals
from vppc.ir.instruction import FORWARD
from vppc.render.counters import buffers_in_use, kv_tokens
from vppc.render.explain import because
from vppc.render.html_report import scheme
from vppc.render.html_report.scheme import LINES, REPAINTED, SCRIPT, WORK
from vppc.render.lanes import Run, hops
from vppc.render.palette import HUES, LIGHT
from vppc.render.tables import count, seconds

Chart: TypeAlias = Any
"""A model of Bokeh, which has no types that could be checked."""

CAUSE_COLORS = dict(zip(CAUSES, scheme.CAUSES, strict=True))
PHASE_COLORS = dict(zip(PHASES, ("#56b4e9", "#bdbdbd", "#e69f00"), strict=True))
DASHES = ("solid", "dashed", "dotted", "dotdash")
MOST_LINES = 16
"""So many ranks have lines of their own in a chart."""
MOST_HATCHED = 500
"""So many bubbles are hatched: patterns take a browser longer than all the rest."""
LANE = 0.36
"""Half the height of a block or a bubble, in lanes."""
EDGELESS = 5
"""Blocks that are narrower, in pixels, have no edges."""
FAINT, PLAIN = 0.04, 0.5
"""How opaque the lines of transfers are: where they would be all that is seen, and where there is room for them."""

_FIT = """
clearTimeout(labels.tags[0])
labels.tags[0] = setTimeout(() => {
  const d = blocks.data, scale = plot.inner_width / (range.end - range.start)
  const shown = {middle: [], rank: [], ink: [], text: []}
  let inside = 0
  for (let i = 0; i < d.full.length; i++) {
    const left = Math.max(d.left[i], range.start), right = Math.min(d.right[i], range.end)
    if (left < right) inside++
    const room = (right - left) * scale
    const text = room > 7 * d.full[i].length + 8 ? d.full[i] : room > 7 * d.short[i].length + 8 ? d.short[i] : null
    if (text === null) continue
    shown.middle.push((left + right) / 2)
    shown.rank.push(d.rank[i])
    shown.ink.push(d.ink[i])
    shown.text.push(text)
  }
  labels.data = shown
  edged.glyph.line_alpha = {value: plot.inner_width * ranks / (inside || 1) < edgeless ? 0 : 1}

  const {left, right} = moved.data_source.data
  const crossing = left.filter((start, i) => start <= range.end && right[i] >= range.start).length
  const room = plot.inner_width * (ranks - 1) / (crossing || 1)
  moved.glyph.line_alpha = {value: Math.min(plain, Math.max(faint, plain * room / 24))}
}, 100)
"""
"""Shows the labels of the blocks in view that have room for them, and lines of transfers as plainly as they have room,
once the view rests. Edges of blocks that are thin would be all that is seen of them: these have none."""


class Bars(NamedTuple):
    """Horizontal bars, stacked: seconds by part for each name, and the parts' colours."""

    names: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    colors: Mapping[str, str]


def embedded(charts: Mapping[str, Chart]) -> tuple[str, str, dict[str, str]]:
    """The scripts for a page's head and for the end of its body, and a place for each chart, by its name."""
    script, places = components(dict(charts))
    painting = f"<script>{{{SCRIPT}}}</script>"
    return Resources(mode="inline", components=["bokeh"]).render(), f"{script}\n{painting}", dict(places)


def timelines(runs: Sequence[tuple[Run, Activity, Sequence[Sequence[Bubble]]]]) -> Chart:
    """Runs one below the other on one axis of time, to be zoomed together; below, where in the run the view is."""
    total = max(activity.end - activity.start for _, activity, _ in runs)
    shown = Range1d(0.0, total or 1.0, bounds=(0.0, total or 1.0))
    sources = [ColumnDataSource(_block_columns(run, activity)) for run, activity, _ in runs]
    plots = [_timeline(*each, source, shown) for each, source in zip(runs, sources, strict=True)]
    overview = figure(height=80, y_range=plots[0].y_range, x_range=(0.0, total or 1.0), tools="", toolbar_location=None)
    overview.xaxis.axis_label = "drag the window, or its edges; seconds"
    overview.background_fill_color = overview.border_fill_color = None
    overview.yaxis.visible = False
    overview.grid.visible = False
    overview.quad("left", "right", "bottom", "top", color="color", source=sources[0])
    tool = RangeTool(x_range=shown)
    tool.overlay.fill_alpha = 0.15
    overview.add_tools(tool)
    overview.sizing_mode = "stretch_width"
    return column([*plots, overview], sizing_mode="stretch_width")


def _timeline(run: Run, activity: Activity, bubbles: Sequence[Sequence[Bubble]], blocks: Chart, shown: Chart) -> Any:
    ranks = len(activity.spans)
    plot = _plot(run.name, height=min(150 + 60 * ranks, max(800, 150 + 14 * ranks)), x_range=shown)
    plot.name = "timeline"
    plot.y_range = Range1d(ranks - 0.5, -0.5)
    plot.yaxis.ticker = list(range(ranks))
    plot.yaxis.major_label_overrides = {rank: f"rank {rank}" for rank in range(ranks)}
    plot.ygrid.visible = False
    plot.xaxis.axis_label = "seconds"
    wheel = WheelZoomTool(dimensions="width")
    plot.add_tools(wheel)
    plot.toolbar.active_scroll = wheel

    bubble = ColumnDataSource(_bubble_columns(activity, bubbles))
    hatch = {"hatch_pattern": "right_diagonal_line", "hatch_color": "color", "hatch_alpha": 0.55, "hatch_scale": 8}
    hatched = plot.quad(
        "left",
        "right",
        "bottom",
        "top",
        source=bubble,
        fill_color="color",
        fill_alpha=0.22 if len(bubble.data["left"]) <= MOST_HATCHED else 0.5,
        line_color=None,
        **(hatch if len(bubble.data["left"]) <= MOST_HATCHED else {}),
    )
    waits = ColumnDataSource(_exposed_columns(activity))
    dots = {"hatch_pattern": "dot", "hatch_color": LIGHT.exposed, "hatch_scale": 6}
    exposed = plot.quad(
        "left",
        "right",
        "bottom",
        "top",
        source=waits,
        fill_color=LIGHT.exposed,
        fill_alpha=0.25,
        line_color=None,
        **(dots if len(waits.data["left"]) <= MOST_HATCHED else {}),
    )
    drawn = plot.quad(
        "left",
        "right",
        "bottom",
        "top",
        source=blocks,
        fill_color="color",
        line_color="white",
        line_width=0.5,
        hover_line_color=LIGHT.ink,
    )
    line = {"line_color": LIGHT.ink, "line_width": 1.2}
    hop_source = ColumnDataSource(_hop_columns(run, activity))
    moved = plot.segment("left", "bottom", "right", "top", source=hop_source, line_alpha=FAINT, **line)
    labels = ColumnDataSource({key: [] for key in ("middle", "rank", "ink", "text")}, tags=[0])
    plot.text(
        "middle",
        "rank",
        "text",
        source=labels,
        text_color="ink",
        text_align="center",
        text_baseline="middle",
        text_font_size="11px",
    )
    seen = {"labels": labels, "blocks": blocks, "edged": drawn, "moved": moved, "plot": plot, "range": shown}
    fit = CustomJS(args={**seen, "ranks": ranks, "faint": FAINT, "plain": PLAIN, "edgeless": EDGELESS}, code=_FIT)
    shown.js_on_change("start", fit)
    shown.js_on_change("end", fit)
    plot.js_on_change("inner_width", fit)
    plot.add_tools(
        _hover([drawn], ["@full on rank @rank, layers @layers", "@work{safe}", "@when"]),
        _hover([hatched], ["rank @rank @why", "@cause, in @phase", "@when"]),
        _hover([exposed], ["rank @rank: exposed transfer", "@why", "@when"]),
        _hover([moved], ["@what", "@when"]),
    )
    causes = [cause for cause in CAUSES if cause in bubble.data["cause"]]
    swatches = [
        (
            cause,
            [
                plot.quad(
                    [0],
                    [0],
                    [0],
                    [0],
                    fill_color=CAUSE_COLORS[cause],
                    fill_alpha=0.5,
                    line_color=None,
                    hatch_pattern="right_diagonal_line",
                    hatch_color=CAUSE_COLORS[cause],
                )
            ],
        )
        for cause in causes
    ]
    others = [("exposed transfer", [exposed])] if waits.data["left"] else []
    if hop_source.data["left"]:
        others.append(("transfer", [moved, plot.segment([0], [0], [0], [0], line_alpha=PLAIN, **line)]))
    legend = Legend(items=[*swatches, *others], orientation="horizontal")
    legend.click_policy = "hide"
    legend.location = "left"
    legend.border_line_color = None
    plot.add_layout(legend, "below")
    return plot


def bars(title: str, each: Bars) -> Chart:
    """Stacked horizontal bars, in seconds."""
    names = list(each.names)
    some = {part: list(values) for part, values in each.parts.items() if any(values)}
    parts = some or {part: list(values) for part, values in list(each.parts.items())[:1]}
    plot = _plot(title, height=130 + 30 * len(names), y_range=list(reversed(names)), toolbar_location=None)
    plot.xaxis.axis_label = "seconds"
    plot.x_range.start = 0
    source = ColumnDataSource({"names": names, **parts})
    colors = [each.colors[part] for part in parts]
    drawn = plot.hbar_stack(list(parts), y="names", height=0.7, color=colors, source=source, legend_label=list(parts))
    for renderer, part in zip(drawn, parts, strict=True):
        plot.add_tools(_hover([renderer], [f"@names: {part}", f"@{{{part}}}{{0.000}} s"]))
    plot.add_layout(plot.legend[0], "below")
    plot.legend.orientation = "horizontal"
    plot.legend.location = "left"
    plot.legend.border_line_color = None
    return plot


def work_bars(names: Sequence[str], ranks: Sequence[Sequence[float]]) -> Bars:
    """Each one's makespan, as the seconds of compute, collective, exposed transfer, launch stall, and free time."""
    return Bars(names, dict(zip(WORK, zip(*ranks, strict=True), strict=True)), WORK)


def lines(
    title: str, x: str, y: str, each: Mapping[str, Sequence[tuple[float, float]]], *, step: bool = False
) -> Chart:
    """Lines through points, or steps from point to point, one a name."""
    plot = _plot(title, height=300)
    plot.xaxis.axis_label, plot.yaxis.axis_label = x, y
    plot.xaxis.formatter = plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    for number, (name, points) in enumerate(list(each.items())[:MOST_LINES]):
        columns = ColumnDataSource({"x": [x for x, _ in points], "y": [y for _, y in points]})
        style = {"color": LINES[number % len(LINES)], "line_dash": DASHES[number // len(LINES) % len(DASHES)]}
        if step:
            drawn = plot.step("x", "y", source=columns, mode="after", line_width=2, legend_label=name, **style)
        else:
            drawn = plot.line("x", "y", source=columns, line_width=2, legend_label=name, **style)
            plot.scatter("x", "y", source=columns, size=7, color=style["color"], legend_label=name)
        plot.add_tools(_hover([drawn], [escape(name), f"@x{{0,0.[000]}} {x}: @y{{0,0.[000]}} {y}"]))
    if step:
        plot.y_range.start = 0
    plot.legend.click_policy = "hide"
    plot.add_layout(plot.legend[0], "right")
    return plot


def chunks(run: Run, costs: Sequence[float]) -> Chart:
    """The chunks' sizes by request; ``costs`` are the seconds that each takes on all stages together."""
    schedule = run.schedule
    hues = [chunk.parts[0].request for chunk in schedule.chunks]
    works = [_work(run, index) for index in range(len(schedule.chunks))]
    took = [f"{seconds(each)} on all stages" for each in costs]
    return sizes(
        [chunk.tokens for chunk in schedule.chunks], hues, list(map("<br>".join, zip(works, took, strict=True)))
    )


def sizes(tokens: Sequence[int], hues: Sequence[int], notes: Sequence[str]) -> Chart:
    """The sizes of chunks, in the hues of requests, with notes in HTML to each."""
    plot = _plot("chunk sizes", height=260)
    plot.xaxis.axis_label, plot.yaxis.axis_label = "chunk", "tokens"
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.xaxis.formatter = NumeralTickFormatter(format="0")
    columns = {
        "chunk": list(range(len(tokens))),
        "tokens": list(tokens),
        "color": [HUES[hue % len(HUES)].dark for hue in hues],
        "note": list(notes),
    }
    plot.xaxis.ticker.min_interval = 1
    plot.xaxis.minor_tick_line_color = None
    source = ColumnDataSource(columns, tags=[REPAINTED])
    drawn = plot.vbar("chunk", top="tokens", width=0.8, color="color", source=source)
    plot.y_range.start = 0
    plot.add_tools(_hover([drawn], ["C@chunk", "@note{safe}"]))
    return plot


def held(run: Run, activity: Activity, what: str) -> Chart:
    """What each rank holds in the course of a run: ``buffers`` or ``KV tokens``."""
    changes = buffers_in_use if what == "buffers" else kv_tokens
    ranks = range(min(MOST_LINES, len(activity.spans)))
    each = {
        f"rank {rank}": list(_sums(changes(run, rank), activity.start, activity.end - activity.start)) for rank in ranks
    }
    return lines(f"{what} held", "seconds", what, each, step=True)


def bubble_bars(bubbles: Sequence[Sequence[Bubble]]) -> tuple[Bars, Bars]:
    """The ranks' bubbles by cause, and by phase."""
    names = [f"rank {rank}" for rank in range(len(bubbles))]
    made = []
    for by, colors in (("cause", CAUSE_COLORS), ("phase", PHASE_COLORS)):
        sums = [totals(pieces, by) for pieces in bubbles]
        made.append(Bars(names, {part: [each[part] for each in sums] for part in colors}, colors))
    return made[0], made[1]


def _plot(title: str, **options: Any) -> Any:
    plot = figure(
        title=title, tools="xpan,box_zoom,reset,save", sizing_mode="stretch_width", active_drag="xpan", **options
    )
    plot.toolbar.logo = None
    plot.background_fill_color = plot.border_fill_color = None  # the page's
    plot.title.text_font_size = "14px"
    plot.min_border_right = 20
    plot.xaxis.major_label_policy = NoOverlap(min_distance=8)  # on a narrow page
    return plot


def _hover(renderers: list[Any], lines: Sequence[str]) -> HoverTool:
    body = "".join(f"<div>{line}</div>" for line in lines)
    return HoverTool(renderers=renderers, tooltips=f"<div style='max-width:34em'>{body}</div>")


def _block_columns(run: Run, activity: Activity) -> dict[str, list[Any]]:
    schedule, origin = run.schedule, activity.start
    columns = _columns("left right bottom top rank color ink full short layers work when")
    works = [_work(run, index) for index in range(len(schedule.chunks))]
    for rank, spans in enumerate(activity.spans):
        for span in spans:
            if span.doing is not Doing.RUN:
                continue
            op, chunk, stage, *_ = schedule.programs[rank].row(span.instruction)
            stage = stage if op == FORWARD else len(schedule.stages) - 1
            sweep = stage // schedule.pp % 2
            hue = HUES[schedule.chunks[chunk].parts[0].request % len(HUES)]
            first, last = schedule.stages[stage].layers
            row = {
                "left": span.start - origin,
                "right": span.end - origin,
                "bottom": rank + LANE,
                "top": rank - LANE,
                "rank": rank,
                "color": hue[sweep],
                "ink": "#ffffff" if sweep else "#14202b",
                "full": f"C{chunk} s{stage}" if op == FORWARD else f"C{chunk} token",
                "short": f"C{chunk}",
                "layers": f"{first} to {last - 1}",
                "work": works[chunk],
                "when": _when(span.start - origin, span.end - origin),
            }
            for key, value in row.items():
                columns[key].append(value)
    return columns


def _bubble_columns(activity: Activity, bubbles: Sequence[Sequence[Bubble]]) -> dict[str, list[Any]]:
    """Pieces of bubbles with the same reason as one."""
    columns = _columns("left right bottom top rank color cause phase why when")
    for rank, pieces in enumerate(bubbles):
        for _, group in groupby(pieces, key=_same):
            found = list(group)
            start, end = found[0].start - activity.start, found[-1].end - activity.start
            row = {
                "left": start,
                "right": end,
                "bottom": rank + LANE,
                "top": rank - LANE,
                "rank": rank,
                "color": CAUSE_COLORS[found[0].cause],
                "cause": found[0].cause,
                "phase": found[0].phase,
                "why": because(activity, found[0].root, found[-1].end),
                "when": _when(start, end),
            }
            for key, value in row.items():
                columns[key].append(value)
    return columns


def _exposed_columns(activity: Activity) -> dict[str, list[Any]]:
    columns = _columns("left right bottom top rank why when")
    for rank, spans in enumerate(activity.spans):
        for span in spans:
            if span.doing is Doing.TRANSFER:
                _, chunk, stage, _, peer, _ = activity.schedule.programs[rank].row(span.instruction)
                start, end = span.start - activity.start, span.end - activity.start
                values = (
                    start,
                    end,
                    rank + LANE,
                    rank - LANE,
                    rank,
                    f"C{chunk} s{stage}, rank {peer}",
                    _when(start, end),
                )
                for held, value in zip(columns.values(), values, strict=True):
                    held.append(value)
    return columns


def _hop_columns(run: Run, activity: Activity) -> dict[str, list[Any]]:
    columns = _columns("left right bottom top what when")
    for hop in hops(run):
        down = 1 if hop.channel.dst > hop.channel.src else -1
        start, end = hop.start - activity.start, hop.end - activity.start
        tokens = count(run.schedule.chunks[hop.chunk].tokens, "token")
        what = f"C{hop.chunk} for s{hop.stage}, rank {hop.channel.src} to rank {hop.channel.dst}, {tokens}"
        ends = hop.channel.src + down * LANE, hop.channel.dst - down * LANE
        for held, value in zip(columns.values(), (start, end, *ends, what, _when(start, end)), strict=True):
            held.append(value)
    return columns


def _columns(names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names.split()}


def _same(piece: Bubble) -> tuple[object, ...]:
    return piece.awaited, piece.cause, piece.phase, piece.root.rank, piece.root.span.instruction


def _work(run: Run, chunk: int) -> str:
    """A chunk's parts, as HTML."""
    requests = run.schedule.requests
    return "<br>".join(
        f"{escape(requests[part.request].id)}: {count(part.tokens, 'token')} behind {count(part.start)}"
        for part in run.schedule.chunks[chunk].parts
    )


def _when(start: float, end: float) -> str:
    return f"{seconds(start)} to {seconds(end)}: {seconds(end - start)}"


def _sums(changes: Iterable[tuple[float, int]], origin: float, end: float) -> Iterable[tuple[float, float]]:
    """The running sum of changes, at each time what they have come to."""
    total = 0
    yield 0.0, 0.0
    for moment, group in groupby(sorted(changes), key=lambda change: change[0]):
        total += sum(change for _, change in group)
        yield moment - origin, float(total)
    yield end, float(total)
