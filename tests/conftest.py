"""How hypothesis runs, the same examples every time under ``ci`` and new ones under ``dev``; what waits for torch."""

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

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


@pytest.fixture(autouse=True)
def stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that becomes another program fails in a test, rather than to take the tests with it."""

    def become(*program: object) -> NoReturn:
        raise RuntimeError(f"becomes {program}")

    monkeypatch.setattr(os, "execv", become)


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """What a test runs leaves Ctrl-C and SIGTERM as they were, in C too, where libraries set handlers unseen."""
    before = caught()
    yield
    assert caught() == before, "a signal is not handled as it was before this test"


def caught() -> list[bool] | None:
    """Whether this process, as the kernel knows it, handles SIGINT and SIGTERM itself; None where it does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    except OSError:
        return None
    return [bool(mask >> number - 1 & 1) for number in (signal.SIGINT, signal.SIGTERM)]


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
