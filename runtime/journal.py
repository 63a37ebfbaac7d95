"""The journal: what each process did when, as a folder with the schedule and one JSONL file a process.

A header line, then a line an instruction: ``i``, ``op``, ``start``, ``end``, for transfers also ``posted``; seconds
on the common clock, from the start of the run. A transfer's line is written when its WAIT returns, which is the
first that the rank knows of its end; so lines come in the order in which instructions end, not in program order.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from runtime.clock import Clock
from vppc.errors import InputError
from vppc.ir.instruction import OPS, RECV, SEND, WAIT, Program

FORMAT, VERSION = "vppc.journal", 1
_NAME = re.compile(r"rank-(\d+)-tp-(\d+)")


class Journal:
    """One process's journal. Times are kept as numbers, 16 bytes an instruction, and written when the run is over.

    Writing in between would take time from the run. :meth:`close` may be called from another thread, in the middle
    of a run that has failed: what was done by then is written.
    """

    def __init__(self, folder: Path, program: Program, rank: int, tp_rank: int, digest: str, clock: Clock) -> None:
        self.program, self.clock = program, clock
        self.origin = 0.0
        """When the run started, on the common clock."""
        self._folder = folder
        try:
            self._file = (folder / f"rank-{rank}-tp-{tp_rank}.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from None
        self._times = array("d")  # start and end of each instruction
        self._header = {
            "format": FORMAT,
            "version": VERSION,
            "rank": rank,
            "tp_rank": tp_rank,
            "digest": digest,
            "clock_offset": clock.offset,
            "clock_uncertainty": clock.uncertainty,
        }

    def add(self, start: float, end: float) -> None:
        """The next instruction ran from ``start`` to ``end``, as ``time.perf_counter()`` reads."""
        times = self._times
        times.append(start)
        times.append(end)

    def report(self, start: float, end: float) -> None:
        """The next instruction ran from ``start`` to ``end`` on the common clock."""
        self.add(start - self.clock.offset, end - self.clock.offset)

    def close(self) -> None:
        """Write everything. Raises InputError where there is no space for it."""
        try:
            with self._file as file:
                file.write(json.dumps(self._header) + "\n")
                file.writelines(self._lines())
        except OSError as error:
            raise _unwritable(self._folder, error) from None

    def _lines(self) -> Iterator[str]:
        times, origin = self._times, self.origin - self.clock.offset
        posted: dict[int, float] = {}
        for index in range(len(times) // 2):
            start, end = times[2 * index] - origin, times[2 * index + 1] - origin
            op, _, _, x, _, _ = self.program.row(index)
            if op in (SEND, RECV):
                posted[index] = start
                continue
            if op == WAIT:
                begin, name = posted.pop(x), OPS[self.program.row(x)[0]]
                yield f'{{"i": {x}, "op": "{name}", "start": {begin:.7f}, "end": {end:.7f}, "posted": {begin:.7f}}}\n'
            yield f'{{"i": {index}, "op": "{OPS[op]}", "start": {start:.7f}, "end": {end:.7f}}}\n'


def make_folder(folder: Path, schedule_file: str, pp: int, tp: int) -> None:
    """Make a journal's folder, with the schedule in it, for a run on ``pp`` ranks of ``tp`` processes; several of them
    may at once. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        delete_others(folder, ".jsonl", pp, tp)
        beside = folder / f".schedule.json.{os.getpid()}"
        beside.write_bytes(Path(schedule_file).read_bytes())
        beside.replace(folder / "schedule.json")
    except OSError as error:
        raise _unwritable(folder, error) from None


def delete_others(folder: Path, ending: str, pp: int, tp: int) -> None:
    """Delete the files that a run on more processes has left in a folder, over which no process writes its own."""
    for file in folder.glob(f"rank-*{ending}"):
        match = _NAME.fullmatch(file.name.removesuffix(ending))
        if match and (int(match[1]) >= pp or int(match[2]) >= tp):
            file.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot be written: {error.strerror}", file=str(folder), remedy="name a folder to write to")
