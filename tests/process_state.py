"""What a test finds in its process and has to leave there: the tests after it in the same process count on it."""

from __future__ import annotations

import gc
import locale
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1)
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)
ORDINARY = 2**31 - 1
"""The bits of the signals below those that the C library keeps for its threads."""
LOGGERS = ("vppc", "runtime")


def process_state() -> dict[str, object]:
    """The state of this process that outlives a test, by what it is."""
    state: dict[str, object] = {
        "the working directory": os.getcwd(),
        "handlers of signals": {number.name: signal.getsignal(number) for number in SIGNALS},
        "signals to the kernel": kernels_signals(),
        "alarms": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "limits": {limit: resource.getrlimit(limit) for limit in LIMITS},
        "the locale": locale.setlocale(locale.LC_ALL),
        "sys.path": list(sys.path),
        "garbage collection": gc.isenabled(),
        "logging": {
            name: (logger.level, list(logger.handlers), logger.propagate, logger.disabled)
            for name, logger in ((name, logging.getLogger(name)) for name in LOGGERS)
        },
        "logging for all": (logging.root.level, logging.root.manager.disable),
    }
    if torch := sys.modules.get("torch"):
        state |= torch_state(torch)
    return state


def kernels_signals() -> dict[str, int]:
    """Which signals are blocked, ignored and caught, as bits: in C, where libraries set handlers unseen.

    Nothing where the kernel does not say.
    """
    status = Path("/proc/self/status")
    lines = (line.partition(":") for line in status.read_text().splitlines()) if status.exists() else ()
    return {name: int(bits, 16) & ORDINARY for name, _, bits in lines if name in ("SigBlk", "SigIgn", "SigCgt")}


def torch_state(torch: ModuleType) -> dict[str, object]:
    distributed = getattr(torch, "distributed", None)
    return {
        "torch's threads": torch.get_num_threads(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the process group": bool(distributed and distributed.is_available() and distributed.is_initialized()),
    }


def changes(before: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """What is not as it was ``before``: (then, now) by what it is; of several only those that differ.

    What has come with torch since then was not left by a test.
    """
    found: dict[str, tuple[object, object]] = {}
    for name, now in process_state().items():
        then = before.get(name, now)
        if isinstance(then, dict) and isinstance(now, dict):
            for key in sorted({*then, *now}, key=str):
                if then.get(key) != now.get(key):
                    found[f"{name}: {key}"] = then.get(key), now.get(key)
        elif then != now:
            found[name] = then, now
    return found
