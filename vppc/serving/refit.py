"""Costs that follow what the ranks take: fitted anew whenever that has drifted from the plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import NamedTuple, TypeAlias

from vppc.costs.calibration import Calibration, calibrate
from vppc.costs.model import CostModel
from vppc.costs.samples import Measurements
from vppc.errors import CheckFailed, InputError
from vppc.serving.drift import Drift


class NoFit(NamedTuple):
    """No costs fit what the ranks take, and why."""

    why: str


Found: TypeAlias = Calibration | NoFit


class Refit:
    """Looks at ``drift``, and fits costs to what it measured. What an operator is to know goes to ``notice``, in words.

    ``found`` gets what a fit comes to, from a thread, since a fit takes as long as some FORWARDs; it hands that to the
    thread that looks, for :meth:`take`.
    """

    def __init__(self, drift: Drift, notice: Callable[[str], None], found: Callable[[Found], None]) -> None:
        self._drift, self._notice, self._found = drift, notice, found
        self._again = inf  # after how many FORWARDs to fit again, where costs did not fit

    def look(self) -> None:
        """Begin to fit, if the drift has passed its bound since the last look, or has not come back while as many
        FORWARDs have run again as there were when nothing fitted: the first ones are cold, say."""
        if news := self._drift.news():
            self._notice(news)
        if self._drift.alarmed and (news or self._drift.measured >= self._again):
            self._again = inf
            given = (self._drift.measurements(), self._drift.cost)
            threading.Thread(target=self._fit, args=given, name="refit", daemon=True).start()

    def take(self, found: Found) -> CostModel | None:
        """From now on the drift is told from the costs that were found; None when none were."""
        if isinstance(found, NoFit):
            self._notice(f"no costs fit what the ranks take: {found.why}")
            self._again = 2 * self._drift.measured
            return None
        self._drift.replan(found.cost)
        self._notice("costs refitted to what the ranks take")
        return found.cost

    def _fit(self, measured: Measurements, base: CostModel) -> None:
        try:
            self._found(calibrate(measured, base=base))
        except (InputError, CheckFailed) as error:
            self._found(NoFit(str(error)))
