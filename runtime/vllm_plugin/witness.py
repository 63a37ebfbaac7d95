"""The witness: notices in the engine's process that a worker is stopped, or stuck in an instruction.

vLLM's engine sees when a worker dies; of one that hangs it sees nothing, until a call has taken
``VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS``. So each worker has a thread that beats on the page, also during a long FORWARD,
and the engine's process one that reads the page and judges by :mod:`runtime.beats`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from runtime.beats import Hearing, Limits, Pulse
from runtime.faults import Position
from runtime.vllm_plugin.page import Page, RankBeat
from runtime.vllm_plugin.settings import Fold

PART_OF_CALL = 0.8
"""Of the seconds that vLLM gives a call, those that an instruction may take, so that it is known which one it was."""


def limits_of(settings: Fold, call: float) -> Limits:
    """Those of the settings; ``call`` are the seconds that vLLM gives a call."""
    return Limits.apart(settings.silence, PART_OF_CALL * call if settings.stall is None else settings.stall)


def start_beating(page: Page, process: int, position: Position, limits: Limits) -> None:
    """Have a thread of this process, number ``process`` of the server's, beat from now on."""
    pulse = Pulse(position)

    def beat() -> None:
        while True:
            page.put_beat(process, RankBeat(*pulse.beat()))
            time.sleep(limits.interval)

    threading.Thread(target=beat, name="vppc-beat", daemon=True).start()


class Witness:
    """Reads the page, on a thread of its own, until :meth:`stop` or until it has ``accuse``d: processes, by number, of
    what, in words."""

    def __init__(self, page: Page, limits: Limits, accuse: Callable[[Mapping[int, str]], None]) -> None:
        self._page, self._limits, self._accuse = page, limits, accuse
        self._hearing = Hearing[RankBeat](limits)
        self._leaving = threading.Event()

    def start(self) -> None:
        """All processes beat."""
        threading.Thread(target=self._watch, name="vppc-witness", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._leaving.set()

    def look(self, now: float) -> dict[int, str]:
        """Who is to be accused of what by now, in seconds on the monotonic clock."""
        self._hearing.hear(self._page.beats(), now)
        limits = self._limits
        silent = dict.fromkeys(
            self._hearing.silent(limits.silence), f"has given no sign of life for {limits.silence:g} s"
        )
        return silent or dict.fromkeys(self._hearing.stalled(), f"has not gone on for {limits.stall:g} s")

    def _watch(self) -> None:
        while not self._leaving.wait(self._limits.interval):
            accused = self.look(time.monotonic())
            if accused and not self._leaving.is_set():
                self._accuse(accused)
                return
