"""Chrome traces of a device: torch_npu's ``trace_view.json`` and torch.profiler's traces of CUDA or CPU.

==============  =============================  ===================================  ================================
                Ascend                         CUDA                                 CPU alone
==============  =============================  ===================================  ================================
compute         tasks with a ``Task Type``,    ``kernel``, ``gpu_memcpy`` and       the outermost ``cpu_op`` of each
                without copies and events      ``gpu_memset``                       thread
communication   ``hcom_*``                     kernels of NCCL                      ``gloo:*``, ``c10d::*``
host launches   flows ``HostToDevice``         calls that launch                    none
==============  =============================  ===================================  ================================

torch_npu's own analysis of overlaps is in its traces and is taken as it is; for the others the intervals are added
up here. Of receives, only what no compute hides is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vppc.errors import CheckFailed, Finding, InputError
from vppc.files import source_name
from vppc.json_text import shown
from vppc.profiles.events import read_events
from vppc.profiles.intervals import SECOND, Interval, length, overlap, picoseconds, union
from vppc.profiles.kernels import Total, collective_kind
from vppc.profiles.step_times import StepTimes

COMPUTING, COMMUNICATION, EXPOSED, FREE = "Computing", "Communication", "Communication(Not Overlapped)", "Free"
_LANES = (COMPUTING, COMMUNICATION, EXPOSED, FREE)
"""torch_npu's analysis of overlaps, by the names of its events."""
_NO_COMPUTE = re.compile(r"EVENT|NOTIFY|SDMA|RDMA|MEMCPY|WRITE_VALUE|PLACE_HOLDER|PROFILING|CAPTURE", re.IGNORECASE)
_FORWARD = re.compile(r"\d+ FORWARD c\d+ s\d+$")
"""The range in which the runtime runs a FORWARD."""
ASLEEP = "FORWARD (asleep: no kernels ran)"
"""What a FORWARD is called as a kernel, when the runner only waits as long as costs say: it is busy for the plan."""
AWAKE = 0.1
"""Operators take less of FORWARDs in which the runner sleeps."""
_CUDA = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_CUDA_CALLS = frozenset(("cuda_runtime", "cuda_driver"))
_CPU_COMMUNICATION = re.compile(r"gloo:|c10d::")
_STEP = re.compile(r"ProfilerStep#(\d+)", re.ASCII)
_RECEIVE = re.compile(r"hcom_receive|.*recv", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace tells of a rank: times, kernels by type, collectives by kind, and launches from the host.

    ``device`` is Ascend, CUDA or CPU; ``rank`` that of a distributed run, None where the trace does not say.
    """

    device: str
    rank: int | None
    times: StepTimes
    types: dict[str, Total]
    collectives: dict[str, Total]
    host_launches: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """An event that takes time, in picoseconds."""

    name: str
    start: int
    end: int
    thread: tuple[str, str]

    @property
    def interval(self) -> Interval:
        return self.start, self.end


@dataclass(slots=True)
class _Found:
    """The events that count, sorted into what they are; flows and calls are when the host launched something."""

    lanes: list[Span] = field(default_factory=list)
    ascend: list[Span] = field(default_factory=list)
    hcom: list[Span] = field(default_factory=list)
    cuda: list[Span] = field(default_factory=list)
    cpu: list[Span] = field(default_factory=list)
    forwards: list[Span] = field(default_factory=list)
    steps: dict[str, Span] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Device:
    """What ran on the device: compute, communication; launches, None where there are none to count."""

    name: str
    kernel_type: Callable[[str], str]
    compute: list[Span]
    talk: list[Span]
    launches: list[int] | None


def read_trace(path: str, step: str | None = None) -> Trace:
    """What a trace tells, of ``step`` if it is given.

    Raises InputError with the event that is wrong, also when there are several steps and none is given, and
    CheckFailed when the trace's own analysis of overlaps does not add up.
    """
    file = source_name(path)
    beside: dict[str, Any] = {}
    found = _sort(read_events(path, beside), file)
    first, last = _window(found.steps, step, file)
    device = _device(found, file)
    compute = [span for span in device.compute if first <= span.start < last]
    talk = [span for span in device.talk if first <= span.start < last]
    lanes = [span for span in found.lanes if first <= span.start < last]
    if not any(span.end > span.start for span in (*compute, *talk)):
        where = f" in step {step}" if step is not None else ""
        raise InputError(f"has no kernels that take time{where}", file=file, remedy="one in which the device worked")
    chosen = step if step is not None else next(iter(found.steps), "")
    distributed = beside.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return Trace(
        device.name,
        rank if type(rank) is int else None,
        _analysed(file, chosen, lanes, talk) if lanes else _added_up(file, chosen, compute, talk),
        _totals((device.kernel_type(span.name), span) for span in compute),
        _totals((collective_kind(span.name), span) for span in talk),
        None if device.launches is None else sum(first <= moment < last for moment in device.launches),
    )


def _sort(events: Iterable[dict[str, Any]], file: str) -> _Found:
    found = _Found()
    for number, event in enumerate(events):
        phase, category = event.get("ph"), event.get("cat")
        if not (category is None or isinstance(category, str)):
            raise InputError(f"{shown(category)} is not a category", file=file, place=f"event {number}: cat")
        if phase == "s" and category == "HostToDevice":
            found.flows.append(_time(event, "ts", number, file))
        elif phase == "X":
            _sort_span(found, event, category, number, file)
    return found


def _sort_span(found: _Found, event: dict[str, Any], category: Any, number: int, file: str) -> None:
    name, arguments = event.get("name"), event.get("args")
    if not isinstance(name, str):
        raise InputError(f"{shown(name)} is not a name", file=file, place=f"event {number}: name")
    if category in _CUDA_CALLS:
        if "Launch" in name:
            found.calls.append(_time(event, "ts", number, file))
        return
    if step := _STEP.match(name):
        found.steps.setdefault(step[1], _span(event, name, number, file))
    elif category in _CUDA:
        found.cuda.append(_span(event, name, number, file))
    elif category == "user_annotation" and _FORWARD.match(name):
        found.forwards.append(_span(event, name, number, file))
    elif category == "cpu_op":
        found.cpu.append(_span(event, name, number, file))
    elif category is None and name in _LANES:
        found.lanes.append(_span(event, name, number, file))
    elif category is None and isinstance(arguments, dict) and "Task Type" in arguments:
        if not (_NO_COMPUTE.search(f"{name} {arguments['Task Type']}") or name.startswith("hcom_")):
            found.ascend.append(_span(event, name, number, file))
    elif category is None and name.startswith("hcom_"):
        found.hcom.append(_span(event, name, number, file))


def _span(event: dict[str, Any], name: str, number: int, file: str) -> Span:
    start = _time(event, "ts", number, file)
    return Span(name, start, start + _time(event, "dur", number, file), (str(event.get("pid")), str(event.get("tid"))))


def _time(event: dict[str, Any], key: str, number: int, file: str) -> int:
    """A time of an event; torch_npu puts some in quotes, and the reader leaves fractions as text."""
    value = event.get(key)
    time = picoseconds(str(value)) if type(value) in (int, str) else None
    if time is None:
        problem = "is missing" if value is None else f"{shown(value)} is not a time"
        raise InputError(
            problem, file=file, place=f"event {number}: {key}", remedy="microseconds, a decimal number of at least 0"
        )
    return time


def _window(steps: dict[str, Span], step: str | None, file: str) -> tuple[int, float]:
    """From when to when events are of the step: from its beginning on the host to that of the one after it."""
    if step is None and len(steps) < 2:
        return 0, float("inf")
    if step is None or (step not in steps and steps):
        there = ", ".join(steps)
        problem = f"has no step {step}" if step is not None else "has several steps, which are not to be mixed"
        raise InputError(problem, file=file, remedy=f"pick one with --step; there are {there}")
    if not steps:
        raise InputError(f"has no step {step}: it does not tell of steps", file=file, remedy="leave out --step")
    begin = steps[step].start
    return begin, min((span.start for span in steps.values() if span.start > begin), default=float("inf"))


def _device(found: _Found, file: str) -> _Device:
    if found.ascend or found.lanes:
        return _Device("Ascend", _ascend_type, found.ascend, found.hcom, found.flows)
    if found.cuda:
        talk = [span for span in found.cuda if "nccl" in span.name.casefold()]
        rest = [span for span in found.cuda if "nccl" not in span.name.casefold()]
        return _Device("CUDA", _cuda_type, rest, talk, found.calls)
    talk = [span for span in found.cpu if _CPU_COMMUNICATION.match(span.name)]
    rest = [span for span in found.cpu if not _CPU_COMMUNICATION.match(span.name)]
    if _slept(found.forwards, rest):
        named = [Span(ASLEEP, span.start, span.end, span.thread) for span in found.forwards]
        return _Device("CPU", str, list(_outermost([*rest, *named])), talk, None)
    if not rest:
        raise InputError("has no kernels", file=file, remedy="profile the device too, or at least the CPU's operators")
    return _Device("CPU", str, list(_outermost(rest)), talk, None)


def _slept(forwards: list[Span], operators: list[Span]) -> bool:
    """Whether the runtime's FORWARDs took time in which next to no operator ran: a runner that only waits."""
    ranges, busy = (union(span.interval for span in spans) for spans in (forwards, operators))
    return bool(forwards) and overlap(ranges, busy) < AWAKE * length(ranges)


def _outermost(spans: Iterable[Span]) -> Iterator[Span]:
    """Operators that no other of their thread contains."""
    ends: dict[tuple[str, str], int] = {}
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        if span.start >= ends.get(span.thread, 0):
            ends[span.thread] = span.end
            yield span


def _analysed(file: str, step: str, lanes: list[Span], talk: list[Span]) -> StepTimes:
    """The times by the trace's own analysis."""
    seconds = {lane: length(span.interval for span in lanes if span.name == lane) for lane in _LANES}
    whole = (max(span.end for span in lanes) - min(span.start for span in lanes)) / SECOND
    compute = union(span.interval for span in lanes if span.name == COMPUTING)
    receive = _receive(talk, compute)
    times = StepTimes(
        file,
        step,
        seconds[COMPUTING],
        seconds[EXPOSED],
        seconds[COMMUNICATION] - seconds[EXPOSED],
        seconds[COMMUNICATION],
        seconds[FREE],
        whole - receive,
        receive,
        seconds[EXPOSED] - receive,
    )
    broken = [
        Finding("U1", "Overlap Analysis", f"{name} does not hold: {miss * 1e6:+.2f} us", "export the profile again")
        for name, miss in times.broken_identities()
    ]
    if broken:
        raise CheckFailed(tuple(broken), file=file)
    return times


def _added_up(file: str, step: str, compute: list[Span], talk: list[Span]) -> StepTimes:
    """The times from the intervals themselves."""
    computing, talking = (union(span.interval for span in spans) for spans in (compute, talk))
    busy = union([*computing, *talking])
    whole = (busy[-1][1] - busy[0][0]) / SECOND
    hidden, receive = overlap(computing, talking), _receive(talk, computing)
    exposed = length(talking) - hidden
    return StepTimes(
        file,
        step,
        length(computing),
        exposed,
        hidden,
        length(talking),
        whole - length(busy),
        whole - receive,
        receive,
        exposed - receive,
    )


def _receive(talk: Iterable[Span], compute: list[Interval]) -> float:
    receives = union(span.interval for span in talk if _RECEIVE.match(span.name))
    return length(receives) - overlap(receives, compute)


def _totals(spans: Iterable[tuple[str, Span]]) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    for kind, span in spans:
        totals.setdefault(kind, Total()).add((span.end - span.start) / SECOND)
    return totals


def _ascend_type(name: str) -> str:
    """``aclnnMm_MatMulCommon_MatMulV2`` is a MatMulV2, ``trans_Cast_7`` a Cast."""
    parts = [part for part in name.split("_") if part and not part.isdigit()]
    return parts[-1] if parts else name


def _cuda_type(name: str) -> str:
    """A kernel's name without its template and call arguments."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0] or name
