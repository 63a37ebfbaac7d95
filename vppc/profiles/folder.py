"""Profiles of devices, from a file or from a folder with the folders of ranks: found by name, read, held together.

The files of one rank stand in one folder (torch_npu's ``.../ASCEND_PROFILER_OUTPUT``); its rank is in the name of
that folder (``rank_3``, ``3``) or of torch_npu's ``profiler_info_3.json`` beside it. A cluster's table tells of all
ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vppc.errors import CheckFailed, Finding, InputError
from vppc.files import is_stream, open_bytes, source_name
from vppc.formats import check_not_ours
from vppc.inputs.table import read_table
from vppc.profiles.communication import Communication, read_communication
from vppc.profiles.kernels import Kernels, Total, is_kernel_table, read_kernels
from vppc.profiles.step_times import ROUNDING, StepTimes
from vppc.profiles.step_trace import is_step_trace, read_step_trace
from vppc.profiles.trace import Trace, read_trace

STEP_TRACE, KERNELS, COMMUNICATION, TRACE = "step_trace_time.csv", "kernel_details.csv", "communication.json", "trace"
_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_RANK = re.compile(r"(?:rank[_-]?)?(\d{1,6})", re.ASCII | re.IGNORECASE)
_TRACES = (".pt.trace.json", ".pt.trace.json.gz")
_NAMED_TRACE = re.compile(r"rank[_-]?(\d{1,6})(?:-tp-(\d{1,6}))?\.json(?:\.gz)?", re.ASCII)
_INFO = re.compile(r"profiler_info_(\d{1,6})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What is known of one rank; ``rank`` is None where nothing says which it is, ``name`` is for people.

    ``host_launches`` are the kernels launched by the host, which only traces tell.
    """

    name: str
    rank: int | None
    times: StepTimes | None = None
    kernels: Kernels | None = None
    communication: Communication | None = None
    trace: Trace | None = None

    @property
    def step(self) -> str | None:
        """The step that it is of; empty where steps have no numbers."""
        known = (self.times, self.kernels, self.communication)
        return next((part.step for part in known if part is not None), None)

    @property
    def types(self) -> dict[str, Total]:
        """Kernels by type."""
        if self.kernels is not None:
            return self.kernels.types
        return self.trace.types if self.trace is not None else {}

    @property
    def collectives(self) -> dict[str, Total]:
        """Communication operators by kind, from the file that tells most of them."""
        if self.communication is not None:
            return dict(self.communication.kinds)
        if self.kernels is not None:
            return self.kernels.collectives
        return self.trace.collectives if self.trace is not None else {}

    @property
    def host_launches(self) -> int | None:
        return self.trace.host_launches if self.trace is not None else None


@dataclass(frozen=True, slots=True)
class Profile:
    """The ranks of a profile, in order, and remarks on what was left out."""

    ranks: tuple[RankProfile, ...]
    remarks: tuple[str, ...]


def read_profile(path: str, step: str | None = None) -> Profile:
    """The profile in a file or folder, of ``step`` if it is given.

    Raises InputError with the place of what is wrong, CheckFailed where files do not agree with each other.
    """
    folder = Path(path)
    if not folder.is_dir():
        return _held_together([_read_file(path, step)])
    found: list[list[RankProfile]] = []
    remarks: list[str] = []
    for each in sorted({file.parent for file in folder.rglob("*") if _kind(file)}):
        files: dict[str, list[Path]] = {}
        for file in sorted(each.iterdir()):
            if file.is_file() and (kind := _kind(file)):
                files.setdefault(kind, []).append(file)
        if TRACE in files and any(not _is_cluster(file) for file in files.get(STEP_TRACE, [])):
            remarks += [f"{file} is not read: {STEP_TRACE} tells the same" for file in files.pop(TRACE)]
        found.append(_read_folder(each, files, step))
    if not found:
        raise InputError(
            "holds no profile", file=path, remedy=f"a folder with {STEP_TRACE}, {KERNELS}, {COMMUNICATION} or a trace"
        )
    return _held_together(found, remarks)


def rank_of(folder: Path) -> int | None:
    """The rank that a folder is named for."""
    folder = Path(os.path.abspath(folder))  # of "." and ".." the name that it has
    for info in folder.glob("profiler_info_*.json"):
        if match := _INFO.fullmatch(info.name):
            return int(match[1])
    if folder.name == _OUTPUT:
        return rank_of(folder.parent)
    match = _RANK.fullmatch(folder.name)
    return int(match[1]) if match else None


def _kind(file: Path) -> str | None:
    name = file.name
    if name.endswith(STEP_TRACE):
        return STEP_TRACE
    if name in (KERNELS, COMMUNICATION):
        return name
    return TRACE if name == "trace_view.json" or name.endswith(_TRACES) or _NAMED_TRACE.fullmatch(name) else None


def _is_cluster(file: Path) -> bool:
    return "Index" in read_table(str(file))[0].places


def _read_folder(folder: Path, files: dict[str, list[Path]], step: str | None) -> list[RankProfile]:
    """The ranks that the files of one folder tell of."""
    kernels = next((read_kernels(str(file), step) for file in files.get(KERNELS, [])), None)
    communication = next((read_communication(str(file), step) for file in files.get(COMMUNICATION, [])), None)
    rows = [row for file in files.get(STEP_TRACE, []) for row in read_step_trace(str(file), step)]
    named, nameless = [row for row in rows if row.rank], [row for row in rows if not row.rank]
    if not nameless and len(named) == 1 and kernels is not None:  # a Device_id, in the folder of a rank
        named, nameless = nameless, named
    if len(nameless) > 1:
        places = " and ".join(row.times.place for row in nameless)
        raise InputError(f"{places} are of ranks that have no names", file=str(folder), remedy="a folder for each rank")
    ranks = [_of_row(row.rank, row.times) for row in named]
    if nameless or kernels or communication:
        rank = rank_of(folder)
        name = f"rank {rank}" if rank is not None else os.path.basename(os.path.abspath(folder))
        ranks.append(RankProfile(name, rank, nameless[0].times if nameless else None, kernels, communication))
    return ranks + [_of_trace(file, read_trace(str(file), step)) for file in files.get(TRACE, [])]


def _of_trace(file: Path, trace: Trace) -> RankProfile:
    """The rank of a trace: as it says itself, or as the runtime has named it, or as its folder is."""
    named = _NAMED_TRACE.fullmatch(file.name)
    rank = trace.rank if trace.rank is not None else int(named[1]) if named else rank_of(file.absolute().parent)
    if named and int(named[2] or 0):
        return RankProfile(f"rank {named[1]}, tp rank {named[2]}", None, trace.times, trace=trace)
    return RankProfile(file.name if rank is None else f"rank {rank}", rank, trace.times, trace=trace)


def _of_row(rank: str, times: StepTimes) -> RankProfile:
    return RankProfile(f"rank {rank}", int(rank) if rank.isdigit() else None, times)


def _read_file(path: str, step: str | None) -> list[RankProfile]:
    """The ranks that one file tells of; what it is shows in its first bytes, so that it is opened twice."""
    if path == "-" or is_stream(path):
        raise InputError(
            "is read twice, which no pipe can be", file=source_name(path), remedy="name a file or a folder"
        )
    with open_bytes(path) as stream:
        head = stream.read(1 << 16).lstrip(b"\xef\xbb\xbf \t\r\n")
    check_not_ours(head.decode(errors="replace"), "a journal's folder or a profile", file=path)
    name = Path(path).name
    if head[:1] == b"[" or (head[:1] == b"{" and (b'"traceEvents"' in head or b'"schemaVersion"' in head)):
        return [_of_trace(Path(path), read_trace(path, step))]
    if head[:1] == b"{":
        return [RankProfile(name, None, communication=read_communication(path, step))]
    header, _ = read_table(path)
    if is_step_trace(header):
        rows = read_step_trace(path, step)
        return [_of_row(row.rank, row.times) if row.rank else RankProfile(name, None, row.times) for row in rows]
    if is_kernel_table(header):
        return [RankProfile(name, None, kernels=read_kernels(path, step))]
    raise InputError(
        f"the columns {', '.join(header.columns)} are of no profile that is known",
        file=path,
        place="line 1",
        remedy=f"{STEP_TRACE}, cluster_{STEP_TRACE}, {KERNELS}, {COMMUNICATION}, a Chrome trace, or a journal's folder",
    )


def _held_together(found: Iterable[list[RankProfile]], remarks: Iterable[str] = ()) -> Profile:
    """One profile a rank: what a cluster's table and a rank's own files say of it must agree."""
    ranks: dict[int | str, RankProfile] = {}
    for each in (rank for folder in found for rank in folder):
        _check_steps(each)
        key = each.name if each.rank is None else each.rank
        ranks[key] = _merged(ranks[key], each) if key in ranks else each
    ordered = sorted(ranks.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    _check_one_step([rank for _, rank in ordered if rank.rank is not None and rank.step])
    lost = [remark for _, rank in ordered if rank.kernels is not None for remark in rank.kernels.remarks]
    return Profile(tuple(rank for _, rank in ordered), (*remarks, *lost))


def _check_steps(rank: RankProfile) -> None:
    parts = {KERNELS: rank.kernels, COMMUNICATION: rank.communication, STEP_TRACE: rank.times}
    steps = {name: part.step for name, part in parts.items() if part is not None and part.step}
    if len(set(steps.values())) > 1:
        text = ", ".join(f"{name} of step {step}" for name, step in steps.items())
        raise CheckFailed((Finding("U4", rank.name, text, "files of one step, or --step"),))


def _check_one_step(ranks: list[RankProfile]) -> None:
    other = next((rank for rank in ranks if rank.step != ranks[0].step), None)
    if other is not None:
        problem = f"is of step {other.step}, but {ranks[0].name} of step {ranks[0].step}"
        raise CheckFailed((Finding("U4", other.name, problem, "profiles of one step, or --step"),))


def _merged(one: RankProfile, other: RankProfile) -> RankProfile:
    if one.times is not None and other.times is not None:
        here, there = one.times, other.times
        for what, left, right in (
            ("Computing", here.computing, there.computing),
            ("Communication(Not Overlapped)", here.exposed, there.exposed),
            ("Free", here.free, there.free),
        ):
            if abs(left - right) > ROUNDING * (1.0 + here.total):
                raise CheckFailed(
                    (
                        Finding(
                            "U5",
                            f"{one.name}, {what}",
                            f"is {left * 1e6:.2f} us in {here.place}, but {right * 1e6:.2f} us in {there.place}",
                            "profiles of one run and one step, each rank once",
                        ),
                    )
                )
    return RankProfile(
        one.name,
        one.rank,
        one.times or other.times,
        one.kernels or other.kernels,
        one.communication or other.communication,
        one.trace or other.trace,
    )
