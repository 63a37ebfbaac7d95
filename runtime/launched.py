"""A process that a launcher started ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when who started it ends."""


def end_with_the_launcher() -> None:
    """Have SIGTERM sent here when the launcher ends, however it ends; only Linux can.

    Only where the launcher holds the store of the run, without which nothing goes on.
    """
    if sys.platform == "linux" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
