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
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_site_builds_and_all_links_and_anchors_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="scripts/docs has an environment of its own")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    build = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert build.returncode == 0, build.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:link|script)[^>]*(?:href|src)="https?://', page) == []


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
