"""That what a test leaves in its process is seen: else no test would be blamed for what it does to the next."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_state import changes, process_state


def folder() -> Callable[[], None]:
    before = Path.cwd()
    os.chdir("/")
    return lambda: os.chdir(before)


def handler() -> Callable[[], None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGUSR1, before) and None


def blocked() -> Callable[[], None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    return lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before) and None


def limit() -> Callable[[], None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def path() -> Callable[[], None]:
    sys.path.append("left/behind")
    return lambda: sys.path.remove("left/behind")


@contextmanager
def left(by: Callable[[], Callable[[], None]]) -> Iterator[None]:
    undo = by()
    try:
        yield
    finally:
        undo()


@pytest.mark.parametrize(
    ("by", "seen"),
    [
        (folder, {"the working directory"}),
        (handler, {"handlers of signals: SIGUSR1", "signals to the kernel: SigIgn"}),
        (blocked, {"signals to the kernel: SigBlk"}),
        (limit, {f"limits: {resource.RLIMIT_NOFILE}"}),
        (path, {"sys.path"}),
    ],
)
def test_what_is_left_is_seen(by: Callable[[], Callable[[], None]], seen: set[str]) -> None:
    before = process_state()
    with left(by):
        assert set(changes(before)) == seen
    assert changes(before) == {}


@pytest.mark.parametrize("value", ["first", "second"])
def test_the_environment_is_put_back(value: str) -> None:
    assert os.environ.setdefault("LEFT_BEHIND", value) == value
