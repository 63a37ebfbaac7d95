"""What the tuner found, as text."""

from __future__ import annotations

from collections.abc import Sequence

from vppc.render.report import report_text
from vppc.render.tables import count, percent, seconds, table
from vppc.tuning.tune import Tuned


def tuning_text(results: Sequence[Tuned], advice: Sequence[str]) -> str:
    """The best of each placement, then the best of all with its chunks, layers and time; the best comes first."""
    best = results[0]
    parts = [_placements(results), _plan(best), report_text(best.schedule, best.report)]
    if advice:
        parts.append("\n".join(advice))
    return "\n\n".join(parts)


def _placements(results: Sequence[Tuned]) -> str:
    return table(
        ("placement", "vp", "chunks", "makespan", "efficiency", "above the bound of", "this plan", "any chunking"),
        [
            (
                tuned.placement,
                str(tuned.vp),
                count(len(tuned.schedule.chunks)),
                seconds(tuned.report.makespan),
                percent(tuned.report.efficiency),
                "",
                percent(tuned.report.gap),
                percent(tuned.report.makespan / tuned.bound - 1.0),
            )
            for tuned in results
        ],
    )


def _plan(best: Tuned) -> str:
    lines = [("chunks", " ".join(str(chunk.tokens) for chunk in best.schedule.chunks)), *best.settings.items()]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)
