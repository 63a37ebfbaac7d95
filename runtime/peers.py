"""Who a process is, so that another one on its machine can end it and never a stranger."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A process: its machine with the name space of its number, its number, and when it started (all as Linux says).

    Elsewhere than on Linux the machine is empty, and nobody is ended.
    """

    machine: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Peer:
        """This process."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            space = os.stat("/proc/self/ns/pid").st_ino
            return cls(f"{boot}/{space}", os.getpid(), _started(os.getpid()))
        except OSError:
            return cls("", os.getpid(), "")

    def kill(self) -> None:
        """End the process when it is on this machine and still the one it was; a stopped one ends, too."""
        here = Peer.here()
        if not here.machine or here.machine != self.machine or here.pid == self.pid:
            return
        try:
            if _started(self.pid) == self.started:
                os.kill(self.pid, signal.SIGKILL)
        except OSError:  # it is gone, or not ours to end
            return


def _started(pid: int) -> str:
    """Clock ticks from boot to the start of a process: field 22 of its stat, counted behind the name in brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
