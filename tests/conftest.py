"""How hypothesis runs, the same examples every time under ``ci`` and new ones under ``dev``; what waits for torch."""

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest
from hypothesis import settings
from process_state import changes, process_state

# No deadlines: on a busy machine an example takes as long as it takes.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("dev")

TORCH_IS_HERE = importlib.util.find_spec("torch") is not None
IMPORTS_TORCH = re.compile(r"^(import|from) (torch|runtime)\b", re.MULTILINE)
IMPORTS = re.compile(r"^(?:import|from) (?:tests\.)?(\w+)", re.MULTILINE)


def pytest_configure() -> None:
    """Ctrl-C means something here, also where a shell has started pytest in the background, ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def left_as_found() -> Iterator[None]:
    """No test changes the process of those after it: its environment is put back, and what else it leaves fails it."""
    before = process_state()
    with mock.patch.dict(os.environ):
        yield
    left = changes(before)
    assert not left, f"left behind, as it was and as it is: {left}"


left_by_a_module = pytest.fixture(left_as_found, autouse=True, scope="module")
left_by_a_test = pytest.fixture(left_as_found, autouse=True)


@pytest.fixture(autouse=True)
def stay(left_by_a_test: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that becomes another program fails in a test, rather than to take the tests with it."""

    def become(*program: object) -> NoReturn:
        raise RuntimeError(f"becomes {program}")

    monkeypatch.setattr(os, "execv", become)


@cache
def needs_torch(module: Path) -> bool:
    """Whether a module of this folder imports torch, or another one here that does."""
    text = module.read_text(encoding="utf-8")
    others = (module.with_name(f"{name}.py") for name in IMPORTS.findall(text))
    return bool(IMPORTS_TORCH.search(text)) or any(needs_torch(each) for each in others if each.exists())


class SkippedModule(pytest.Module):
    """A module of tests of the runtime on a machine that has only what the compiler needs."""

    def collect(self) -> NoReturn:
        pytest.skip("needs torch, which only the runtime does")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip, rather than fail to import, what needs torch where it is absent."""
    if TORCH_IS_HERE or not needs_torch(module_path):
        return None
    return SkippedModule.from_parent(parent, path=module_path)
