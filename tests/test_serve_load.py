"""``vppc serve`` with more to do than it can: every request has one answer, and nothing grows."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from benchmarks.serve_load import GROWTH, growth, served
from runtime.stream import Report
from tests.serving_streams import stream
from vppc.ir.document import parse_schedule
from vppc.ir.instruction import WAIT, WIDTH
from vppc.ir.schedule import Request
from vppc.profiles.journal import read_journal
from vppc.serving.batching import Limits
from vppc.serving.stream_journal import StreamJournal


def test_ten_times_as_much_as_it_can_take(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    waves = list(served(tmp_path, 3, 200, 10.0, 8, journal=journal))
    for wave in waves:
        assert wave.answers.total() == wave.requests == 200
        assert wave.answers["token"] and wave.answers["cancelled"] and wave.answers["refused"]
    assert growth(waves) <= GROWTH
    whole = read_journal(str(journal))
    assert whole.schedule.certificate is not None
    ended = sum(wave.answers["token"] for wave in waves)
    assert 1 + ended <= len(whole.schedule.requests) <= 1 + ended + sum(wave.answers["cancelled"] for wave in waves)


def test_a_journal_is_not_kept_in_memory(tmp_path: Path) -> None:
    each = stream("vpp-packed", 2, Limits(chunk_size=8), "fcfs")
    for number in range(20):
        each.compiler.add(Request(f"r{number}", 400), 1000.0 * number)
        each.advance(1000.0 * number + 900.0)
    whole = each.close()
    journal = StreamJournal(str(tmp_path), each.compiler.opening(), 2, 1)
    for stale in ("rank-2-tp-0.jsonl", "rank-0-tp-1.jsonl"):
        (tmp_path / stale).write_text("of a run on more processes")
    held = []
    tracemalloc.start()
    try:
        for segment in each.segments:
            journal.sent(segment)
            for program in segment.programs:
                times = [float(number) for number in range(2 * len(program.code) // WIDTH)]
                journal.heard(
                    Report(program.rank, program.rank, 1, program.start, times, [], 0.0, (0.0, 0.0), True, False, True)
                )
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    instructions = sum(map(len, whole.programs))
    assert len(held) > 20 and instructions > 10_000
    assert held[-1] - held[4] < instructions  # 40 bytes for each would be needed
    journal.close(0.0)
    assert parse_schedule((tmp_path / "schedule.json").read_bytes()).programs == whole.programs
    waits = sum(row[0] == WAIT for row in whole.programs[0].rows())
    assert (tmp_path / "rank-0-tp-0.jsonl").read_text().count('"op": "WAIT"') == waits
    assert {each.name for each in tmp_path.glob("*.jsonl")} == {"rank-0-tp-0.jsonl", "rank-1-tp-0.jsonl"}
