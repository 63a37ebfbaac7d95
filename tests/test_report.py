"""Reports: pages that hold everything they need, say what the numbers are, and work in a real browser."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from tests.browser import MISSING, browser
from tests.journals import write_journal
from tests.plans import DEEPSEEK, deepseek, paper, price
from tests.plans import compiled as made
from tests.serving_streams import stream
from vppc import __version__
from vppc.analysis.breakdown import breakdown
from vppc.analysis.memory import check_memory, known_memory, memory_line
from vppc.analysis.timing import simulate
from vppc.analysis.work import compute_parts
from vppc.cli import main, vppc
from vppc.compiler import paper_cost
from vppc.costs.devices import DEVICES
from vppc.costs.document import parse_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.explain import sweep
from vppc.ir.document import schedule_text
from vppc.ir.schedule import Request, Schedule
from vppc.models import load_model
from vppc.render.palette import DARK
from vppc.render.tables import percent, seconds
from vppc.serving.batching import Limits

pytest.importorskip("bokeh", reason="the charts need Bokeh")
from vppc.render.html_report.charts import PLAIN


def saved(folder: Path, schedule: Schedule) -> str:
    file = folder / "plan.json"
    file.write_text("".join(schedule_text(schedule)))
    return str(file)


def written(folder: Path, *arguments: str) -> Path:
    page = folder / "report.html"
    shown = CliRunner().invoke(vppc, ["report", *arguments, "-o", str(page)])
    assert shown.exit_code == 0, shown.output
    return page


def body(page: Path) -> str:
    """The page's own HTML, without the charts' scripts."""
    return re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)


def test_a_page_says_what_the_schedule_comes_to(tmp_path: Path) -> None:
    schedule = deepseek("vpp-packed", (40000, 30000), 8192)
    page = body(written(tmp_path, saved(tmp_path, schedule), "--title", "two prompts"))
    priced = price(schedule)
    assert "<h1>two prompts</h1>" in page
    assert f"<b>{seconds(priced.makespan)}</b>makespan" in page
    assert f"<b>{percent(priced.efficiency)}</b>efficiency" in page
    assert f"<b>{seconds(priced.bound.seconds)}</b>lower bound of any order" in page
    for rank in priced.ranks:
        assert f'<td class="n">{seconds(rank.compute)}</td>' in page
    for heading in ("Timeline", "Where the time goes", "What is critical", "What would help", "Memory a rank"):
        assert f"<h2>{heading}</h2>" in page
    assert "deepseek-v3.1-910c-tp8" in page


def test_a_page_says_which_commands_made_it_and_its_schedule(tmp_path: Path) -> None:
    schedule = paper("cpp", 2)
    said = {"command": "vppc compile --requests 'a & b'", "compiler": "vppc 0.0", "weight": 3}
    file = saved(tmp_path, replace(schedule, extra={**schedule.extra, "provenance": said}))
    page = body(written(tmp_path, file, "--no-try"))
    for name, value in (
        ("schedule&#x27;s command", "vppc compile --requests &#x27;a &amp; b&#x27;"),
        ("schedule&#x27;s compiler", "vppc 0.0"),
        ("schedule&#x27;s weight", "3"),
        ("page&#x27;s command", f"vppc report {file} --no-try"),
        ("page&#x27;s version", f"vppc {__version__}"),
    ):
        assert f"<td>{name}</td><td>{value}</td>" in page


def test_a_page_has_the_memory_that_the_schedule_says(tmp_path: Path) -> None:
    spec = load_model("deepseek-v3.1")
    schedule = deepseek("vpp-packed", (40000,), 8192)
    fitted = check_memory(schedule, spec, DEVICES["910c"], tp=8, ep=8, weight_dtype="w8a8")
    page = body(written(tmp_path, saved(tmp_path, fitted), "--no-try"))
    known = known_memory(fitted)
    for rank in known:
        for value in (rank.kv, rank.total, rank.free):
            assert f'<td class="n">{value / 2**30:.2f}</td>' in page
    assert f"GiB on each device of a rank: {memory_line(known)}." in page


def test_a_page_asks_for_nothing(tmp_path: Path) -> None:
    page = written(tmp_path, saved(tmp_path, paper("vpp", 4))).read_text()
    tags = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page)
    assert [tag for tag in tags if re.search(r"\b(src|href)=(?!.?data:)", tag)] == []
    assert len(page) < 2_000_000


def test_what_names_say_is_no_html(tmp_path: Path) -> None:
    schedule = paper("vpp", 4)
    evil = replace(schedule.requests[0], id="<script>alert(1)</script>")
    page = written(tmp_path, saved(tmp_path, replace(schedule, requests=(evil,))), "--title", "<b>").read_text()
    assert "<script>alert" not in page
    assert "<h1>&lt;b&gt;</h1>" in page


def test_names_that_are_no_unicode_are_shown_escaped(tmp_path: Path) -> None:
    schedule = paper("vpp", 4)
    odd = replace(schedule.requests[0], id="\ud800")
    file = tmp_path / os.fsdecode(b"plan\xff.json")
    file.write_text("".join(schedule_text(replace(schedule, requests=(odd,)))), errors="backslashreplace")
    page = body(written(tmp_path, str(file), "--title", os.fsdecode(b"title\xff")))
    assert "<h1>title\\udcff</h1>" in page


def test_the_page_of_a_run_has_the_plan_beside_it(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 4)
    costs = OpCosts.of(schedule, parse_cost(schedule.extra["cost"]))
    slow = replace(costs, seconds=[1.5 * each for each in costs.seconds])
    page = body(written(tmp_path, str(write_journal(tmp_path / "run", schedule, simulate(schedule, slow)))))
    assert "<h2>Plan and fact</h2>" in page
    assert "forwards took 1.500 of what was planned" in page
    assert "<h2>What would help</h2>" not in page


def test_a_run_without_costs_has_no_prices(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 3)
    timing = simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))
    bare = replace(schedule, extra={key: value for key, value in schedule.extra.items() if key != "cost"})
    page = body(written(tmp_path, str(write_journal(tmp_path / "run", bare, timing))))
    assert f"<b>{seconds(price(schedule).makespan)}</b>makespan" in page
    assert "<h2>Timeline</h2>" in page
    assert "efficiency" not in page


def test_what_there_is_none_of_is_not_drawn(tmp_path: Path) -> None:
    """One stage: nothing is transferred, and its one layer cannot be folded. Of a prompt given up, no first token."""
    one = written(
        tmp_path, saved(tmp_path, made("cpp", (512,), 1, paper_cost(1, 1e-6, 0.0), chunk_size=256))
    ).read_text()
    two = written(
        tmp_path, saved(tmp_path, made("cpp", (512,), 2, paper_cost(4, 1e-6, 0.1), chunk_size=256))
    ).read_text()
    for drawn in ('"value":"transfer"', "vpp-async", "</b>first token, mean"):
        assert drawn in two
    assert '"value":"transfer"' not in one and "vpp-async" not in one
    each = stream("cpp", 2, Limits(chunk_size=8))
    each.compiler.add(Request("given up", 80), 0.0)
    each.advance(0.0)
    each.compiler.cancel("given up", 0.1)
    page = written(tmp_path, saved(tmp_path, each.close())).read_text()
    assert "</b>makespan" in page and "first token, mean" not in page


@pytest.fixture(scope="module")
def comparison() -> str:
    options = ["--tokens", "32K", "--chunk-size", "8192", "--chunk-size", "16384", "--strategy", "cpp"]
    shown = CliRunner().invoke(
        vppc, ["compare", "--cost", str(DEEPSEEK), *options, "--strategy", "vpp-async", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_the_page_of_a_comparison(tmp_path: Path, comparison: str) -> None:
    file = tmp_path / "compare.json"
    file.write_text(comparison)
    page = body(written(tmp_path, str(file)))
    best = [min(outcome["makespan"] for outcome in row["outcomes"]) for row in json.loads(comparison)["rows"]]
    assert "one prompt of 32,768 tokens, deepseek-v3.1-910c-tp8" in page
    assert "<td>cpp</td>" in page
    assert f'<td class="n">{seconds(best[0])}</td>' in page
    assert f'<td class="n">{100 * (best[0] / best[1] - 1):+.1f}%</td>' in page


def test_queues_and_costs_of_one_name_are_compared_apart(tmp_path: Path, comparison: str) -> None:
    document = json.loads(comparison)
    first, second = document["rows"]
    queues = ("2,048 + 1,024", "2,048 + 512")
    apart = [{**row, "queue": queue, "prompts": 2} for queue in queues for row in (first, second)]
    document["rows"] = [*apart, first, second, first, second]  # the last four: of two cost files of one name
    file = tmp_path / "compare.json"
    file.write_text(json.dumps(document))
    page = body(written(tmp_path, str(file)))
    headings = re.findall("<h2>(.*?), deepseek-v3.1-910c-tp8</h2>", page)
    lengths = "2 prompts of up to 32,768 tokens"
    assert headings == [*(f"{queue}: {lengths}" for queue in queues), *["one prompt of 32,768 tokens"] * 2]
    assert page.count("<td>cpp</td>") == page.count("<td>vpp-async</td>") == 4


def test_a_queue_that_no_strategy_has_room_for_is_said_to_be_refused(tmp_path: Path, comparison: str) -> None:
    document = json.loads(comparison)
    refused = [{"chunk_size": size, "refused": "no room"} for size in (8192, 16384)]
    none = [{**row, "tokens": 65536, "best_chunk_size": None, "outcomes": refused} for row in document["rows"]]
    for number, rows in enumerate(([*document["rows"], *none], none)):
        file = tmp_path / f"compare-{number}.json"
        file.write_text(json.dumps({**document, "rows": rows}))
        page = body(written(tmp_path, str(file)))
        assert "<h2>one prompt of 65,536 tokens, deepseek-v3.1-910c-tp8</h2>" in page
        assert page.count('<td class="n">refused</td>') == 2
        assert page.count("<p>cpp is refused: no room</p>") == 1


def test_the_page_of_a_tuning(tmp_path: Path) -> None:
    cost = ["--cost", str(DEEPSEEK), "--tokens", "16K", "--effort", "0.1", "--placement", "v"]
    shown = CliRunner().invoke(vppc, ["tune", "--pp", "2", *cost, "--json"])
    assert shown.exit_code == 0, shown.output
    file = tmp_path / "tune.json"
    file.write_text(shown.stdout)
    [best] = json.loads(shown.stdout)["placements"]
    page = body(written(tmp_path, str(file)))
    assert f"<b>{seconds(best['makespan'])}</b>makespan" in page
    assert "<td>v, 2 a rank</td>" in page
    assert "<h2>Advice</h2>" not in page
    assert "<td>tuning&#x27;s costs</td><td>deepseek-v3.1-910c-tp8</td>" in page
    file.write_text(json.dumps({**json.loads(shown.stdout), "advice": ["Do not <do> it.", "Never."]}))
    assert "<h2>Advice</h2>\n<p>Do not &lt;do&gt; it.</p><p>Never.</p>\n" in body(written(tmp_path, str(file)))


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [("tokens", "many", "rows[1].tokens"), ("outcomes", [{"chunk_size": 1, "ranks": []}], "rows[1].outcomes[0].ranks")],
    ids=["a length", "no ranks"],
)
def test_a_wrong_comparison_is_refused_with_its_place(
    tmp_path: Path, comparison: str, capsys: pytest.CaptureFixture[str], key: str, value: object, place: str
) -> None:
    document = json.loads(comparison)
    document["rows"][1][key] = value
    file = tmp_path / "compare.json"
    file.write_text(json.dumps(document))
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(file)])
    assert stopped.value.code == 2
    assert place in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"pp": 2, "rows": []}, "rows: compares nothing"),
        ({"pp": 2, "placements": [], "advice": []}, "placements: has found nothing"),
        ({"pp": 2}, 'the key "format" is missing\n  hint: "format": "vppc.schedule"'),
    ],
    ids=["rows", "placements", "neither"],
)
def test_a_study_of_nothing_is_refused(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps(document))
    refused = CliRunner().invoke(vppc, ["report", str(file)])
    assert str(refused.exception) == f"{file}: {message}"


def test_without_bokeh_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        main(["report", saved(tmp_path, paper("cpp", 2))])
    assert stopped.value.code == 2
    assert "pip install 'vppc[report]'" in capsys.readouterr().err


def test_the_parts_of_compute_add_up_to_it() -> None:
    schedule = paper("vpp", 3)
    kinds = (LayerCost(2, 0.5, 0.25, 1.0, 0.125), LayerCost(2, 1.0, 0.5, 0.25, topk=1, indexer_per_pair=0.5))
    cost = CostModel(kinds, embed=Linear(0.5, 0.25), head=Linear(1.0, 2.0), launch=0.125)
    costs = OpCosts.of(schedule, cost)
    ranks = breakdown(schedule, simulate(schedule, costs), costs)
    for parts, rank in zip(compute_parts(schedule, cost), ranks, strict=True):
        assert sum(parts.values()) == pytest.approx(rank.compute)
        assert len([each for each in parts.values() if each]) >= 4


def test_the_sweep_prices_what_compile_makes() -> None:
    schedule = deepseek("vpp-async", (40000,), 8192)
    swept = {
        (each.strategy, each.chunk_size): each.outcome for each in sweep(schedule, parse_cost(schedule.extra["cost"]))
    }
    again = swept["vpp-async", 8192]
    assert again is not None
    assert again.makespan == price(schedule).makespan
    straight = swept["cpp", 16384]
    assert straight is not None
    assert straight.makespan == price(deepseek("cpp", (40000,), 16384)).makespan


# In a browser

PLOT = """
const all = [], walk = view => { all.push(view); for (const each of view.child_views || []) walk(each) }
for (const root of Bokeh.index.roots) walk(root)
const plot = all.find(view => view.model.name == "timeline")
const box = plot.frame.bbox, place = plot.el.getBoundingClientRect(), range = plot.model.x_range
return {left: place.left + box.left, top: place.top + box.top, width: box.width, height: box.height,
        start: range.start, end: range.end,
        transfers: plot.model.renderers.find(each => each.glyph.type == "Segment").glyph.line_alpha.value,
        edges: plot.model.renderers.find(each => each.glyph.type == "Quad" && "full" in each.data_source.data)
                   .glyph.line_alpha.value,
        labels: plot.model.renderers.filter(each => each.glyph.type == "Text")
                    .flatMap(each => [...each.data_source.data.text])}
"""
TIPS = """
const found = [], walk = root => { for (const each of root.querySelectorAll("*")) {
  if (each.classList.contains("bk-Tooltip"))
    found.push(...[...each.shadowRoot.children].filter(part => part.tagName != "STYLE").map(part => part.innerText))
  if (each.shadowRoot) walk(each.shadowRoot)
} }
walk(document)
return found.join("\\n").split("\\n").filter(line => line.trim())
"""
IDLE = "return window.Bokeh !== undefined && Bokeh.documents.length > 0 && Bokeh.documents.every(each => each.is_idle)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if MISSING:
        pytest.skip(MISSING)
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def opened(driver: Any, page: Path) -> None:
    """Open a page and wait for its charts to be drawn."""
    driver.get_log("performance")
    driver.get_log("browser")
    driver.get(page.as_uri())
    until(lambda: driver.execute_script(IDLE))


def until(holds: Any) -> Any:
    """Wait for something to hold, twenty seconds at most."""
    for _ in range(200):
        if found := holds():
            return found
        time.sleep(0.1)
    pytest.fail("it never comes to that")


def hover(driver: Any, x: float, y: float) -> list[str]:
    """What the timeline says of a place, in parts of its width and height."""
    from selenium.webdriver.common.action_chains import ActionChains

    plot = driver.execute_script(PLOT)
    actions = ActionChains(driver)
    actions.w3c_actions.pointer_action.move_to_location(
        int(plot["left"] + x * plot["width"]), int(plot["top"] + y * plot["height"])
    )
    actions.perform()
    found: list[str] = until(lambda: driver.execute_script(TIPS))
    return found


@pytest.mark.slow
def test_a_browser_shows_the_page_without_a_network(chromium: Any, tmp_path: Path) -> None:
    """Two ranks, three chunks: rank 0 is busy until 12 of 18 s; rank 1 waits 4 to 6 s for C1."""
    page = written(tmp_path, saved(tmp_path, paper("cpp", 3)))
    opened(chromium, page)
    assert [entry for entry in chromium.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == []
    events = (json.loads(entry["message"])["message"] for entry in chromium.get_log("performance"))
    asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome"))] == []
    assert page.as_uri() in asked
    assert hover(chromium, 0.5, 0.25)[:3] == [
        "C2 s0 on rank 0, layers 0 to 1",
        "r0: 1 token behind 2",
        "6 s to 12 s: 6 s",
    ]
    assert hover(chromium, 5 / 18, 0.75)[:3] == [
        "rank 1 waits for the input of C1 s1 from rank 0, which runs C1 s0 until 6 s",
        "imbalance, in steady",
        "4 s to 6 s: 2 s",
    ]
    until(lambda: "C2 s0" in chromium.execute_script(PLOT)["labels"])
    assert chromium.execute_script(PLOT)["transfers"] == PLAIN


PAINTED = """
const all = [...Bokeh.documents[0]._all_models.values()], plot = all.find(model => model.name == "timeline")
return [plot.title.text_color, plot.below[0].major_label_text_color,
        getComputedStyle(document.querySelector("section")).backgroundColor]
"""


@pytest.mark.slow
def test_the_page_follows_the_readers_scheme_and_is_light_in_print(chromium: Any, tmp_path: Path) -> None:
    def prefers(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    light, dark = ["#444444", "#444444", "rgb(255, 255, 255)"], [DARK.ink, DARK.ink, "rgb(22, 27, 34)"]
    page = written(tmp_path, saved(tmp_path, paper("cpp", 3)))
    prefers("dark")
    try:
        opened(chromium, page)
        until(lambda: chromium.execute_script(PAINTED) == dark)
        prefers("light")
        until(lambda: chromium.execute_script(PAINTED) == light)
        prefers("dark")
        until(lambda: chromium.execute_script(PAINTED) == dark)
        chromium.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert chromium.execute_script(PAINTED)[:2] == light[:2]
        chromium.execute_script("dispatchEvent(new Event('afterprint'))")
        assert chromium.execute_script(PAINTED) == dark
    finally:
        prefers("light")


@pytest.mark.slow
def test_five_thousand_operations_zoom(chromium: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    schedule = deepseek("vpp-packed", (524288, 524288), 1664, 4)
    assert len(schedule.chunks) * len(schedule.stages) > 5000
    opened(chromium, written(tmp_path, saved(tmp_path, schedule), "--no-try"))
    assert [entry for entry in chromium.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")] == []
    plot = chromium.execute_script(PLOT)
    assert (plot["start"], plot["end"]) == (0, pytest.approx(price(schedule).makespan))
    assert plot["labels"] == []
    assert until(lambda: chromium.execute_script(PLOT)["transfers"]) < PLAIN / 4  # else they would be all that is seen
    until(lambda: chromium.execute_script(PLOT)["edges"] == 0)  # nor these
    middle = int(plot["left"] + plot["width"] / 2), int(plot["top"] + plot["height"] / 2)
    for _ in range(3):
        ActionChains(chromium).scroll_from_origin(ScrollOrigin.from_viewport(*middle), 0, -600).perform()
    until(lambda: chromium.execute_script(PLOT)["labels"])
    zoomed = chromium.execute_script(PLOT)
    assert 0 < zoomed["end"] - zoomed["start"] < plot["end"] / 10
    assert zoomed["transfers"] > 2 * plot["transfers"]
    assert zoomed["edges"] == 1
    assert (zoomed["start"] + zoomed["end"]) / 2 == pytest.approx(plot["end"] / 2, rel=0.01)


def test_too_large_a_schedule_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for work in ("check", "planned"):
        monkeypatch.setattr(f"vppc.cli.runs.{work}", mock.Mock(side_effect=AssertionError(work)))
    with pytest.raises(SystemExit) as stopped:
        main(["report", saved(tmp_path, paper("vpp", 5001))])
    assert stopped.value.code == 2
    assert "20,004 operations are too many for a page" in capsys.readouterr().err
