"""Times of single layers out of an Ascend kernel table, with the help of the schedule that was profiled.

A layer of a forward launches its attention kernel once, so the attention kernels of a rank, in order of time, are
the layers of its FORWARDs in program order. From one attention kernel to the next is a layer's worth of work: the
rest of its own layer and the beginning of the next one. The last layer of a forward, after which anything may
follow, is left out, and so is one that is followed by a layer of another kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from vppc.costs.samples import Forward, Layers, Measurements, chunk_parts, forward
from vppc.errors import CheckFailed, Finding, InputError
from vppc.inputs.table import read_table
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule
from vppc.profiles.folder import KERNELS, rank_of
from vppc.profiles.intervals import SECOND, Interval, length, overlap, union
from vppc.profiles.kernels import Kernel, collective_kind, is_kernel_table, kernel_class, kernel_rows

_POINT_TO_POINT = ("hcom_send", "hcom_receive", "hcom_batchSendRecv")


def kernel_table_of(path: Path) -> Path | None:
    """The kernel table that a path is, or that its folder holds; None for anything else."""
    if path.is_dir():
        return path / KERNELS if (path / KERNELS).is_file() else None
    if path.suffix != ".csv" or not path.is_file():
        return None
    return path if is_kernel_table(read_table(str(path))[0]) else None


def forwards_of_kernels(
    path: str, table: Path, schedule: Schedule, rank: int | None, layers: Layers, step: str | None = None
) -> Measurements:
    """The layers that a table has measured, of ``step`` if it is given, each with its exposed collectives apart.

    ``rank`` is the pipeline rank; without it the folder's name has the process's. Raises InputError when neither
    is known, CheckFailed when there are not as many attention kernels as the rank has layers to run.
    """
    if rank is None:
        process = rank_of(table.parent)
        if process is None:
            raise InputError("is of an unknown rank", file=path, remedy="--rank N, or a folder named rank_N")
        rank = process // schedule.extra.get("tp", 1)
    if rank >= schedule.pp:
        raise InputError(f"is of rank {rank}, but the schedule has {schedule.pp}", file=path, remedy="--rank N")
    kernels = sorted(kernel_rows(str(table), step), key=lambda kernel: kernel.start)
    slots = list(_slots(schedule, rank, layers))
    anchors = _anchors(kernels, len(slots), str(table), rank)
    found: list[Forward] = []
    for (place, after), (chunk, kind, goes_on) in zip(pairwise([*anchors, len(kernels)]), slots, strict=True):
        if not goes_on:
            continue
        compute = union(_interval(kernel) for kernel in kernels[place:after] if not kernel.communication)
        talk = union(_interval(kernel) for kernel in kernels[place:after] if _is_collective(kernel))
        counts = tuple(int(each == kind) for each in range(len(layers.names)))
        found.append(
            forward(
                f"{table}: line {kernels[place].line}",
                length(compute),
                chunk_parts(schedule.chunks[chunk]),
                counts,
                layers.topks,
                collective=length(talk) - overlap(talk, compute),
            )
        )
    return Measurements(layers, tuple(found), name=schedule.model.name, by_products=frozenset(("collectives",)))


def _slots(schedule: Schedule, rank: int, layers: Layers) -> Iterator[tuple[int, int, bool]]:
    """(chunk, kind, whether a layer of the same kind follows in the same forward) of every layer that a rank runs."""
    kinds = [kind for kind, count in layers.runs for _ in range(count)]
    for op, chunk, stage, *_ in schedule.programs[rank].rows():
        if op == FORWARD:
            first, last = schedule.stages[stage].layers
            for layer in range(first, last):
                yield chunk, kinds[layer], layer + 1 < last and kinds[layer + 1] == kinds[layer]


def _anchors(kernels: list[Kernel], wanted: int, file: str, rank: int) -> list[int]:
    """The places of the attention kernels: of the type of which there is one a layer."""
    counts = Counter(kernel.type for kernel in kernels if not kernel.communication)
    attention = {kind: count for kind, count in counts.items() if kernel_class(kind) == "attention"}
    chosen = next((kind for kind, count in attention.items() if count == wanted), None)
    if chosen is None:
        there = ", ".join(f"{count} of {kind}" for kind, count in attention.items()) or "no attention kernels"
        problem = f"has {there}, but rank {rank} of the schedule runs {wanted} layers"
        raise CheckFailed((Finding("U6", f"rank {rank}", problem, "the whole profile of one run of it"),), file=file)
    return [place for place, kernel in enumerate(kernels) if kernel.type == chosen and not kernel.communication]


def _interval(kernel: Kernel) -> Interval:
    return kernel.start, kernel.start + round(kernel.seconds * SECOND)


def _is_collective(kernel: Kernel) -> bool:
    return kernel.communication and not collective_kind(kernel.name).startswith(_POINT_TO_POINT)
