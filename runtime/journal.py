"""The journal: what each process did when, as a folder with the schedule and one JSONL file a process.

A header line, then a line an instruction: ``i``, ``op``, ``start``, ``end``, for transfers also ``posted``; seconds
on the common clock, from the start of the run. A transfer's line is written when its WAIT returns, which is the
first that the rank knows of its end; so lines come in the order in which instructions end, not in program order.
"""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path

from runtime.clock import Clock
from vppc.ir.instruction import OPS, RECV, SEND, WAIT, Program

FORMAT, VERSION = "vppc.journal", 1
_BATCH = 8192


class Journal:
    """One process's journal, written in batches so that it takes no memory to speak of."""

    def __init__(self, folder: Path, program: Program, rank: int, tp_rank: int, digest: str, clock: Clock) -> None:
        self.program = program
        self.file = (folder / f"rank-{rank}-tp-{tp_rank}.jsonl").open("w", encoding="utf-8")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "rank": rank,
            "tp_rank": tp_rank,
            "digest": digest,
            "clock_offset": clock.offset,
            "clock_uncertainty": clock.uncertainty,
        }
        self.file.write(json.dumps(header) + "\n")
        self.times = array("d")  # start and end of each instruction since the last batch
        self.first = 0
        self.posted: dict[int, float] = {}

    def add(self, start: float, end: float) -> None:
        """The next instruction ran from ``start`` to ``end``."""
        times = self.times
        times.append(start)
        times.append(end)
        if len(times) >= 2 * _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what has been added."""
        times = self.times
        lines: list[str] = []
        for index, start, end in zip(range(self.first, len(self.program)), times[::2], times[1::2], strict=False):
            op, _, _, x, _, _ = self.program.row(index)
            if op in (SEND, RECV):
                self.posted[index] = start
                continue
            if op == WAIT:
                posted = self.posted.pop(x)
                name = OPS[self.program.row(x)[0]]
                lines.append(
                    f'{{"i": {x}, "op": "{name}", "start": {posted:.7f}, "end": {end:.7f}, "posted": {posted:.7f}}}\n'
                )
            lines.append(f'{{"i": {index}, "op": "{OPS[op]}", "start": {start:.7f}, "end": {end:.7f}}}\n')
        self.file.writelines(lines)
        self.first += len(times) // 2
        del times[:]

    def close(self) -> None:
        self.flush()
        self.file.close()


def make_folder(folder: Path, schedule_file: Path) -> None:
    """Make a journal's folder, with the schedule in it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(schedule_file, folder / "schedule.json")
