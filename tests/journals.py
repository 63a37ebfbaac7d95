"""Journals as the runtime writes them, from any timing, for tests that run nothing."""

from __future__ import annotations

import json
from pathlib import Path

from vppc.analysis.times import Timing
from vppc.ir.document import digest, schedule_text
from vppc.ir.instruction import OPS, RECV, SEND, WAIT
from vppc.ir.schedule import Schedule


def write_journal(
    folder: Path, schedule: Schedule, timing: Timing, *, tp: int = 1, uncertainty: float = 0.0, late: float = 0.0
) -> Path:
    """A journal of ``timing``; TP rank t is ``late`` times t seconds late with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    data = "".join(schedule_text(schedule)).encode()
    (folder / "schedule.json").write_bytes(data)
    for rank in range(schedule.pp):
        for tp_rank in range(tp):
            header = {
                "format": "vppc.journal",
                "version": 1,
                "rank": rank,
                "tp_rank": tp_rank,
                "digest": digest(data),
                "clock_offset": 0.25 * rank,
                "clock_uncertainty": uncertainty,
            }
            lines = [header, *journal_lines(schedule, timing, rank, late * tp_rank)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"rank-{rank}-tp-{tp_rank}.jsonl").write_text(text)
    return folder


def journal_lines(schedule: Schedule, timing: Timing, rank: int, late: float = 0.0) -> list[dict[str, object]]:
    """A rank's lines in the order in which the instructions ended; a transfer's just before its WAIT's."""
    program = schedule.programs[rank]
    lines: list[dict[str, object]] = []
    for index, (op, _, _, x, _, _) in enumerate(program.rows()):
        start, end = timing.starts[rank][index] + late, timing.ends[rank][index] + late
        if op in (SEND, RECV):
            continue
        if op == WAIT:
            posted = timing.starts[rank][x] + late
            lines.append({"i": x, "op": OPS[program.row(x)[0]], "start": posted, "end": end, "posted": posted})
        lines.append({"i": index, "op": OPS[op], "start": start, "end": end})
    return lines
