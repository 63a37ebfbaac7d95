"""Profiles: traces of torch.profiler, or of torch_npu's, in which every kernel lies under an instruction."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from runtime.devices.protocol import Device
from runtime.interpreter import Mark
from runtime.journal import delete_others
from vppc.errors import InputError
from vppc.ir.instruction import OPS, WAIT, Program
from vppc.ir.schedule import Schedule


@contextmanager
def profiled(
    folder: Path | None, device: Device, schedule: Schedule, rank: int, tp_rank: int, tp: int
) -> Iterator[Mark | None]:
    """Profile what is done inside, into ``folder``; the mark to run instructions under. Nothing without a folder.

    Raises InputError when the folder cannot be made.
    """
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        delete_others(folder, ".json", schedule.pp, tp)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(folder), remedy="name a folder") from None
    program = schedule.programs[rank]
    name = f"rank-{rank}-tp-{tp_rank}"
    if device.name == "npu":
        npu = importlib.import_module("torch_npu")
        kinds = npu.profiler.ProfilerActivity
        handler = npu.profiler.tensorboard_trace_handler(str(folder), worker_name=name)
        with npu.profiler.profile(activities=[kinds.CPU, kinds.NPU], on_trace_ready=handler):
            yield lambda index: _npu_mark(npu, instruction_name(program, index))
        return
    with torch.profiler.profile() as profiler:
        yield lambda index: torch.profiler.record_function(instruction_name(program, index))
    profiler.export_chrome_trace(str(folder / f"{name}.json"))


def instruction_name(program: Program, index: int) -> str:
    """For example ``17 FORWARD c3 s2``, or ``19 WAIT 18 RECV c4 s2``."""
    op, chunk, stage, of, _, _ = program.row(index)
    if op == WAIT:
        waited, chunk, stage, _, _, _ = program.row(of)
        return f"{index} WAIT {of} {OPS[waited]} c{chunk} s{stage}"
    return f"{index} {OPS[op]} c{chunk} s{stage}" if stage >= 0 else f"{index} {OPS[op]} c{chunk}"


@contextmanager
def _npu_mark(npu: Any, name: str) -> Iterator[None]:
    """A range on the host and, with mstx, on the compute stream."""
    mstx = npu.npu.mstx
    with torch.profiler.record_function(name):
        mark = mstx.range_start(name, npu.npu.current_stream())
        yield
        mstx.range_end(mark)
