"""What chunks are cut of, what buffers hold: named lanes with labelled spans on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from examples.pictures.timelines import WIDTH, after_passes, cost_of
from vppc.analysis.timing import simulate
from vppc.costs.document import read_cost
from vppc.costs.model import OpCosts
from vppc.ir.rules import prove
from vppc.ir.schedule import Model, Request, Schedule
from vppc.passes.chunking import FixedChunks
from vppc.passes.dynamic_chunking import DcppChunks, SglangChunks
from vppc.passes.prompt_batching import BatchPrompts
from vppc.render.page import picture
from vppc.render.palette import HUES, stylesheet
from vppc.render.svg import element, text
from vppc.render.tables import count
from vppc.render.timeline import round_step

COST = "examples/costs/deepseek-v3.1-910c-tp8.json"
LEFT, RIGHT, LANE, GAP = 150.0, 24.0, 24.0, 6.0


class Span(NamedTuple):
    """From ``start`` to ``end`` of the axis, with a label, in the hue of a number; ``late`` ones are dark."""

    start: float
    end: float
    label: str
    hue: int = 0
    late: bool = False


class Lane(NamedTuple):
    """A name and the spans that lie behind it."""

    name: str
    spans: Sequence[Span]


def spans_picture(title: str, groups: Sequence[tuple[str, Sequence[Lane]]], unit: str) -> str:
    """Groups of lanes under their headings, and an axis."""
    most = max(span.end for _, lanes in groups for lane in lanes for span in lane.spans)
    scale = (WIDTH - LEFT - RIGHT) / most
    body: list[str] = []
    y = 10.0
    for heading, lanes in groups:
        body.append(text(heading, LEFT, y + 12, class_="ink b", font_size=12))
        y += 20
        for lane in lanes:
            body.append(text(lane.name, LEFT - 8, y + 16, class_="ink e", font_size=11))
            body.append(element("rect", x=LEFT, y=y, width=most * scale, height=LANE, fill="url(#bubble)"))
            body += [_span(span, y, scale) for span in lane.spans]
            y += LANE + GAP
        y += 6
    body += _axis(y, most, scale, unit)
    return picture(title, body, WIDTH, y + 26, stylesheet("auto"))


def _span(span: Span, y: float, scale: float) -> str:
    sweep = int(span.late)
    left, wide = LEFT + span.start * scale, (span.end - span.start) * scale
    box = element("rect", class_=f"r{span.hue % len(HUES)}{sweep}", x=left, y=y, width=wide - 1, height=LANE, rx=2)
    if wide < 6.4 * len(span.label) + 4:
        return box
    return box + text(span.label, left + wide / 2, y + 16, class_=f"t{sweep} m", font_size=10.5)


def _axis(y: float, most: float, scale: float, unit: str) -> Iterator[str]:
    yield element("line", class_="line", x1=LEFT, y1=y, x2=LEFT + most * scale, y2=y)
    step = round_step(most / 8)
    for number in range(int(most / step + 1e-9) + 1):
        x = LEFT + number * step * scale
        yield element("line", class_="line", x1=x, y1=y, x2=x, y2=y + 5)
        yield text(count(round(number * step)), x, y + 17, class_="faint m", font_size=10)
    yield text(unit, LEFT - 8, y + 17, class_="faint e", font_size=10)


def _prompts(schedule: Schedule) -> list[Lane]:
    return [Lane(each.id, [Span(0, each.prompt_tokens, count(each.prompt_tokens), number)])
            for number, each in enumerate(schedule.requests)]  # fmt: skip


def _chunks(schedule: Schedule, name: str) -> Lane:
    """The chunks one after another, each span a part in its request's hue."""
    spans, end = [], 0
    for index, chunk in enumerate(schedule.chunks):
        for part in chunk.parts:
            spans.append(Span(end, end + part.tokens, f"C{index}", part.request, bool(index % 2)))
            end += part.tokens
    return Lane(name, spans)


def _requests(*tokens: int) -> Schedule:
    requests = tuple(Request(f"r{number}", each) for number, each in enumerate(tokens))
    return Schedule("vpp-packed", Model("any", 61), 2, 1, requests=requests)


def pictures() -> Iterator[tuple[str, str]]:
    """What the passes that cut chunks, and the one that allocates buffers, get and make, by file name."""
    queued = _requests(40000, 22000)
    cut = FixedChunks(8192)(queued)
    groups = [("before: prompts", _prompts(queued)), ("after: --chunk-size 8192", [_chunks(cut, "chunks")])]
    yield "pass-chunking.svg", spans_picture("chunking", groups, "tokens")

    long, cost = _requests(262144), read_cost(COST)
    lanes = [
        _chunks(FixedChunks(32768)(long), "fixed"),
        _chunks(DcppChunks(32768, cost)(long), "dcpp"),
        _chunks(SglangChunks(32768, cost)(long), "dcpp-sglang"),
    ]
    yield "pass-dynamic-chunking.svg", spans_picture("dynamic_chunking", [("256K in chunks of 32K", lanes)], "tokens")

    short = FixedChunks(8192)(_requests(3000, 2500, 2000, 6000, 1500))
    batched = BatchPrompts(8192)(short)
    groups = [
        ("before: a chunk each", [_chunks(short, f"{len(short.chunks)} chunks")]),
        ("after: --token-budget 8192", [_chunks(batched, f"{len(batched.chunks)} chunks")]),
    ]
    yield "pass-prompt-batching.svg", spans_picture("prompt_batching", groups, "tokens")

    made = after_passes("vpp-async", (3,), 0.5)
    groups = [
        ("before: every value has a buffer of its own", _buffers(made["insert_transfers"])),
        ("after: as few as keep the timing", _buffers(made["allocate_buffers"])),
    ]
    yield "pass-allocate-buffers.svg", spans_picture("allocate_buffers", groups, "seconds")


def _buffers(schedule: Schedule) -> list[Lane]:
    """What the buffers of rank 0 hold from when to when."""
    timing = simulate(schedule, OpCosts.of(schedule, cost_of(0.5)))
    program, lifetimes = schedule.programs[0], prove(schedule).lifetimes[0]
    lanes = [Lane(f"buffer {number}", list[Span]()) for number in range(program.buffers)]
    for place in range(0, len(lifetimes), 3):
        buffer, first, last = lifetimes[place : place + 3]
        _, chunk, stage, *_ = program.row(first)
        span = Span(timing.starts[0][first], timing.ends[0][last], f"C{chunk} s{stage}", 0, stage >= schedule.pp)
        lanes[buffer] = Lane(lanes[buffer].name, [*lanes[buffer].spans, span])
    return lanes
