"""Time and memory of the commands as programs grow: in instructions, in ranks, and in requests.

    python -m benchmarks.scale                 some minutes; the largest file has 300 MB
    python -m benchmarks.scale --axis ranks

Every command runs in a process of its own. Seconds are of its processor, user and system, so that others on the
machine disturb little; memory is its largest resident set. "x file" is the memory of ``verify``, above
that of a program of a few instructions, over the size of the file that it reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vppc.render.tables import table

ROOT = Path(__file__).resolve().parents[1]
COST = ROOT / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json"
AXES = ("instructions", "ranks", "requests")


class Used(NamedTuple):
    """What a process took: seconds of the processor, and MB at most."""

    seconds: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s {self.megabytes:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", choices=AXES, help="one of them (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes, for a quick look (default 1)")
    options = parser.parse_args()
    for axis in AXES if options.axis is None else (options.axis,):
        with tempfile.TemporaryDirectory() as folder:
            rows = list(measured(axis, options.share, Path(folder)))
        headers = [axis, "instructions", "us each", "compile", "verify", "simulate", "file", "x file"]
        print(table(headers, rows))


def measured(axis: str, share: float, folder: Path) -> Iterator[list[str]]:
    plan = folder / "plan.json"
    command("compile", "--pp", "2", "--chunks", "2", "-o", plan)
    base = command("verify", plan).megabytes
    for size, arguments in cases(axis, share, folder):
        compiling = command("compile", *arguments, "-o", plan)
        verifying, simulating = command("verify", plan), command("simulate", plan, "--json")
        count = counted(plan)
        file = plan.stat().st_size / 1e6
        each = f"{(compiling.seconds + verifying.seconds) / count * 1e6:.1f}"
        more = f"{(verifying.megabytes - base) / file:.2f}"
        yield [f"{size:,}", f"{count:,}", each, str(compiling), str(verifying), str(simulating), f"{file:.0f} MB", more]


def cases(axis: str, share: float, folder: Path) -> Iterator[tuple[int, list[str | Path]]]:
    """(size, arguments of compile) of growing programs."""
    if axis == "instructions":
        for thousands in (62, 250, 1000, 4000):
            chunks = int(thousands * 1000 * share / 12)  # a chunk's instructions on two ranks
            yield thousands * 1000, ["--pp", "2", "--chunks", str(chunks), "--strategy", "vpp-async"]
    elif axis == "ranks":
        for pp in (2, 4, 8, 16, 32, 64):
            yield pp, ["--pp", str(pp), "--chunks", str(int(1000 * share)), "--strategy", "vpp-async"]
    else:
        for requests in (100, 1000, 10_000):
            file = folder / "requests.json"
            prompts = [
                {"prompt_tokens": 4096 + 997 * (i % 61), "arrival": 0.5 * i} for i in range(int(requests * share))
            ]
            file.write_text(json.dumps(prompts))
            yield requests, ["--pp", "4", "--requests", file, "--cost", COST]


def command(*arguments: str | Path) -> Used:
    process = subprocess.Popen(
        [sys.executable, "-m", "vppc", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert process.stderr is not None
    if said := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"vppc {' '.join(map(str, arguments))} ended with {said}: {process.stderr.read().decode()}")
    process.returncode = 0
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def counted(plan: Path) -> int:
    """The instructions in a file, without reading it as a schedule; a piece at a time, as a child that is started
    counts what this process holds as its own."""
    count, end = 0, b""
    with plan.open("rb") as stream:
        while piece := stream.read(2**20):
            count += (end + piece).count(b'{"op"')
            end = piece[-4:]
    return count


if __name__ == "__main__":
    main()
