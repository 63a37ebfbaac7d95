"""torch_npu.npu over one pretended device a process."""

from __future__ import annotations

import os
import threading
from typing import Any

import machine as pretended
from machine import Machine

from torch_npu.npu import utils as utils

machine = Machine()


def reset(new: Machine | None = None) -> Machine:
    """Start over with another machine."""
    global machine
    machine = new or Machine()
    return machine


class Stream(pretended.Stream):
    def __init__(self, device: Any = None, priority: int = 0) -> None:
        super().__init__(machine)


class Event(pretended.Event):
    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        super().__init__(machine, enable_timing)

    def record(self, stream: pretended.Stream | None = None) -> None:
        super().record(stream or current_stream())

    def wait(self, stream: pretended.Stream | None = None) -> None:
        super().wait(stream or current_stream())


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return int(os.environ.get("STANDIN_NPUS", "2"))


def set_device(device: int) -> None:
    machine.calls.append(("set_device", str(device)))
    machine.threads.add(threading.get_ident())


def current_device() -> int:
    machine.check_thread()
    return 0


def current_stream(device: Any = None) -> pretended.Stream:
    return machine.compute


def synchronize(device: Any = None) -> None:
    machine.check_thread()
    machine.calls.append(("synchronize",))
    machine.finish(machine.recorded)


def get_device_name(device_name: Any = None) -> str:
    return "Ascend910_9382"


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return 60 * 2**30, 64 * 2**30
