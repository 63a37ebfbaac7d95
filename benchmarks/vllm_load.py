"""vLLM's server with the flag under many times more than it computes at once: answers, and memory, wave after wave.

    python -m benchmarks.vllm_load [--waves 5] [--clients 300]

A wave are so many clients at once, of a server with 8 sequences at a time (``--max-num-seqs``). A third ask and wait, a
third read as it comes, and a third vanish: before there is a token, or after the first. Whoever stays must get what
the server answers to the same prompt alone. Memory is the resident set of the server, its engine and its two workers
after a wave. Exits with 1 where an answer is another, or a process has grown by more than 64 MiB since the second wave.

It needs .venv-vllm (scripts/vllm-venv) and two minutes. The model is small and has random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from vppc.render.tables import table

ROOT = Path(__file__).resolve().parents[1]
GROWTH = 64 * 2**20
"""Bytes: vLLM's own pools and Python's arenas settle slowly."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--clients", type=int, default=300, help="of a wave (default 300)")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))  # whose modules import each other
    from test_vllm_runner import MODELS, write_checkpoint
    from test_vllm_server import serving

    draw = Random(0)
    prompts = [[draw.randrange(300) for _ in range(draw.choice((3, 40, 130, 300, 700)))] for _ in range(10)]
    flag = json.dumps({"virtual_pipeline_parallel_size": 2})
    seen: list[list[int]] = []
    rows = []
    with tempfile.TemporaryDirectory() as made:
        model = str(write_checkpoint(Path(made) / "model", MODELS["llama"]))
        with serving(
            model, Path(made) / "run", "-pp", "2", "--max-num-seqs", "8", "--additional-config", flag
        ) as server:
            expected = [server.complete(prompt) for prompt in prompts]

            def client(number: int) -> bool | None:
                """Whether the answer is right, None for who vanishes."""
                which = number % len(prompts)
                match number % 6:
                    case 0 | 1:
                        return server.complete(prompts[which]) == expected[which]
                    case 2 | 3:
                        return server.stream(prompts[which]) == expected[which]
                    case 4:
                        server.give_up([*prompts[which], *[number % 300] * 1000])
                    case _:
                        server.stream(prompts[which], tokens=1000, leave=True)
                return None

            for wave in range(options.waves):
                numbers = range(wave * options.clients, (wave + 1) * options.clients)
                with ThreadPoolExecutor(options.clients) as pool:
                    answers = list(pool.map(client, numbers))
                assert server.complete(prompts[0]) == expected[0]
                seen.append([resident(pid) for pid in family(server.process.pid)])
                counts = [str(answers.count(kind)) for kind in (True, False, None)]
                rows.append([str(wave + 1), *counts, *(f"{each / 1e6:.0f} MB" for each in seen[-1])])
    processes = [f"process {number}" for number in range(len(seen[-1]))]
    print(table(["wave", "right", "wrong", "vanished", *processes], rows))
    grown = max(after - before for before, after in zip(seen[min(1, len(seen) - 1)], seen[-1], strict=True))
    wrong = any(int(row[2]) for row in rows)
    if wrong or grown > GROWTH:
        print(f"{'wrong answers; ' if wrong else ''}grown by {grown / 1e6:.0f} MB", file=sys.stderr)
    return int(wrong or grown > GROWTH)


def family(pid: int) -> list[int]:
    """A process, its children and theirs, in the order of their numbers."""
    found = {pid}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in found:
            found.add(int(folder.name))
    return sorted(found)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
