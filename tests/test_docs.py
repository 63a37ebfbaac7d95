"""The commands and the Python in the documents print what the documents say; those without output run, too.

Run with REWRITE_DOCS=1 to write the commands' output anew, then read it.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import shown_commands as shown
from tests.browser import MISSING, browser
from tests.journals import write_journal
from tests.plans import deepseek
from tests.shown_commands import NOT_RUN, inline_commands, shown_commands, unknown_names, why_not_run
from vppc.analysis.timing import simulate
from vppc.costs.document import parse_cost
from vppc.costs.model import OpCosts

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)", re.MULTILINE)  # a line that ends in a backslash goes on in the next
PYTHON = re.compile(r"(?<=```pycon\n)(.*?)(?=```)", re.DOTALL)
PAGES = [page for page in shown.PAGES if BLOCK.search(page.read_text())]
PAGES_WITH_MORE = [
    page for page in shown.PAGES if any(why_not_run(each) is None for each in shown_commands(page.read_text()))
]


def shell(command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    programs = (("vppc", "-m vppc"), ("python", ""))
    functions = "".join(f'{name}() {{ "{sys.executable}" {words} "$@"; }}\n' for name, words in programs)
    said = {"NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", f"{functions}set -o pipefail\n{command}"],
        cwd=folder,
        env={**os.environ, **said},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def output(command: str) -> str:
    run = shell(command)
    return run.stdout + run.stderr


def filled(block: str) -> str:
    return "".join(f"$ {command}\n{output(command)}" for command in COMMAND.findall(block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.skipif(shutil.which("bash") is None, reason="the documents' commands are for bash")
def test_commands_print_what_the_page_says(page: Path) -> None:
    said = page.read_text(encoding="utf-8")
    printed = BLOCK.sub(lambda found: filled(found[1]), said)
    if "REWRITE_DOCS" in os.environ:
        page.write_text(printed, encoding="utf-8")
    assert printed == said or "REWRITE_DOCS" in os.environ


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A folder with what a reader of the documents has: the examples, a model's config, measured times and a run."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "path" / "to").mkdir(parents=True)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 4096}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, **sizes}
    (tmp_path / "path" / "to" / "config.json").write_text(json.dumps(config))
    chunks = ((n, p, 0.01 + 1e-5 * n + 1e-9 * n * p) for n in (64, 512, 2048) for p in (0, 1000, 5000))
    (tmp_path / "times.csv").write_text(table("chunk_tokens,prefix_tokens,seconds", chunks))
    (tmp_path / "links.csv").write_text(table("tokens,seconds", ((n, 1e-4 + 1e-8 * n) for n in (64, 512, 2048))))
    schedule = deepseek("vpp-packed", (20000, 9000), 2048)
    cost = parse_cost(schedule.extra["cost"])
    write_journal(tmp_path / "out" / "run", schedule, simulate(schedule, OpCosts.of(schedule, cost)))
    return tmp_path


def table(header: str, rows: Iterable[tuple[float, ...]]) -> str:
    return "".join(f"{line}\n" for line in (header, *(",".join(map(str, row)) for row in rows)))


@pytest.mark.parametrize("page", PAGES_WITH_MORE, ids=lambda page: page.name)
@pytest.mark.skipif(shutil.which("bash") is None, reason="the documents' commands are for bash")
def test_commands_without_output_run_or_are_listed_with_the_reason(page: Path, reader: Path) -> None:
    for command in shown_commands(page.read_text(encoding="utf-8")):
        if why_not_run(command) is None:
            run = shell(command, reader)
            assert run.returncode == 0, f"{command}\n{run.stderr}"


def test_commands_name_what_is_there() -> None:
    """In blocks and in sentences, also those that are not run."""
    texts = [page.read_text(encoding="utf-8") for page in shown.PAGES]
    commands = [command for text in texts for command in (*shown_commands(text), *inline_commands(text))]
    commands += [command for text in texts for block in BLOCK.findall(text) for command in COMMAND.findall(block)]
    assert [(command, list(names)) for command in commands if (names := tuple(unknown_names(command)))] == []


def test_every_reason_for_not_running_a_command_has_one() -> None:
    commands = [command for page in shown.PAGES for command in shown_commands(page.read_text(encoding="utf-8"))]
    assert [each for each in NOT_RUN if not any(re.search(each, command) for command in commands)] == []


def test_a_command_is_found_wherever_it_is_shown_and_so_is_what_it_names_in_vain() -> None:
    text = (
        "Text `vppc show --colour x`:\n\n    srun -N 2 vppc-run plan.json   # on two nodes\n    rank 1 is dead\n\n"
        "* item\n\n"
        "    ```sh\n    vppc plot plan.json \\\n        --heigth 3\n    ```\n\n```\npython -m benchmarks.x\n```\n"
    )
    found = list(shown_commands(text))
    assert found == ["vppc plot plan.json  --heigth 3", "python -m benchmarks.x", "srun -N 2 vppc-run plan.json"]
    assert [why_not_run(command) for command in found] == [None, "it measures or draws for minutes", None]
    assert inline_commands(text) == ["vppc show --colour x"]
    names = [name for command in (*found, *inline_commands(text)) for name in unknown_names(command)]
    assert names == ["--heigth", "benchmarks.x", "--colour"]


def test_python_prints_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = "\n".join(PYTHON.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8")))
    run = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(said, {}, "api.md", None, 0))
    assert run.attempted > 20
    assert run.failed == 0


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; building fails where a link or an anchor leads nowhere."""
    pytest.importorskip("mkdocs", reason="scripts/docs has an environment of its own")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    build = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert build.returncode == 0, build.stderr
    return folder


@pytest.mark.slow
def test_no_page_of_the_site_asks_for_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="https?://', text) == [], page.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["schedule", "segment", "cost"])
def test_the_site_has_the_schemas_and_links_to_them(site: Path, name: str) -> None:
    published = (site / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    assert published == output(f"vppc schema {name}")
    assert f'href="schemas/{name}.json"' in (site / "formats.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_pages_fit_a_phone_and_are_searched_from_a_folder(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as driver:
        narrow = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        for page in sorted(site.glob("*.html")):
            if page.name != "404.html":  # its links begin at the root of a server
                driver.get(page.as_uri())
                assert driver.execute_script("return document.documentElement.scrollWidth") <= 400, page.name
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.get((site / "index.html").as_uri())
        query = driver.find_element("css selector", "input.md-search__input")
        query.click()
        query.send_keys("rendezvous")
        for _ in range(100):
            if "The idea" in (found := driver.find_element("css selector", ".md-search-result__list").text):
                break
            time.sleep(0.1)
        assert "The idea" in found
        assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("page", shown.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
