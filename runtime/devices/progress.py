"""Where a device is in a program, told by events on its compute stream behind each instruction.

The host queues an instruction in microseconds that takes the device milliseconds. Unbounded, it would be through
with the program while the device has hardly begun, and would neither notice a stall nor a cancellation. So at most
``limit`` instructions are queued and not finished; the host then polls the oldest one's event. It polls rather than
synchronizes, since torch_npu's Event.synchronize spins while the event is in the host's task queue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from runtime.clock import Clock

POLL = 50e-6
"""Seconds between two looks at an event."""
ANCHOR_ROUNDS = 8


class _Mark:
    """The events around one instruction."""

    __slots__ = ("after", "before", "index")

    def __init__(self, before: Any, after: Any) -> None:
        self.before, self.after = before, after
        self.index = -1


class StreamProgress:
    """The progress of one program on device ``index`` of ``module``, ``limit`` instructions ahead at most.

    The host's thread calls ``begin``, ``end``, ``settled`` and ``drain``, any thread ``unfinished``.
    """

    def __init__(
        self, module: Any, index: int, limit: int, clock: Clock, report: Callable[[float, float], None] | None
    ) -> None:
        self.module, self.index, self.limit = module, index, limit
        self.clock, self.report = clock, report
        self.queued: deque[_Mark] = deque()
        self.spare: list[_Mark] = []
        self.lock = threading.Lock()  # of the queue's ends, against a look from another thread
        self.next = 0
        self.current: _Mark
        if report is not None:
            self.anchor, self.anchored = self._measure_anchor()
            self.reported = float("-inf")

    def begin(self) -> None:
        mark = self.current = self.spare.pop() if self.spare else self._mark()
        mark.index = self.next
        self.next += 1
        if self.report is not None:
            mark.before.record()

    def end(self) -> None:
        mark = self.current
        mark.after.record()
        with self.lock:
            self.queued.append(mark)
        while len(self.queued) > self.limit:
            self._finish_oldest()

    def settled(self) -> bool:
        while self.queued and self.queued[0].after.query():
            self._finish_oldest()
        return not self.queued

    def drain(self) -> None:
        while self.queued:
            self._finish_oldest()

    def unfinished(self) -> int | None:
        self.module.set_device(self.index)  # a thread of its own has none
        with self.lock:
            for mark in self.queued:
                try:
                    finished = mark.after.query()
                except RuntimeError:  # the device has failed here, which the host's own thread will raise
                    finished = False
                if not finished:
                    return mark.index
        return None

    def _mark(self) -> _Mark:
        if self.report is None:
            return _Mark(None, self.module.Event())
        return _Mark(self.module.Event(enable_timing=True), self.module.Event(enable_timing=True))

    def _finish_oldest(self) -> None:
        mark = self.queued[0]
        earliest = float("-inf")
        while True:
            looked = self.clock.now()
            if mark.after.query():
                break
            earliest = looked
            time.sleep(POLL)
        latest = self.clock.now()
        with self.lock:
            self.queued.popleft()
        if self.report is not None:
            end = self._time(mark.after)
            # the device's clock drifts; the looks say between which times it was
            self.anchored += min(max(end, earliest), latest) - end
            start = max(self.reported, self._time(mark.before))  # a stream does one thing after the other
            self.reported = max(start, self._time(mark.after))
            self.report(start, self.reported)
        self.spare.append(mark)

    def _time(self, event: Any) -> float:
        """When a finished event happened, on the clock. For another torch_npu would wait, and stop all threads."""
        return self.anchored + float(self.anchor.elapsed_time(event)) / 1e3

    def _measure_anchor(self) -> tuple[Any, float]:
        """An event, and when it happened: between two looks at the clock, so take the closest two of several."""
        best = (float("inf"), 0.0, None)
        self.module.synchronize()
        for _ in range(ANCHOR_ROUNDS):
            event = self.module.Event(enable_timing=True)
            before = self.clock.now()
            event.record()
            event.synchronize()
            after = self.clock.now()
            best = min(best, (after - before, (before + after) / 2, event), key=lambda measured: measured[0])
        return best[2], best[1]
