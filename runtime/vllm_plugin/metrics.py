"""What a folded server adds to vLLM's ``/metrics``, read off its page when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY  # type: ignore[import-not-found]  # it comes with vLLM
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # type: ignore[import-not-found]

from runtime.vllm_plugin.page import Page


class FoldMetrics:
    """A collector of prometheus_client's. While the engine's page is not there, it has nothing to say."""

    def __init__(self, path: Path, pp: int, tp: int) -> None:
        self._path, self._pp, self._tp = path, pp, tp

    def describe(self) -> tuple[()]:
        """Nothing beforehand: the registry would ask :meth:`collect`, before there is a page."""
        return ()

    def collect(self) -> Iterator[Any]:
        try:
            page = Page(self._path, self._pp * self._tp)
        except OSError:
            return
        engine, ranks = page.engine(), page.ranks()[:: self._tp]  # of a rank its first process
        active = engine.active + (time.monotonic() - engine.since if engine.since else 0.0)
        yield GaugeMetricFamily("vppc_chunks_in_flight", "Batches that entered and are not sampled.", engine.in_flight)
        yield CounterMetricFamily("vppc_active_seconds", "Seconds in which a batch was in flight.", active)
        busy = CounterMetricFamily("vppc_rank_busy_seconds", "Seconds a rank computed.", labels=["rank"])
        bubble = GaugeMetricFamily(
            "vppc_rank_bubble_ratio", "Part of the active seconds a rank did not compute.", labels=["rank"]
        )
        drift = GaugeMetricFamily(
            "vppc_rank_plan_drift", "How much longer FORWARDs took than the costs say: 0.1 is a tenth.", labels=["rank"]
        )
        for rank, row in enumerate(ranks):
            busy.add_metric([str(rank)], row.busy)
            if active:
                bubble.add_metric([str(rank)], max(0.0, 1.0 - row.busy / active))
            if row.drift is not None:
                drift.add_metric([str(rank)], row.drift)
        yield from (busy, bubble, drift)


@cache
def watch(path: Path, pp: int, tp: int) -> None:
    """Have this process's ``/metrics`` tell of the engine with that page, once however often it is asked."""
    REGISTRY.register(FoldMetrics(path, pp, tp))
