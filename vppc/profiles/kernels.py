"""Ascend's ``kernel_details.csv``: every kernel and communication operator of a rank, added up by type and class.

Numbers may be followed by tabs and shapes stand in three pairs of quotes. Some rows lack a value in the middle, which
moves all that follow one column to the left, durations too: such a row is left out and reported. A row that
merely ends early has been cut, and so has the file, which is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vppc.errors import InputError
from vppc.inputs.table import Header, Row, read_table
from vppc.json_text import shown
from vppc.profiles.intervals import picoseconds
from vppc.profiles.step_trace import check_one_step

NAME, TYPE, CORE, START, DURATION = "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)"
_STEPS = ("Step Id", "Step ID")
_ELIGIBLE = "HF32 Eligible"
_NO_TYPES = frozenset(("", "0", "N/A"))
_CORES_OF_COMMUNICATION = frozenset(("HCCL", "COMMUNICATION"))

CLASSES = ("attention", "slice", "matmul", "other")
"""The kernel classes of the paper's Table 2(b)."""
_PATTERNS = (
    ("attention", re.compile(r"attention|attn|flash|fmha|(?<![a-z])mla(?![a-z])|lightningindexer", re.IGNORECASE)),
    ("slice", re.compile(r"^(strided)?slice", re.IGNORECASE)),
    ("matmul", re.compile(r"^matmul|^mat_mul|^aten::(mm|addmm|bmm|linear|matmul)$|gemm|nvjet|cublas", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or communication operator; ``start`` in picoseconds since 1970."""

    line: int
    name: str
    type: str
    start: int
    seconds: float
    communication: bool


@dataclass(slots=True)
class Total:
    """How many kernels of a type ran, and how long in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def include(self, other: Total) -> None:
        self.count += other.count
        self.seconds += other.seconds

    @property
    def mean(self) -> float:
        """Seconds of one."""
        return self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of a rank by type, its collectives by kind, and remarks on rows that were left out."""

    types: dict[str, Total] = field(default_factory=dict)
    collectives: dict[str, Total] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    step: str = ""


@dataclass(slots=True)
class KernelRows:
    """The kernels of a file, to iterate once; then ``step`` is theirs and ``remarks`` tell what was left out."""

    header: Header
    rows: Iterable[Row]
    wanted: str | None
    step: str = ""
    remarks: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Kernel]:
        column = next((name for name in _STEPS if name in self.header.places), None)
        first: Row | None = None
        for row in self.rows:
            if not row.whole and _has_slipped(row):
                self.remarks.append(
                    f"{self.header.file}: line {row.line} has lost a value ({len(row.values)} of"
                    f" {len(self.header.columns)}), so its {row.text(NAME)} is left out"
                )
                continue
            row.check_whole()
            step = row.text(column) if column else ""
            if self.wanted is not None and column and step != self.wanted:
                continue
            if first is None:
                first, self.step = row, step
            check_one_step(row, step, self.step, first.line)
            name, kind = row.text(NAME), row.text(TYPE)
            yield Kernel(
                row.line,
                name,
                name if kind in _NO_TYPES else kind,
                _start(row),
                row.number(DURATION) / 1e6,
                row.text(CORE) in _CORES_OF_COMMUNICATION or name.startswith("hcom_"),
            )
        if first is None:
            what = f"no kernels of step {self.wanted}" if self.wanted is not None else "no kernels"
            raise InputError(f"has {what}", file=self.header.file, remedy="a line a kernel")


def is_kernel_table(header: Header) -> bool:
    """Whether a table is one of these, though perhaps not whole."""
    return len({TYPE, CORE, START, DURATION} & header.places.keys()) > 1


def kernel_rows(path: str, step: str | None = None) -> KernelRows:
    """The kernels of a file, of ``step`` if it is given. Raises InputError, also while they are read."""
    header, rows = read_table(path)
    header.require(NAME, TYPE, CORE, START, DURATION)
    return KernelRows(header, rows, step)


def read_kernels(path: str, step: str | None = None) -> Kernels:
    """The kernels of a file added up. Raises InputError with the line of what is wrong."""
    rows = kernel_rows(path, step)
    types: dict[str, Total] = {}
    collectives: dict[str, Total] = {}
    for kernel in rows:
        if kernel.communication:
            collectives.setdefault(collective_kind(kernel.name), Total()).add(kernel.seconds)
        else:
            types.setdefault(kernel.type, Total()).add(kernel.seconds)
    return Kernels(types, collectives, rows.remarks, rows.step)


def by_class(types: Mapping[str, Total]) -> dict[str, Total]:
    """Kernels added up by class, in the order of :data:`CLASSES`."""
    totals = {name: Total() for name in CLASSES}
    for kind, total in types.items():
        totals[kernel_class(kind)].include(total)
    return totals


def kernel_class(kind: str) -> str:
    """The class of a kernel, by the name of its type: ``FusedInferAttentionScore`` is attention."""
    return next((name for name, pattern in _PATTERNS if pattern.search(kind)), "other")


def collective_kind(name: str) -> str:
    """The kind of a communication operator: ``hcom_allGather__483_3`` is one of ``hcom_allGather``."""
    return name.partition("__")[0].partition("@")[0].rstrip("_")


def _start(row: Row) -> int:
    start = picoseconds(row.text(START))
    if start is None:
        raise row.error(f"{shown(row.text(START))} is not a time", START, "microseconds, a decimal number")
    return start


def _has_slipped(row: Row) -> bool:
    """Whether a row lacks one value before ``HF32 Eligible``, rather than those after some place."""
    place = row.header.places.get(_ELIGIBLE, len(row.values))
    one_lost = place < len(row.values) == len(row.header.columns) - 1
    return one_lost and row.text(_ELIGIBLE) not in ("YES", "NO", "N/A", "")
