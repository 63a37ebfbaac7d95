"""A run as a trace in Chrome's Trace Event Format, for Perfetto, MindStudio Insight and chrome://tracing.

A rank is a process. Its program is a thread with FORWARDs, the SAMPLEs that take time, and the WAITs that block, in
them the part in which the transfer is exposed; every channel that leaves it is a thread with the transfers. Flows lead
from the FORWARD that makes a value over its transfer to the FORWARD that reads it. Counters show the buffers in use and
the KV tokens held. A process of its own has the requests, from arrival to first token.

The trace is an array of events, which every viewer takes. Times are in microseconds, with three decimals: what ends
when something else begins does so in the file, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from vppc.analysis.breakdown import first_tokens
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.ir.schedule import Schedule
from vppc.render.counters import buffers_in_use, kv_tokens
from vppc.render.lanes import Gap, Hop, Lane, Run, end_of, hops, lanes, reason

Event = dict[str, Any]
_WEEKS = 2e6
"""Seconds up to which a floating-point number of microseconds tells nanoseconds apart."""


def chrome_trace(runs: Sequence[Run]) -> Iterator[str]:
    """The trace of one run, or of several one below the other, as pieces of JSON text.

    The traces of runs begin at their clocks' zero, or where the earliest event before it is.
    """
    clock = _Clock(runs)
    ids, flows = count(1), count(1)
    separator = "[\n"
    for run in runs:
        prefix = f"{run.name} " if len(runs) > 1 else ""
        for event in _RunTrace(run, clock, prefix, ids, flows).events():
            yield separator + json.dumps(event, allow_nan=False)
            separator = ",\n"
    yield "\n]\n"


class _Clock:
    """Seconds to nanoseconds of the trace, which begins at 0; of runs of weeks, to whole microseconds.

    Viewers read times as floating-point numbers of microseconds: these hold them exactly.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.shift = min((min(each) for run in runs for each in run.timing.starts if each), default=0.0)
        self.shift = min(self.shift, 0.0)
        self.tick = 1 if max(map(end_of, runs)) - self.shift < _WEEKS else 1000

    def __call__(self, seconds: float) -> int:
        return round((seconds - self.shift) * 1e9 / self.tick) * self.tick


class _RunTrace:
    """The events of a run, with the next of the ``ids`` and ``flows``.

    Every process and thread has an id of its own, from 1: Perfetto takes threads of one id for one thread, of whichever
    process, and 0 for idleness. A rank's program is its process's main thread and so has the same id. A SAMPLE of
    no time is left out: Perfetto would take it to be inside the next FORWARD, and tie that one's flow to it.
    """

    def __init__(self, run: Run, clock: _Clock, prefix: str, ids: Iterator[int], flows: Iterator[int]) -> None:
        self.run, self.schedule, self.clock, self.prefix, self.flows = run, run.schedule, clock, prefix, flows
        self.requests = next(ids)
        self.pids = [next(ids) for _ in run.schedule.programs]
        self.threads = {channel.id: next(ids) for channel in run.schedule.channels}
        self.forwards = _forwards(run.schedule)

    def events(self) -> Iterator[Event]:
        yield from self._names()
        yield from self._requests()
        for lane in lanes(self.run):
            yield from self._program(lane)
            pid = self.pids[lane.rank]
            yield from self._counter(pid, "buffers in use", "buffers", buffers_in_use(self.run, lane.rank))
            yield from self._counter(pid, "KV tokens", "tokens", kv_tokens(self.run, lane.rank))
        for hop in hops(self.run):
            yield self._transfer(hop)
            yield from self._flow(hop)

    def _names(self) -> Iterator[Event]:
        yield from _process(self.requests, f"{self.prefix}requests")
        for program, pid in zip(self.schedule.programs, self.pids, strict=True):
            yield from _process(pid, f"{self.prefix}rank {program.rank}")
            yield from _thread(pid, pid, "program")
        for channel in self.schedule.channels:
            yield from _thread(self.pids[channel.src], self.threads[channel.id], f"to rank {channel.dst}")

    def _requests(self) -> Iterator[Event]:
        tokens = first_tokens(self.schedule, self.run.timing)
        for number, (request, ttft) in enumerate(zip(self.schedule.requests, tokens, strict=True)):
            last = end_of(self.run) if ttft is None else request.arrival + ttft
            event = {
                "cat": "request",
                "id2": {"local": str(number)},  # within the process: Perfetto shows an "id" as of all processes
                "name": request.id,
                "pid": self.requests,
                "tid": self.requests,
            }
            args = {"prompt_tokens": request.prompt_tokens, "cached_tokens": request.cached_tokens}
            start = self.clock(request.arrival)
            yield {"ph": "b", **event, "ts": start / 1000, "args": args}
            yield {"ph": "e", **event, "ts": max(start, self.clock(last)) / 1000}

    def _program(self, lane: Lane) -> Iterator[Event]:
        """The thread of a rank's program, in the order of the program."""
        pid, program = self.pids[lane.rank], self.schedule.programs[lane.rank]
        starts, ends = self.run.timing.starts[lane.rank], self.run.timing.ends[lane.rank]
        exposed = {gap.awaited: gap for gap in lane.gaps if gap.exposed}
        for index, (op, chunk, stage, x, _, _) in enumerate(program.rows()):
            start, end = starts[index], ends[index]
            if op == FORWARD:
                args = {"instruction": index, **self._work(chunk), "layers": list(self.schedule.stages[stage].layers)}
                yield self._slice(pid, pid, "forward", f"C{chunk} s{stage}", start, end, args)
            elif op == SAMPLE and end > start:
                args = {"instruction": index, **self._work(chunk)}
                yield self._slice(pid, pid, "sample", f"C{chunk} sample", start, end, args)
            elif op == WAIT and end > start:
                why = reason(self.schedule, lane.rank, Gap(start, end, False, x, chunk))
                args = {"instruction": index, "of": x, "why": why}
                yield self._slice(pid, pid, "wait", "wait", start, end, args)
                if gap := exposed.get(x):
                    yield self._slice(pid, pid, "wait", "exposed transfer", gap.start, gap.end, {})

    def _work(self, chunk: int) -> dict[str, Any]:
        parts = self.schedule.chunks[chunk].parts
        return {
            "requests": [self.schedule.requests[part.request].id for part in parts],
            "tokens": sum(part.tokens for part in parts),
            "prefix_tokens": sum(part.start for part in parts),
        }

    def _transfer(self, hop: Hop) -> Event:
        args = {"send": hop.send, "recv": hop.recv, "tokens": self.schedule.chunks[hop.chunk].tokens}
        name = f"C{hop.chunk} s{hop.stage}"
        src = hop.channel.src
        return self._slice(self.pids[src], self.threads[hop.channel.id], "transfer", name, hop.start, hop.end, args)

    def _flow(self, hop: Hop) -> Iterator[Event]:
        """The flow over a transfer; a slice of no time can hold none of its ends.

        Viewers tie a flow to the slice that is under way at its time, and slices are half-open.
        """
        src, dst, stages = hop.channel.src, hop.channel.dst, len(self.schedule.stages)
        made_start, made_end = self._span(src, self.forwards[hop.chunk * stages + hop.stage - 1])
        read_start, read_end = self._span(dst, self.forwards[hop.chunk * stages + hop.stage])
        moved, arrived = self.clock(hop.start), self.clock(hop.end)
        points = [
            (max(made_start, min(made_end - self.clock.tick, moved)), made_end > made_start, src, self.pids[src]),
            (moved, arrived > moved, src, self.threads[hop.channel.id]),
            (read_start, read_end > read_start, dst, self.pids[dst]),
        ]
        held = [(time, rank, thread) for time, holds, rank, thread in points if holds]
        if len(held) < 2 or held != sorted(held, key=lambda point: point[0]):
            return  # clocks of two ranks that disagree by more than an operation have no arrow to show
        name, number = f"C{hop.chunk} s{hop.stage}", next(self.flows)
        for phase, (time, rank, thread) in zip(["s", *("t" * (len(held) - 2)), "f"], held, strict=True):
            event = {"ph": phase, "cat": "transfer", "name": name, "id": number, "ts": time / 1000}
            yield {**event, "pid": self.pids[rank], "tid": thread, **({"bp": "e"} if phase != "s" else {})}

    def _span(self, rank: int, index: int) -> tuple[int, int]:
        return self.clock(self.run.timing.starts[rank][index]), self.clock(self.run.timing.ends[rank][index])

    def _slice(
        self, pid: int, tid: int, category: str, name: str, start: float, end: float, args: dict[str, Any]
    ) -> Event:
        first, last = self.clock(start), self.clock(end)
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        return {**event, "ts": first / 1000, "dur": (last - first) / 1000, "args": args}

    def _counter(self, pid: int, name: str, unit: str, changes: Iterable[tuple[float, int]]) -> Iterator[Event]:
        """The running sum of the changes; of several at one time, only what they come to."""
        at: dict[int, int] = {}
        for seconds, change in changes:
            time = self.clock(seconds)
            at[time] = at.get(time, 0) + change
        total = 0
        for time in sorted(at):
            total += at[time]
            yield {"ph": "C", "name": name, "pid": pid, "tid": pid, "ts": time / 1000, "args": {unit: total}}


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _forwards(schedule: Schedule) -> list[int]:
    """For every operation its place in its rank's program."""
    stages = len(schedule.stages)
    places = [-1] * (len(schedule.chunks) * stages)
    for program in schedule.programs:
        for index, (op, chunk, stage, *_) in enumerate(program.rows()):
            if op == FORWARD:
                places[chunk * stages + stage] = index
    return places
