"""Timelines in text: golden pictures, and what they must show of any run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vppc.analysis.breakdown import breakdown
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.ir.schedule import Chunk, Part, Request, Schedule
from vppc.ir.torch_csv import parse_torch_csv
from vppc.render.timeline import ASCII, UNICODE, axis_ticks, timeline

GOLDEN = Path(__file__).parent / "golden" / "timelines.txt"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def fold(chunks: int, ahead: int) -> Schedule:
    """A V of four stages on two ranks: rank 0 runs stage 0 of ``ahead`` chunks before it takes the first one back."""
    rank0: list[str] = []
    for step in range(chunks + ahead):
        rank0 += [f"0F{step}", f"0SEND_F{step}"] if step < chunks else []
        rank0 += [f"3RECV_F{step - ahead}", f"3F{step - ahead}"] if step >= ahead else []
    rank1 = [cell for c in range(chunks) for cell in (f"1RECV_F{c}", f"1F{c}", f"2F{c}", f"2SEND_F{c}")]
    return parse_torch_csv(f"{','.join(rank0)}\n{','.join(rank1)}\n")


def two_prompts(schedule: Schedule, *names: str) -> Schedule:
    """The same chunks as two prompts, one behind the other."""
    half = len(schedule.chunks) // 2
    rest = len(schedule.chunks) - half
    parts = [Part(0, at, 1) for at in range(half)] + [Part(1, at, 1) for at in range(rest)]
    requests = (Request(names[0], half), Request(names[1], rest))
    return replace(schedule, requests=requests, chunks=tuple(Chunk((part,)) for part in parts))


GROWING = CostModel((LayerCost(4, per_pair=1.0),), transfer=Linear(0.5))


def drawn(schedule: Schedule, cost: CostModel = GROWING, **options: object) -> str:
    timing = simulate(schedule, OpCosts.of(schedule, cost))
    return timeline(schedule, timing, **options)  # type: ignore[arg-type]


def pictures() -> str:
    short, long = fold(8, 3), fold(64, 3)
    slow_link = replace(GROWING, transfer=Linear(6.0))
    pictures = {
        "eight chunks": drawn(short),
        "a slow link": drawn(short, slow_link),
        "ASCII, 60 columns": drawn(short, width=60, glyphs=ASCII),
        "two requests": drawn(two_prompts(short, "summary", "a\nvery \x1b[31m long name of a request"), width=80),
        "64 chunks": drawn(long),
        "64 chunks, ASCII": drawn(long, glyphs=ASCII, width=72),
        "milliseconds": drawn(short, replace(GROWING, layers=(LayerCost(4, per_pair=1e-4),), transfer=Linear())),
        "colour": drawn(two_prompts(short, "a", "b"), color=True),
    }
    return "".join(f"# {name}\n{picture}\n\n" for name, picture in pictures.items())


def test_golden() -> None:
    assert pictures() == GOLDEN.read_text()


def lanes(text: str) -> list[str]:
    return [line for line in ESCAPE.sub("", text).splitlines() if line.startswith("rank ")]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, CostModel]:
    schedule = fold(draw(st.integers(1, 40)), draw(st.integers(1, 4)))
    seconds = st.sampled_from([0.0, 0.001, 0.3, 2.0, 50.0])
    cost = CostModel(
        (LayerCost(4, fixed=draw(seconds), per_pair=draw(seconds)),),
        transfer=Linear(draw(seconds)),
        launch=draw(seconds),
    )
    return schedule, cost


@settings(max_examples=40)
@given(runs(), st.integers(40, 200))
def test_lanes_are_as_wide_as_asked_and_name_the_bubble(run: tuple[Schedule, CostModel], width: int) -> None:
    schedule, cost = run
    costs = OpCosts.of(schedule, cost)
    ranks = breakdown(schedule, simulate(schedule, costs), costs)
    for options in ({}, {"color": True}, {"glyphs": ASCII}):
        text = drawn(schedule, cost, width=width, **options)
        assert [len(lane) for lane in lanes(text)] == [width, width]
        assert all(len(ESCAPE.sub("", line)) <= width for line in text.splitlines())
        shown = [lane.split()[-1] for lane in lanes(text)]
        for percentage, rank in zip(shown, ranks, strict=True):
            assert float(percentage[:-1]) == pytest.approx(100 * rank.bubble_ratio, abs=0.051)
    assert "\x1b" in drawn(schedule, cost, color=True)
    assert "\x1b" not in drawn(schedule, cost)
    assert drawn(schedule, cost, glyphs=ASCII).isascii()


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(80, 200))
def test_blocks_are_to_scale(chunks: int, ahead: int, width: int) -> None:
    """Every column that lies wholly within an operation shows it, every one in a bubble a dot."""
    schedule = fold(chunks, ahead)
    timing = simulate(schedule, OpCosts.of(schedule, GROWING))
    texts = lanes(timeline(schedule, timing, width=width))
    columns = width - len("rank 0  ") - len("  100.0%")
    scale = columns / max(max(ends) for ends in timing.ends)
    for rank, text in enumerate(texts):
        program, lane = schedule.programs[rank], text[len("rank 0  ") :]
        spans = [
            (start * scale, end * scale, row[2])
            for row, start, end in zip(program.rows(), timing.starts[rank], timing.ends[rank], strict=True)
            if row[0] == 0
        ]
        for column in range(columns):
            inside = [stage for start, end, stage in spans if start <= column and column + 1 <= end]
            touching = [stage for start, end, stage in spans if start < column + 1 and column < end]
            glyph = lane[column]
            if not touching:
                assert glyph in (UNICODE.bubble, UNICODE.exposed)
            elif inside and glyph in (UNICODE.even, UNICODE.odd):
                assert glyph == (UNICODE.odd if inside[0] // 2 else UNICODE.even)
            elif inside:
                assert glyph not in (UNICODE.bubble, UNICODE.exposed)


def test_a_run_of_no_time_is_drawn() -> None:
    text = drawn(fold(2, 1), CostModel((LayerCost(4),)))
    assert [lane.split()[-1] for lane in lanes(text)] == ["0.0%", "0.0%"]


@pytest.mark.parametrize(
    ("seconds", "most", "first", "labels"),
    [
        (1.2, 6, 0.0, ["0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s", "1.2 s"]),
        (0.9, 5, 0.0, ["0 ms", "200 ms", "400 ms", "600 ms", "800 ms"]),
        (0.5, 5, 1.0, ["1 s", "1.1 s", "1.2 s", "1.3 s", "1.4 s", "1.5 s"]),
        (0.002, 4, 1000.0, ["1000 s", "1000.0005 s", "1000.001 s", "1000.0015 s", "1000.002 s"]),
        (0.0, 4, 0.0, ["0 s"]),
    ],
    ids=["seconds", "milliseconds", "window", "late window", "nothing"],
)
def test_the_axis_is_in_the_unit_of_its_last_label(seconds: float, most: int, first: float, labels: list[str]) -> None:
    ticks = list(axis_ticks(seconds, most, first))
    assert [label for _, label in ticks] == labels
    assert all(0.0 <= moment <= seconds * (1 + 1e-6) for moment, _ in ticks)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.floats(0.0, 0.9), st.floats(0.05, 1.0))
def test_a_window_shows_what_the_whole_shows_there(chunks: int, begin: float, share: float) -> None:
    """With as many columns a second, the window's are the whole's."""
    schedule = fold(chunks, 1)
    costs = OpCosts(
        [8.0] * (len(schedule.chunks) * 4), [0.0] * (len(schedule.chunks) * 4), [1.0] * len(schedule.chunks)
    )
    timing = simulate(schedule, costs)
    total = max(max(ends) for ends in timing.ends)
    first, last = round(begin * total), max(round(begin * total) + 24, round((begin + share * (1 - begin)) * total))
    margin, glyphs = len("rank 0  ") + len("  100.0%"), replace(ASCII, bubble="_")
    whole = timeline(schedule, timing, width=margin + round(total), glyphs=glyphs).splitlines()
    window = timeline(schedule, timing, width=margin + last - first, glyphs=glyphs, window=(first, last)).splitlines()
    assume(last <= total)
    for lane, part in zip(whole[2:4], window[2:4], strict=True):
        idle = [place for place, glyph in enumerate(lane[8 + first : 8 + last]) if glyph == "_"]
        assert [place for place, glyph in enumerate(part[8 : 8 + last - first]) if glyph == "_"] == idle
