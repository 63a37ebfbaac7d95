"""Damaged files, and a command that reads them: it must end with one message, soon, and in little memory.

For ``tests/test_fuzz.py``, which does it for seconds, and for ``benchmarks/fuzz.py``, which goes on for hours, led by
coverage.
"""

from __future__ import annotations

import io
import json
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from vppc.cli import main
from vppc.errors import VppcError

SECONDS = 30
"""That a small file may take. A guard against hangs, far above what the slowest takes on a busy machine."""
BYTES = 2**29
"""That the process may grow by for a small file."""

TOKENS: tuple[bytes, ...] = (
    *(b"", b"0", b"-1", b"1.5", b"-0.0", b"1e999", b"1e-400", b"2147483648", b"99999999999999999999"),
    *(b"9" * 400, b"9" * 5000, b"1000000000", b"65536", b"NaN", b"-Infinity", b"true", b"null", b'""', b"[]", b"{}"),
    *(b'"', b"\\", b"'", b"[", b"]", b"{", b"}", b",", b":", b";", b"\n", b"\r\n", b"\n\n", b"\t", b" ", b"b0", b"c0"),
    *(b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"\\ud800"', "é\u2028\u202e".encode(), b"\x1b[31m"),
    *(b"[" * 100_000, b'{"a":' * 100_000, b'"' + b"x" * 100_000, b"(" * 2000, b"\x1f\x8b\x08\0"),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        3,
        65537,
        10**9,
        2**31,
        2**53 + 1,
        2**63,
        10**400,
        1e308,
        1e-308,
        -0.5,
        0.5,
        1e18,
    ),
    *("", "x", "0", "tokens", "\ud800", "a\nb", "\x1b[31m", "nan", [], [[]], [None], [0], [1, 2, 3], ["a", 10**12]),
    *({}, {"": 0}, {"count": 1}, {"a": {"b": []}}, [[[[[[[[]]]]]]]], [{}]),
)


@dataclass(frozen=True)
class Target:
    """Files that a command reads: ``name`` is the one that is damaged, in a folder with ``beside`` (name -> bytes).

    ``use`` reads the file, or the folder that it is in, and does with what it read what people do; it returns whether
    it was accepted, by the first command where there are several.
    """

    name: str
    seeds: tuple[bytes, ...]
    use: Callable[[Path], bool]
    beside: Mapping[str, bytes] = field(default_factory=dict)


class UncaughtError(AssertionError):
    """A reader did something else than to accept a file or to refuse it in words."""


def commands(*lines: Sequence[str]) -> Callable[[Path], bool]:
    """Runs commands on the file: in their arguments FILE stands for it, DIR for its folder."""

    def use(file: Path) -> bool:
        names = {"FILE": str(file), "DIR": str(file.parent)}
        statuses = [run([names.get(word, word.replace("DIR/", f"{file.parent}/")) for word in line]) for line in lines]
        return statuses[0] == 0

    return use


def run(arguments: list[str]) -> int:
    """The exit status of a command, run in this process. Raises UncaughtError when it ends as none should."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    status: object = None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as exited:
        status = exited.code
    err.flush()
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    told = said.startswith(("vppc: ", "Usage: ")) and "Traceback" not in said
    if status not in (0, 1, 2) or (status and not told) or "memory of this" in said:
        raise UncaughtError(f"{arguments} ended with {status} and said {said[:500]!r}")
    assert isinstance(status, int)
    return status


def attempt(target: Target, data: bytes, folder: Path) -> bool:
    """Whether a target accepts ``data``, in a ``folder`` of its own.

    Raises UncaughtError, or what the reader let pass, where it neither accepts nor refuses.
    """
    file = folder / target.name
    for name, content in target.beside.items():
        (folder / name).write_bytes(content)
    file.write_bytes(data)
    with limits():
        try:
            return target.use(file)
        except VppcError as error:
            if not str(error) or error.exit_status not in (1, 2):
                raise UncaughtError(f"{error!r} says nothing") from None
            return False


@contextmanager
def limits() -> Iterator[None]:
    """Ends with MemoryError or UncaughtError what takes too much memory or time."""

    def late(*_: object) -> None:
        raise UncaughtError(f"not done after {SECONDS} s")

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Files like the seeds with some bytes, or some JSON values, changed."""
    places = st.floats(0.0, 1.0, exclude_max=True)
    edit = st.tuples(st.sampled_from(list(EDITS)), places, st.integers(0, 40), st.sampled_from(TOKENS))
    by_bytes = st.builds(edited, st.sampled_from(seeds), st.lists(edit, min_size=1, max_size=3))
    change = st.tuples(places, st.sampled_from(["value", "value", "value", "key", "drop", "double"]), places)
    by_values = st.builds(revalued, st.sampled_from(seeds), st.lists(change, min_size=1, max_size=2))
    return st.one_of(by_values, by_bytes)


EDITS: Mapping[str, Callable[[bytes, int, int, bytes], bytes]] = {
    "insert": lambda data, at, size, token: data[:at] + token + data[at:],
    "replace": lambda data, at, size, token: data[:at] + token + data[at + size :],
    "overwrite": lambda data, at, size, token: data[:at] + token + data[at + len(token) :],
    "drop": lambda data, at, size, token: data[:at] + data[at + size :],
    "double": lambda data, at, size, token: data[: at + size] + data[at:],
    "flip": lambda data, at, size, token: (
        data[:at] + bytes(each ^ 1 << size % 8 for each in data[at : at + 1]) + data[at + 1 :]
    ),
    "end": lambda data, at, size, token: data[:at] + token,
}


def edited(data: bytes, edits: Sequence[tuple[str, float, int, bytes]]) -> bytes:
    for kind, place, size, token in edits:
        data = EDITS[kind](data, int(place * (len(data) + 1)), size, token)
    return data


def revalued(data: bytes, changes: Sequence[tuple[float, str, float]]) -> bytes:
    """The JSON text, or a line of it, with values or keys replaced, dropped or doubled; of other text, a word."""
    try:
        document = json.loads(data)
    except RecursionError:
        return data
    except ValueError:
        lines = data.split(b"\n")
        at = int(changes[0][0] * len(lines))
        lines[at] = revalued(lines[at], changes) if lines[at].startswith(b"{") else reworded(lines[at], changes)
        return b"\n".join(lines)
    holder = {"": document}
    for place, kind, which in changes:
        places = list(_places(holder))
        container, key = places[int(place * len(places))]
        value = deepcopy(VALUES[int(which * len(VALUES))])
        if kind == "drop" and container is not holder:
            del container[key]
        elif kind == "double" and isinstance(container, list):
            container.insert(key, deepcopy(container[key]))
        elif kind == "key" and isinstance(container, dict) and container is not holder:
            container[str(value)[:20]] = container.pop(key)
        else:
            container[key] = value
    return json.dumps(holder[""], allow_nan=True).encode()


def reworded(line: bytes, changes: Sequence[tuple[float, str, float]]) -> bytes:
    """A line of values separated by commas, tabs or blanks with some replaced."""
    separator = next((each for each in (b",", b"\t", b" ") if each in line), b",")
    words = line.split(separator)
    for place, _, which in changes:
        words[int(place * len(words))] = TOKENS[int(which * len(TOKENS))]
    return separator.join(words)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of a document."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        for key, item in container.items() if isinstance(container, dict) else enumerate(container):
            yield container, key
            if isinstance(item, dict | list):
                waiting.append(item)


def sampled(seeds: Sequence[bytes], random: Random) -> bytes:
    """As :func:`damaged`, for a search of its own."""
    places = [random.random() for _ in range(6)]
    if random.random() < 0.5:
        kinds = ["value", "value", "key", "drop", "double"]
        return revalued(random.choice(seeds), [(places[0], random.choice(kinds), places[1])])
    return edited(
        random.choice(seeds), [(random.choice(list(EDITS)), places[0], random.randrange(40), random.choice(TOKENS))]
    )
