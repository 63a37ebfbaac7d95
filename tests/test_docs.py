"""The commands and the Python in the documents print what the documents say.

Run with REWRITE_DOCS=1 to write the commands' output anew, then read it.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.browser import MISSING, browser

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)", re.MULTILINE)  # a line that ends in a backslash goes on in the next
PYTHON = re.compile(r"(?<=```pycon\n)(.*?)(?=```)", re.DOTALL)
PAGES = [page for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]) if BLOCK.search(page.read_text())]


def output(command: str) -> str:
    shell = f'vppc() {{ "{sys.executable}" -m vppc "$@"; }}\nset -o pipefail\n{command}'
    run = subprocess.run(
        ["bash", "-c", shell],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
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


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
