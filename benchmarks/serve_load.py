"""``vppc serve`` under several times more than it can take: what becomes of every request, and of the memory.

    python -m benchmarks.serve_load                       a minute
    python -m benchmarks.serve_load --waves 50 --requests 5000 --journal

Two timed ranks are sent requests, wave after wave, at so many times the rate that keeps them busy. One in ten is
cancelled a moment later, wherever it is by then; one line in fifty is no request, as of a client that dies while it
writes. Every request must get one answer: a first token, that it is cancelled, or that it is refused, since no more
than ``--queue`` may wait. Memory is the resident set after a wave, when nothing is open; it must not grow from the
second wave to the last by more than 8 MiB in any process. Exits with 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import IO, Any

from vppc.render.tables import table

ROOT = Path(__file__).resolve().parents[1]
LAYERS, PP, TOKENS = 4, 2, 100
ANSWERS = ("token", "cancelled", "refused")
GROWTH = 8 * 2**20
"""Bytes, at most, from the second wave to the last; the first fills buffers and pools."""


@dataclass(frozen=True, slots=True)
class Wave:
    """What became of a wave's requests; ``resident`` bytes of the coordinator and of each rank; ``longest`` TTFT, s."""

    requests: int
    answers: Counter[str]
    wrong: int
    longest: float
    resident: tuple[int, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waves", type=int, default=8)
    parser.add_argument("--requests", type=int, default=1000, help="of a wave (default 1000)")
    parser.add_argument("--overload", type=float, default=10.0, help="times the rate they can take (default 10)")
    parser.add_argument("--queue", type=int, default=32, help="requests that may wait (default 32)")
    parser.add_argument("--journal", action="store_true", help="keep a journal, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal" if options.journal else None
        waves = list(
            served(Path(folder), options.waves, options.requests, options.overload, options.queue, journal=journal)
        )
    headers = [
        "wave",
        "requests",
        *ANSWERS,
        "wrong lines",
        "longest TTFT",
        "coordinator",
        *(f"rank {r}" for r in range(PP)),
    ]
    rows = [
        [
            *(str(number), f"{wave.requests:,}", *(f"{wave.answers[kind]:,}" for kind in ANSWERS), f"{wave.wrong:,}"),
            *(f"{wave.longest:.2f} s", *(f"{each / 1e6:.1f} MB" for each in wave.resident)),
        ]
        for number, wave in enumerate(waves, 1)
    ]
    print(table(headers, rows))
    grown = growth(waves)
    if grown > GROWTH:
        print(f"a process has grown by {grown / 1e6:.1f} MB since the second wave", file=sys.stderr)
    return int(grown > GROWTH)


def growth(waves: list[Wave]) -> int:
    """Bytes by which a process has grown, at most, from the second wave to the last."""
    return max(after - before for before, after in zip(waves[1].resident, waves[-1].resident, strict=True))


def served(
    folder: Path, waves: int, requests: int, overload: float, queue: int, *, seconds: float = 0.01, journal: Path | None
) -> Iterator[Wave]:
    """Wave after wave on one server, which takes ``seconds`` for a request.

    Raises RuntimeError where a request gets no answer, or two.
    """
    cost = folder / "cost.json"
    layer = {"count": LAYERS, "per_token": seconds * PP / (LAYERS * TOKENS)}
    cost.write_text(json.dumps({"format": "vppc.cost", "version": 1, "layers": [layer]}))
    command = [sys.executable, "-m", "vppc", "serve", "--pp", str(PP), "--cost", str(cost), "--runner", "timed"]
    command += ["--chunk-size", str(TOKENS), "--max-queued", str(queue), "--drift", "1000"]
    if journal is not None:
        command += ["--journal", str(journal)]
    with (
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
        _killed(process),
    ):
        assert process.stdin is not None and process.stdout is not None
        draw, say = Random(0), process.stdin
        heard: SimpleQueue[str] = SimpleQueue()  # read at once: a server ends whose answers nobody takes
        reader = threading.Thread(target=_read, args=(process.stdout, heard), daemon=True)
        reader.start()
        _ask(say, {"id": "first", "prompt_tokens": TOKENS})
        heard.get()  # the ranks run
        pids = [process.pid, *children(process.pid)]
        for number in range(waves):
            sent = _send(say, draw, number, requests, seconds / overload)
            yield _wave(heard, sent, pids)
        say.close()
        reader.join()
        if process.wait():
            raise RuntimeError(f"the server has ended with {process.returncode}")


@contextmanager
def _killed(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


def _send(say: IO[str], draw: Random, wave: int, requests: int, gap: float) -> list[str]:
    """Ask for a wave's requests, ``gap`` seconds apart in the mean; their ids."""
    ids: list[str] = []
    when = time.monotonic()
    for number in range(requests):
        ids.append(f"{wave}-{number}")
        _ask(say, {"id": ids[-1], "prompt_tokens": draw.randint(TOKENS // 2, TOKENS * 3 // 2)})
        if draw.random() < 0.1:
            _ask(say, {"cancel": draw.choice(ids[-20:])})
        if draw.random() < 0.02:
            say.write('{"id": "x", "prompt_to\n')
        when += draw.expovariate(1 / gap)
        if (early := when - time.monotonic()) > 0:
            say.flush()
            time.sleep(early)
    say.flush()
    return ids


def _read(said: IO[str], heard: SimpleQueue[str]) -> None:
    for line in said:
        heard.put(line)
    heard.put("")


def _ask(say: IO[str], document: dict[str, Any]) -> None:
    say.write(json.dumps(document) + "\n")
    say.flush()


def _wave(answered: SimpleQueue[str], sent: list[str], pids: list[int]) -> Wave:
    open_ids, answers, wrong, longest = set(sent), Counter[str](), 0, 0.0
    while open_ids:
        heard = json.loads(answered.get() or "null")
        if heard is None:
            raise RuntimeError(f"the server has ended with {len(open_ids)} requests open")
        if "error" in heard:  # of a line that is none, or a request to cancel what is through
            wrong += 1
            continue
        if heard["id"] not in open_ids:
            raise RuntimeError(f"{heard['id']} is answered again: {heard}")
        open_ids.remove(heard["id"])
        (kind,) = [kind for kind in ANSWERS if kind in heard]
        answers[kind] += 1
        longest = max(longest, heard.get("ttft", 0.0))
    return Wave(len(sent), answers, wrong, longest, tuple(map(resident, pids)))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
