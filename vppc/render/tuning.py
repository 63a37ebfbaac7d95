"""What the tuner found, as text.

The gaps "to any order" and "to any chunking" say how much shorter, in parts of the makespan, another order of the
same chunks, or another chunking on the same stages, could be at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from vppc.ir.partition import write_flat
from vppc.render.report import report_text
from vppc.render.tables import count, percent, seconds, signed_percent, table
from vppc.tuning.engines import engine_settings
from vppc.tuning.tune import Tuned


def tuning_text(results: Sequence[Tuned], advice: Sequence[str]) -> str:
    """The best of each placement, then the best of all with its chunks, layers and time; the best comes first."""
    best = results[0]
    parts = [_placements(results), _plan(best), report_text(best.schedule, best.report)]
    if advice:
        parts.append("\n".join(advice))
    return "\n\n".join(parts)


def _placements(results: Sequence[Tuned]) -> str:
    headers = ("placement", "vp", "chunks", "makespan", "efficiency", "to any order", "to any chunking", "costs off")
    return table(
        headers,
        [
            (
                tuned.placement,
                str(tuned.vp),
                count(len(tuned.schedule.chunks)),
                seconds(tuned.report.makespan),
                percent(tuned.report.efficiency),
                percent(max(0.0, 1.0 - tuned.report.bound.seconds / tuned.report.makespan)),
                percent(tuned.gap),
                f"{signed_percent(tuned.robustness.mean / tuned.robustness.expected - 1.0)}"
                f" +- {percent(tuned.robustness.spread / tuned.robustness.expected)}",
            )
            for tuned in results
        ],
    )


def _plan(best: Tuned) -> str:
    lines = [("chunks", " ".join(str(chunk.tokens) for chunk in best.schedule.chunks))]
    lines += [("layers", write_flat(best.ranges))]
    for setting in engine_settings(best.schedule):
        lines.append((setting.engine, f"{setting.name}: {setting.value or 'no, ' + setting.refusal}"))
    lines.append(("order", f"no order of these chunks is quicker than {seconds(best.report.bound.seconds)}"))
    if best.exact is not None:
        lines.append(("solver", f"no order of these chunks is quicker than {seconds(best.exact)}"))
    lines.append(("chunking", f"no chunking on these stages is quicker than {seconds(best.bound)}"))
    world, worst = best.robustness.worst
    lines.append(("costs off", f"{seconds(worst)} at worst ({world.name})"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)
