"""Pictures: golden ones, that they are to scale, and that people can read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from math import dist
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from examples.paper import figure_2
from examples.pictures.__main__ import pictures
from tests.journals import write_journal
from tests.plans import deepseek, paper, plans
from vppc.analysis.breakdown import breakdown, clock_start
from vppc.analysis.timing import simulate
from vppc.cli import vppc
from vppc.costs.document import parse_cost
from vppc.costs.model import OpCosts
from vppc.errors import InputError
from vppc.ir.document import schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule
from vppc.render.html_report import scheme
from vppc.render.lanes import Gap, Run, end_of, lanes, reason
from vppc.render.page import html_page
from vppc.render.palette import DARK, HUES, LIGHT, ON_DARK, ON_LIGHT
from vppc.render.plot import LEFT, RIGHT, Style, plot
from vppc.render.svg import element, number, text

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"
BLOCK = re.compile(r"C(\d+) s(\d+) on rank (\d+), instruction (\d+)\n")


def run_of(schedule: Schedule, name: str = "plan") -> Run:
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    return Run(name, schedule, simulate(schedule, costs))


def drawn(*runs: Run, **style: object) -> ElementTree.Element:
    return ElementTree.fromstring(plot(runs, Style(**style)))  # type: ignore[arg-type]


def blocks(picture: ElementTree.Element) -> Iterator[tuple[str, ElementTree.Element, list[ElementTree.Element]]]:
    """What each block says, its shape and its labels."""
    for group in picture.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text is not None and BLOCK.match(title.text):
            shape = group.find(f"{SVG}rect")
            assert shape is not None
            yield title.text, shape, group.findall(f"{SVG}text")


def words(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def filled(picture: ElementTree.Element, fill: str) -> list[ElementTree.Element]:
    """The stretches of time with a fill, without its swatch in the legend."""
    shapes = [each for each in picture.iter(f"{SVG}rect") if each.get("fill") == fill]
    return [each for each in shapes if each.find(f"{SVG}title") is not None]


# Golden pictures: `python -m examples.paper.figure_2 -o docs/images/figure-2.svg` draws the first anew.


def test_figure_2_in_the_documents_is_what_the_example_draws() -> None:
    assert plot(figure_2.runs(), Style()) == (ROOT / "docs" / "images" / "figure-2.svg").read_text(encoding="utf-8")


def test_the_other_pictures_of_the_documents_are_what_the_example_draws() -> None:
    """`python -m examples.pictures docs/images` draws them anew."""
    for name, picture in pictures():
        assert picture == (ROOT / "docs" / "images" / name).read_text(encoding="utf-8"), name


def test_golden_timeline_view() -> None:
    picture = plot(figure_2.runs(), Style(view="timeline", theme="dark", rows=2))
    assert picture == (GOLDEN / "figure-2-timeline.svg").read_text(encoding="utf-8")


def test_figure_2_shows_the_schemes_getting_better_and_the_next_request_in_the_drain() -> None:
    cpp, vpp, asynchronous, packed = figure_2.runs()
    assert end_of(packed) < end_of(asynchronous) < end_of(vpp)
    assert end_of(packed) < end_of(cpp)
    rank0 = [block.chunk for block in lanes(packed)[0].blocks]
    assert rank0.index(5) < len(rank0) - 1 - rank0[::-1].index(4)  # C5, of R', runs before the last stage of C4


# To scale


@settings(max_examples=40, deadline=None)
@given(plans())
def test_lanes_are_filled_and_their_gaps_are_the_breakdown(schedule: Schedule | InputError) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    run = run_of(schedule)
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    for lane, rank in zip(lanes(run), breakdown(schedule, run.timing, costs), strict=True):
        work = [(block.start, block.end) for block in lane.blocks]
        pieces = sorted(work + [(gap.start, gap.end) for gap in lane.gaps])
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
        if pieces:
            assert (pieces[0][0], pieces[-1][1]) == (clock_start(schedule), end_of(run))
        total = end_of(run)
        bubble = sum(gap.end - gap.start for gap in lane.gaps if not gap.exposed)
        exposed = sum(gap.end - gap.start for gap in lane.gaps if gap.exposed)
        assert bubble == pytest.approx(rank.launch_stall + rank.free, abs=1e-9 * total)
        assert exposed == pytest.approx(rank.exposed_transfer, abs=1e-9 * total)


@settings(max_examples=25, deadline=None)
@given(plans(max_pp=3, limited=False), st.integers(600, 2000))
def test_blocks_are_to_scale(schedule: Schedule | InputError, width: int) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    run = run_of(schedule)
    origin, total = clock_start(schedule), end_of(run) - clock_start(schedule)
    assume(total > 0)
    scale = (width - LEFT - RIGHT) / total
    seen = set()
    for title, shape, _ in blocks(drawn(run, width=width, rows=1)):
        chunk, stage, rank, index = map(int, BLOCK.match(title).groups())  # type: ignore[union-attr]
        assert schedule.programs[rank].row(index)[:3] == (FORWARD, chunk, stage)
        start, end = run.timing.starts[rank][index], run.timing.ends[rank][index]
        left, wide = float(shape.get("x", "")), float(shape.get("width", ""))
        assert left == pytest.approx(LEFT + (start - origin) * scale, abs=0.01)
        assert wide == pytest.approx((end - start) * scale, abs=0.72)
        seen.add((rank, index))
    for rank, program in enumerate(schedule.programs):
        for index, row in enumerate(program.rows()):
            if row[0] == FORWARD and (run.timing.ends[rank][index] - run.timing.starts[rank][index]) * scale > 2:
                assert (rank, index) in seen


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_lose_nothing(rows: int) -> None:
    run = run_of(paper("vpp", 6, 3, transfer=0.5))
    picture = drawn(run, rows=rows)
    columns, scale = 1200 - LEFT - RIGHT, (1200 - LEFT - RIGHT) * rows / end_of(run)
    found = {BLOCK.match(title).groups()[2:] for title, _, _ in blocks(picture)}  # type: ignore[union-attr]
    assert len(found) == 6 * 6
    shapes = [shape for _, shape, _ in blocks(picture)]
    assert all(LEFT <= float(each.get("x", "")) <= LEFT + columns for each in shapes)
    for fill, exposed in (("url(#bubble)", False), ("url(#exposed)", True)):
        pixels = sum(float(each.get("width", "")) for each in filled(picture, fill))
        expected = sum(
            (gap.end - gap.start) * scale for lane in lanes(run) for gap in lane.gaps if gap.exposed == exposed
        )
        assert pixels == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("transfer", [0.0, 0.5])
def test_every_transfer_is_an_arrow_as_long_as_it_takes(transfer: float) -> None:
    run = run_of(paper("vpp-async", 5, transfer=transfer))
    scale = (1200 - LEFT - RIGHT) / end_of(run)
    arrows = [each for each in drawn(run, rows=1).iter(f"{SVG}line") if each.find(f"{SVG}title") is not None]
    assert len(arrows) == sum(len(each.starts) for each in run.timing.transfers) == 10
    assert all(each.get("marker-end") == "url(#head)" for each in arrows)
    lengths = [float(each.get("x2", "")) - float(each.get("x1", "")) for each in arrows]
    assert lengths == pytest.approx([transfer * scale] * 10, abs=0.02)


def test_the_timeline_view_has_transfers_in_lanes_of_their_own() -> None:
    picture = drawn(run_of(paper("vpp-async", 5, 3, transfer=0.5)), view="timeline")
    named = [word for word in words(picture) if word.startswith("to rank")]
    assert sorted(named) == ["to rank 0", "to rank 1", "to rank 1", "to rank 2"]
    assert not [each for each in picture.iter(f"{SVG}line") if each.get("class") == "arrow"]
    titles = [each.text or "" for each in picture.iter(f"{SVG}title")]
    assert sum(" for s" in title for title in titles) == 4 * 5


# To be read


@pytest.mark.parametrize(("chunks", "least"), [(8, 1.0), (64, 0.7), (500, 0.65)])
def test_labels_are_there_at_8_chunks_and_at_500(chunks: int, least: float) -> None:
    """In equal time steps early chunks of growing ones are narrow; the axis says which chunk has begun."""
    picture = drawn(run_of(paper("vpp-async", chunks)))
    labels = [texts for _, _, texts in blocks(picture)]
    assert sum(map(bool, labels)) >= least * len(labels)
    assert all(float(each.get("font-size", "")) >= 7 for texts in labels for each in texts)
    assert float(picture.get("height", "")) < 4300
    assert ("newest chunk" in words(picture)) == (chunks > 8)


def test_before_the_first_chunk_the_axis_names_none() -> None:
    """As in a journal, in which the first FORWARD starts a little after the run."""
    run = run_of(paper("vpp-async", 64))
    later = tuple([each + 1.0 for each in starts] for starts in run.timing.starts)
    ends = tuple([each + 1.0 for each in ends] for ends in run.timing.ends)
    picture = drawn(replace(run, timing=replace(run.timing, starts=later, ends=ends)))
    said = words(picture)
    assert said[said.index("0 s") + 1] == "-"
    assert words(drawn(run))[words(drawn(run)).index("0 s") + 1] == "C0"


def test_labels_fit_into_their_blocks() -> None:
    for _, shape, texts in blocks(drawn(run_of(deepseek("vpp-packed", (262144, 131072), 8192, pp=4)))):
        width, height = float(shape.get("width", "")), float(shape.get("height", ""))
        for each in texts:
            size, long = float(each.get("font-size", "")), 0.64 * len(each.text or "")
            across, along = (size, size * long) if each.get("transform") else (size * long, size)
            assert across <= width + 1 and along <= height + 1


def test_labels_say_chunk_and_stage() -> None:
    [(_, _, texts), *_] = blocks(drawn(run_of(paper("vpp", 3)), width=2000))
    assert [each.text for each in texts] == ["C0", "s0"]


def test_gaps_say_why() -> None:
    run = run_of(paper("vpp", 5, transfer=0.5))
    rank0, rank1 = lanes(run)
    assert [reason(run.schedule, 1, gap) for gap in (*rank1.gaps[:2], rank1.gaps[-1])] == [
        "waits for the input of C0 s1 from rank 0",
        "transfer: waits for the input of C0 s1 from rank 0",
        "has no work left",
    ]
    bubbles = [gap for gap in rank0.gaps if not gap.exposed]
    assert reason(run.schedule, 0, bubbles[-1]) == "waits for the input of C4 s3 from rank 1"
    late = replace(run.schedule, requests=(replace(run.schedule.requests[0], arrival=2.0),))
    assert reason(late, 0, Gap(1.0, 2.0, False, -1, 0)) == "waits for a request to arrive"
    assert reason(late, 0, Gap(3.0, 4.0, False, -1, 0)) == "between instructions"


def test_requests_have_hues_and_names() -> None:
    picture = drawn(run_of(paper("vpp-packed", (3, 2, 2))))
    classes = {int(m[1]): (shape.get("class") or "")[1] for t, shape, _ in blocks(picture) if (m := BLOCK.match(t))}
    assert classes == {0: "0", 1: "0", 2: "0", 3: "1", 4: "1", 5: "2", 6: "2"}
    assert words(picture)[-3:] == ["r0", "r1", "r2"]
    assert "r0" not in words(drawn(run_of(paper("vpp", 3))))
    many = words(drawn(run_of(paper("vpp-packed", (1,) * 12))))
    assert many[-1] == "and 4 more"


def test_a_chunk_of_several_requests_shows_all_of_them() -> None:
    schedule = deepseek("vpp-packed", (1500, 1500, 20000), 8192, token_budget=8192)
    mixed = [index for index, chunk in enumerate(schedule.chunks) if len({p.request for p in chunk.parts}) > 1]
    assert mixed
    picture = drawn(run_of(schedule))
    for group in picture.iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title") or ""
        if (found := BLOCK.match(title)) and int(found[1]) in mixed:
            box, *strips = group.findall(f"{SVG}rect")
            parts = schedule.chunks[int(found[1])].parts
            assert len({strip.get("class") for strip in strips}) == len({part.request for part in parts})
            assert sum(float(strip.get("width", "")) for strip in strips) == pytest.approx(
                float(box.get("width", "")), abs=0.1
            )


# Colours. Simulation of colour-blindness: Machado, Oliveira and Fernandes 2009, severity 1.0.

DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def linear(color: str) -> list[float]:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(color: str) -> float:
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear(color), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(color: str, eye: tuple[tuple[float, ...], ...]) -> list[float]:
    """CIE Lab (D65) of a colour as an eye sees it."""
    rgb = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(color), strict=True)))) for row in eye]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in to_xyz]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (value / white for value, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def apart(one: str, other: str, eye: tuple[tuple[float, ...], ...]) -> float:
    return dist(lab(one, eye), lab(other, eye))


@pytest.mark.parametrize("eye", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
def test_neighbouring_requests_differ_for_every_eye(eye: tuple[tuple[float, ...], ...]) -> None:
    for one, other in pairwise((*HUES, HUES[0])):
        assert apart(one.light, other.light, eye) > 25
        assert apart(one.dark, other.dark, eye) > 25


@pytest.mark.parametrize("eye", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
@pytest.mark.parametrize(
    "colors",
    [scheme.LINES, scheme.LINES_ON_DARK, scheme.CAUSES, tuple(scheme.WORK.values())],
    ids=["lines", "lines on dark", "causes", "work"],
)
def test_what_a_chart_of_a_report_shows_differs_for_every_eye(
    colors: tuple[str, ...], eye: tuple[tuple[float, ...], ...]
) -> None:
    assert min(apart(one, other, eye) for one, other in combinations(colors, 2)) > 20


def test_charts_of_a_report_are_clear_of_their_background() -> None:
    assert min(contrast(line, "#ffffff") for line in scheme.LINES) > 3
    assert min(contrast(line, scheme.SECTION) for line in scheme.LINES_ON_DARK) > 4.5
    for ink in (DARK.ink, DARK.faint):
        assert contrast(ink, scheme.SECTION) > 4.5


def test_sweeps_can_be_told_apart_in_grey_and_letters_read() -> None:
    assert min(luminance(hue.light) for hue in HUES) > 3 * max(luminance(hue.dark) for hue in HUES)
    for hue in HUES:
        assert contrast(ON_LIGHT, hue.light) > 4.5
        assert contrast(ON_DARK, hue.dark) > 4.5
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.paper) > 7
        assert contrast(theme.faint, theme.paper) > 4.5
        assert contrast(theme.exposed, theme.paper) > 3
        assert all(contrast(shade, theme.paper) > 1.3 for hue in HUES for shade in hue)


def test_themes() -> None:
    run = run_of(paper("vpp", 3))
    auto, light, dark = (plot([run], Style(theme=theme)) for theme in ("auto", "light", "dark"))
    assert "@media screen and (prefers-color-scheme:dark)" in auto
    assert LIGHT.paper in auto and DARK.paper in auto
    assert "@media" not in light + dark
    assert DARK.paper not in light and LIGHT.ink not in dark


# The writer


def test_elements() -> None:
    assert element("line", class_="a b", x1=0.0, stroke_width=-0.001) == '<line class="a b" x1="0" stroke-width="0"/>'
    assert text('<&>"', 1, 2.505) == '<text x="1" y="2.5">&lt;&amp;&gt;"</text>'
    assert [number(value) for value in (10, 100.0, -0.5, 0.126, 1e6)] == ["10", "100", "-0.5", "0.13", "1000000"]


@given(st.text(), st.text())
def test_any_text_makes_well_formed_xml(content: str, value: str) -> None:
    read = ElementTree.fromstring(element("g", text(content, 0, 0), id=value))
    plain = re.compile(r"[^\x00-\x1f\ud800-\udfff\ufffe\uffff\ufffd]*")
    if plain.fullmatch(content) and plain.fullmatch(value):
        assert (read.findtext("text"), read.get("id")) == (content, value)


def test_names_from_files_cannot_break_the_picture() -> None:
    schedule = paper("vpp-packed", (3, 2))
    first, second = schedule.requests
    names = (replace(first, id="</svg><script>\x1b\x00"), replace(second, id='"&\ud800'))
    picture = drawn(run_of(replace(schedule, requests=names)))
    assert not list(picture.iter(f"{SVG}script"))
    assert "</svg><script>\ufffd\ufffd" in words(picture)


@pytest.mark.parametrize("t", [0.0, 1e-9, 1e9])
def test_runs_of_no_time_and_of_any_length_are_drawn(t: float) -> None:
    picture = drawn(run_of(paper("vpp", 3, t=t)))
    assert "plan" in words(picture)
    assert float(picture.get("height", "")) < 300


# The command


def call(*arguments: str) -> Result:
    return CliRunner().invoke(vppc, ["plot", *arguments])


def saved(path: Path, schedule: Schedule) -> str:
    path.write_text("".join(schedule_text(schedule)))
    return str(path)


def test_svg_and_page(tmp_path: Path) -> None:
    schedule = paper("vpp", 4)
    plan = saved(tmp_path / "plan.json", schedule)
    assert call(plan, "-o", str(tmp_path / "x.svg")).exception is None
    assert call(plan, "-o", str(tmp_path / "x.HTML")).exception is None
    run = replace(run_of(schedule), name="vpp")
    assert (tmp_path / "x.svg").read_text() == call(plan).output == plot([run], Style())
    whole = (tmp_path / "x.HTML").read_text()
    assert whole == html_page(plot([run], Style()), "vpp", "auto")
    assert plot([run], Style()) in whole
    assert [link for link in re.findall(r"https?://[^\"'<> ]+", whole) if link != "http://www.w3.org/2000/svg"] == []


def test_options(tmp_path: Path) -> None:
    schedule = paper("vpp", 4)
    plan = saved(tmp_path / "plan.json", schedule)
    output = call(plan, "--view", "timeline", "--width", "800", "--rows", "2", "--theme", "dark").output
    assert output == plot([replace(run_of(schedule), name="vpp")], Style("timeline", 800, 2, "dark"))


def test_other_formats_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    target = str(tmp_path / "x.pdf")
    assert str(call("missing.json", "-o", target).exception) == (
        f"{target}: -o: .pdf is no format of a drawing\n  hint: a name ending in .svg, .html, .htm or .png"
    )
    assert str(call("missing.json", "-o", "x").exception) == (
        "x: -o: a file without a suffix is no format of a drawing\n  hint: a name ending in .svg, .html, .htm or .png"
    )


def test_png(tmp_path: Path) -> None:
    resvg = pytest.importorskip("resvg_py", reason="PNG needs resvg_py")
    target = tmp_path / "x.png"
    plan = saved(tmp_path / "plan.json", paper("vpp", 4))
    assert call(plan, "--width", "700", "-o", str(target)).exception is None
    drawn = target.read_bytes()
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(drawn[16:20]) == 2 * 700  # the width in its header
    lost = call(plan, "-o", str(tmp_path / "no" / "such" / "x.png")).exception
    assert "cannot be written" in str(lost)
    assert drawn == bytes(resvg.svg_to_bytes(svg_string=call(plan, "--width", "700").output, zoom=2.0))


def test_png_without_what_draws_it_or_without_fonts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py", reason="PNG needs resvg_py")
    target = str(tmp_path / "x.png")
    plan = saved(tmp_path / "plan.json", paper("vpp", 4))
    monkeypatch.setattr("resvg_py.svg_to_bytes", lambda **options: b"the same, with letters and without")
    assert "no font is found" in str(call(plan, "-o", target).exception)
    monkeypatch.setattr("vppc.render.png.find_spec", lambda name: None)
    assert "pip install 'vppc[report]'" in str(call("missing.json", "-o", target).exception)
    assert not Path(target).exists()


def test_several_files_share_a_scale_and_are_told_apart(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{name}.json", paper(name, 4)) for name in ("cpp", "vpp")]
    again = saved(tmp_path / "again.json", paper("vpp", 4))
    picture = ElementTree.fromstring(call(*files, again).output)
    assert [word for word in words(picture) if word.startswith(("cpp", "vpp"))] == ["cpp", "vpp (vpp)", "vpp (again)"]
    widths: dict[float, set[str]] = {}
    for title, shape, _ in blocks(picture):
        seconds = re.search(r": (\d+) s\n", title)
        assert seconds is not None
        widths.setdefault(float(seconds[1]), set()).add(shape.get("width", ""))
    assert all(max(map(float, each)) - min(map(float, each)) < 0.02 for each in widths.values())


def test_a_journal_is_drawn_below_its_plan(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 3, transfer=0.5)
    folder = write_journal(tmp_path / "run", schedule, run_of(schedule).timing)
    shown = words(ElementTree.fromstring(call(str(folder)).output))
    assert [word for word in shown if word in ("plan", "journal")] == ["plan", "journal"]
    bare = replace(schedule, extra={key: value for key, value in schedule.extra.items() if key != "cost"})
    alone = write_journal(tmp_path / "bare", bare, run_of(schedule).timing)
    shown = words(ElementTree.fromstring(call(str(alone)).output))
    assert [word for word in shown if word in ("plan", "journal")] == ["journal"]
