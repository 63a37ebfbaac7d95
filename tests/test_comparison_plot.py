"""Pictures of comparisons: a golden one, that they are to scale and say what the table says, and their files."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests.test_plot import DEUTERANOPIA, NORMAL, PROTANOPIA, apart, contrast
from vppc.cli import vppc
from vppc.compare import Outcome, Row, cases, compare, equal_prompts
from vppc.compiler import paper_cost
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.json_text import dumps
from vppc.passes.strategies import Options
from vppc.render.comparison_plot import comparison_plot
from vppc.render.palette import DARK, LIGHT

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "comparison.svg"
SVG = "{http://www.w3.org/2000/svg}"
COST = CostModel((LayerCost(4, fixed=0.5, per_pair=1.0, collective_fixed=0.25),), transfer=Linear(0.25), name="small")


def rows(
    *strategies: str, cost: CostModel = COST, prompts: int = 1, sizes: tuple[int, ...] = (1, 2, 3)
) -> tuple[Row, ...]:
    contestants = [Options(strategy=strategy, min_chunk=1, page_size=1) for strategy in strategies]
    return compare(cases(cost, [equal_prompts(6, prompts), equal_prompts(9, prompts)], contestants, sizes))


def drawn(contest: tuple[Row, ...], theme: str = "light") -> ElementTree.Element:
    return ElementTree.fromstring(comparison_plot(contest, theme))


def words(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def shapes(picture: ElementTree.Element, pattern: str) -> list[tuple[re.Match[str], ElementTree.Element]]:
    """What has a title that matches, with its shape."""
    found = []
    for group in picture.iter(f"{SVG}g"):
        title, shape = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and shape is not None and (match := re.search(pattern, title.text or "")):
            found.append((match, shape))
    return found


def height(shape: ElementTree.Element) -> float:
    return float(shape.get("height", ""))


def test_golden() -> None:
    """Drawn anew by: python -m tests.test_comparison_plot"""
    assert comparison_plot(golden(), "auto") == GOLDEN.read_text(encoding="utf-8")


def golden() -> tuple[Row, ...]:
    return rows("cpp", "dcpp", "vpp", "vpp-async", "vpp-packed", prompts=2)


def test_bars_of_throughput_are_as_high_as_what_they_gain() -> None:
    contest = rows("cpp", "vpp", "vpp-async")
    bars = shapes(drawn(contest), r"^([\w-]+), (\d+) tokens .*\n.* tokens a second")
    assert [(match[1], match[2]) for match, _ in bars] == [
        (row.case.contestant, row.case.queue.name) for row in contest
    ]
    for base, part in ((0, bars[:3]), (3, bars[3:])):
        for number, (_, shape) in enumerate(part):
            over = contest[base + number].gain_over(contest[base])
            assert over is not None
            assert height(shape) / height(part[0][1]) == pytest.approx(1 + over, abs=0.001)
    gains = [each for each in words(drawn(contest)) if re.fullmatch(r"[+-]\d+\.\d%", each)]
    assert gains == [
        f"{100 * (row.gain_over(contest[at // 3 * 3]) or 0):+.1f}%" for at, row in enumerate(contest) if at % 3
    ]


def test_the_makespan_is_taken_apart_on_the_rank_with_the_most_work() -> None:
    contest = rows("cpp", "vpp-async")
    parts = shapes(drawn(contest), r"^([\w-]+), (\d+) tokens .*\nrank (\d), (.+): ")
    for row in contest:
        mine = {
            match[4]: (int(match[3]), height(shape))
            for match, shape in parts
            if match[1] == row.case.contestant and match[2] == row.case.queue.name
        }
        assert row.best.report is not None
        rank = max(row.best.report.ranks, key=lambda each: each.compute + each.collective)
        seconds = {"compute": rank.compute, "exposed communication": rank.collective + rank.exposed_transfer}
        seconds["bubble"] = rank.launch_stall + rank.free
        assert sum(seconds.values()) == pytest.approx(row.best.makespan)
        assert set(mine) == {name for name, value in seconds.items() if value}
        whole = sum(high for _, high in mine.values())
        for name, (number, high) in mine.items():
            assert number == rank.rank
            assert high / whole == pytest.approx(seconds[name] / row.best.makespan, abs=0.001)


def test_lines_have_a_point_a_chunk_size_and_a_ring_at_the_best() -> None:
    contest = rows("cpp", "vpp", sizes=(1, 2, 3, 6))
    picture = drawn(contest)
    lines = [
        each.get("d", "")
        for each in picture.iter(f"{SVG}path")
        if (each.get("class") or "").startswith("l") and each.get("stroke-width") == "1.8"
    ]
    assert [line.count("L") for line in lines] == [3] * 4
    ringed = [
        group.findtext(f"{SVG}title") for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}circle") is not None
    ]
    assert ringed == [
        f"{row.case.contestant}, {row.case.queue.name} tokens in {row.best.chunks} chunks of up to "
        f"{row.best.case.options.chunk_size}: {row.best.makespan:g} s"
        if row.best.makespan % 1 == 0
        else title
        for row, title in zip(contest, ringed, strict=True)
    ]


def test_the_mean_time_to_first_token_is_shown_of_several_prompts_only() -> None:
    heading = "mean time to first token, in units of the first bar's"
    assert heading not in words(drawn(rows("cpp", "vpp-packed")))
    contest = rows("cpp", "vpp-packed", prompts=3)
    assert heading in words(drawn(contest))
    bars = shapes(drawn(contest), r"mean time to first token")
    means = [sum(filter(None, row.best.report.ttft)) / 3 for row in contest if row.best.report]
    heights = [height(shape) for _, shape in bars]
    assert heights[1] / heights[0] == pytest.approx(means[1] / means[0], abs=0.001)


def test_what_was_refused_is_left_out_and_breaks_lines() -> None:
    contest = rows("cpp", "vpp", sizes=(1, 2, 3))
    middle = [Outcome(row.outcomes[1].case, refusal="no") for row in contest]
    holed = tuple(Row((row.outcomes[0], hole, row.outcomes[2])) for row, hole in zip(contest, middle, strict=True))
    lines = [each.get("d", "") for each in drawn(holed).iter(f"{SVG}path") if each.get("stroke-width") == "1.8"]
    assert [(line.count("M"), line.count("L")) for line in lines] == [(2, 0)] * 4
    none = (Row((middle[0],)), *holed[1:])
    first = shapes(drawn(none), r"^([\w-]+), (\d+) tokens .*\n.* tokens a second")[0][0]
    assert (first[1], first[2]) == ("vpp", "6")
    assert comparison_plot(tuple(Row((hole,)) for hole in middle))


@pytest.mark.parametrize("cost", [paper_cost(4, 0.0, 0.0), paper_cost(4, 1e-9, 0.0), paper_cost(4, 1e9, 1e9)])
def test_any_costs_are_drawn(cost: CostModel) -> None:
    picture = drawn(rows("cpp", "vpp-async", "dcpp-sglang", cost=cost))
    numbers = [each.get(name, "0") for each in picture.iter() for name in ("x", "y", "width", "height")]
    assert all(number == "100%" or 0 <= float(number) < 5000 for number in numbers)


def test_text_does_not_leave_the_picture() -> None:
    picture = drawn(rows("cpp", "dcpp", "dcpp-sglang", "vpp", "vpp-async", "vpp-packed", prompts=2))
    groups = [each for each in picture.iter(f"{SVG}g") if each.get("transform")]
    places = [float(re.findall(r"[\d.]+", each.get("transform", ""))[0]) for each in groups]
    assert max(places) < 1100
    for each in picture.iter(f"{SVG}text"):
        assert float(each.get("x", "")) < 1100


@pytest.mark.parametrize("eye", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
def test_families_of_strategies_differ_for_every_eye_and_from_the_paper(eye: tuple[tuple[float, ...], ...]) -> None:
    for theme in (LIGHT, DARK):
        assert all(apart(one, other, eye) > 25 for one, other in combinations(theme.series, 2))
        assert all(contrast(each, theme.paper) > 4.5 for each in theme.series)


# Pictures in the documents


@pytest.mark.parametrize("name", ["paper", "ablation"])
def test_the_documents_pictures_are_what_their_commands_draw(name: str, tmp_path: Path) -> None:
    """Drawn anew by: python -m tests.test_comparison_plot"""
    command = commands()[name]
    target = tmp_path / "x.svg"
    assert call(*command, "-o", str(target)).exception is None
    assert target.read_text() == (ROOT / "docs" / "images" / f"{name}.svg").read_text()


def commands() -> dict[str, list[str]]:
    """The arguments of the commands in docs/paper.md, by the picture that they draw."""
    text = (ROOT / "docs" / "paper.md").read_text().replace("\\\n", "")
    found = (re.match(r"    vppc compare (.*) -o (\w+)\.svg$", line) for line in text.splitlines())
    return {match[2]: match[1].replace("examples/", f"{ROOT}/examples/").split() for match in found if match}


# The command


@pytest.fixture
def cost(tmp_path: Path) -> str:
    path = tmp_path / "cost.json"
    path.write_text(dumps(cost_json(COST)))
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(vppc, ["compare", *arguments])


SMALL = ("--strategy", "cpp", "--strategy", "vpp", "--tokens", "6", "--chunk-size", "1", "--chunk-size", "2")


def test_the_output_is_a_picture_by_its_name(cost: str, tmp_path: Path) -> None:
    contestants = [Options(strategy=strategy) for strategy in ("cpp", "vpp")]
    expected = comparison_plot(compare(cases(COST, [equal_prompts(6)], contestants, (1, 2))), "dark")
    for name in ("x.svg", "x.HTML"):
        target = tmp_path / name
        assert call("--cost", cost, *SMALL, "--theme", "dark", "-o", str(target)).exception is None
        written = target.read_text()
        assert written == expected if name == "x.svg" else expected in written
    assert written.startswith("<!DOCTYPE html>")


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    assert str(call("--cost", "missing.json", "-o", "x.pdf").exception).startswith(
        "x.pdf: -o: .pdf is no format of a comparison\n  hint: a name ending in .svg, .html, .htm, .png or .json"
    )
    assert str(call("--cost", "missing.json", "--json", "-o", "x.svg").exception) == (
        "x.svg: --json: a picture is no JSON\n  hint: leave it out, or give -o a name ending in .json"
    )


def place(picture: ElementTree.Element, what: str) -> tuple[float, float]:
    """Where the last text of these words is."""
    found = [each for each in picture.iter(f"{SVG}text") if each.text == what][-1]
    return float(found.get("x", "")), float(found.get("y", ""))


def test_charts_of_more_queues_than_fit_side_by_side_go_on_below() -> None:
    queues = [equal_prompts(tokens) for tokens in (4, 5, 6, 7, 8)]
    contest = compare(cases(COST, queues, [Options(strategy="cpp")], (1, 2)))
    (x, y), *others, fifth = (place(drawn(contest), str(tokens)) for tokens in (4, 5, 6, 7, 8))
    assert fifth == (x, y + 196)
    assert [(there > x, down) for there, down in others] == [(True, y)] * 3


def test_a_legend_of_many_contestants_goes_on_below() -> None:
    learning = [
        Options(strategy="dcpp", min_chunk=1, page_size=1, measured_time="wait", warmups=warmups)
        for warmups in range(7)
    ]
    picture = drawn(compare(cases(COST, [equal_prompts(6)], learning, (1,))))
    keys = [each.get("transform", "") for each in picture.iter(f"{SVG}g") if each.get("transform")]
    assert [re.sub(r"\S+ ", "", key) for key in keys] == ["38.00)"] * 5 + ["56.00)"] * 4
    assert keys[0] == "translate(52.00 38.00)" and keys[5] == "translate(52.00 56.00)"


def test_lines_that_lie_on_one_another_are_named() -> None:
    free = CostModel((LayerCost(4, fixed=1.0),), name="free")  # the same for every order of chunks on one rank
    contestants = [Options(strategy=name, pp=1, min_chunk=1, page_size=1) for name in ("cpp", "dcpp")]
    contest = compare(cases(free, [equal_prompts(6)], contestants, (1, 2, 3)))
    assert "at 6 one line: cpp, dcpp (offline)" in words(drawn(contest))
    assert not [each for each in words(drawn(rows("cpp", "vpp"))) if "one line" in each]


if __name__ == "__main__":
    GOLDEN.write_text(comparison_plot(golden(), "auto"), encoding="utf-8")
    for name, command in commands().items():
        assert call(*command, "-o", str(ROOT / "docs" / "images" / f"{name}.svg")).exception is None
