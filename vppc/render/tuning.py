"""What the tuner found, as text.

The gaps "to any order" and "to any chunking" say how much shorter, in parts of the makespan, another order of the
same chunks, or another chunking on the same stages, could be at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vppc.ir.partition import write_flat
from vppc.render.report import report_text
from vppc.render.tables import count, percent, seconds, signed_percent, table
from vppc.tuning.beside import Beside
from vppc.tuning.engines import PLAN, PLUGIN, Setting, engine_settings
from vppc.tuning.robust import Robustness
from vppc.tuning.tune import Tuned, mean_ttft

_LEGEND = (
    "to any order, to any chunking: what another one could be quicker by at most; costs off: how much longer it takes "
    "where costs are others"
)


def tuning_text(results: Sequence[Tuned], others: Sequence[Beside], advice: Sequence[str], plan: str = PLAN) -> str:
    """The best of each placement, what it gains, and its chunks, layers and time; the best comes first.

    ``others`` is what the best is held against, and ``plan`` the file that it is in.
    """
    best = results[0]
    parts = [
        _placements(results),
        _gains(best, others),
        _plan(best, others, plan),
        report_text(best.schedule, best.report),
    ]
    if advice:
        parts.append("\n".join(advice))
    return "\n\n".join(parts)


def _placements(results: Sequence[Tuned]) -> str:
    headers = ("placement", "vp", "chunks", "makespan", "efficiency", "to any order", "to any chunking", "costs off")
    found = table(
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
    return f"{found}\n{_LEGEND}"


def _gains(best: Tuned, others: Sequence[Beside]) -> str:
    """What the plan gains over chunks of one size, and what is to be said of them; of several prompts with TTFTs."""
    several = len(best.schedule.requests) > 1
    headers: tuple[str, ...] = ("beside, at its best chunk size", "chunk size", "chunks", "makespan", "plan gains")
    headers += ("mean TTFT", "plan's", "beside it") if several else ()
    mine = mean_ttft(best.report)
    lines, notes = [], []
    for other in others:
        report = other.outcome.report
        if report is None:
            notes.append(f"{other.name} is refused: {other.outcome.refusal}")
            continue
        theirs = mean_ttft(report)
        cells: tuple[str, ...] = (count(other.chunk_size), count(other.outcome.chunks), seconds(report.makespan))
        cells += (signed_percent(_part(report.makespan, best.report.makespan)),)
        cells += (seconds(theirs), seconds(mine), signed_percent(_part(mine, theirs))) if several else ()
        lines.append((other.name, *cells))
        if report.makespan < best.report.makespan:
            notes.append(f"{other.name} is quicker than what was found: use it, or search longer (--effort)")
        if several and mine > theirs:
            longer = percent(_part(mine, theirs))
            notes.append(f"the mean TTFT is {longer} longer than of {other.name}: see --objective both, or ttft")
    return "\n".join((table(headers, lines), *(("", *notes) if notes else ())))


def _part(value: float, base: float) -> float:
    return value / base - 1.0 if base else 0.0


def _one_size(best: Tuned, others: Sequence[Beside]) -> Iterator[tuple[str, str]]:
    """The chunk size that an engine without a chunk plan is best set to, with these stages."""
    for other in others:
        if other.own and other.outcome.report is not None:
            longer = signed_percent(_part(other.outcome.makespan, best.report.makespan))
            yield "one size", f"chunks of {count(other.chunk_size)} on these stages take {longer} beside the plan"


def _plan(best: Tuned, others: Sequence[Beside], plan: str) -> str:
    lines = [("chunks", " ".join(str(chunk.tokens) for chunk in best.schedule.chunks))]
    lines += [("layers", write_flat(best.ranges))]
    lines += _one_size(best, others)
    for setting in engine_settings(best.schedule, plan):
        lines.append((setting.engine, _told(setting)))
    lines.append(("order", f"no order of these chunks is quicker than {seconds(best.report.bound.seconds)}"))
    if best.exact is not None:
        ahead = best.found.case.max_in_flight
        within = f" with {count(ahead)} in flight" if ahead is not None else ""
        lines.append(("solver", f"no order of these chunks{within} is quicker than {seconds(best.exact)}"))
    lines.append(("chunking", f"no chunking on these stages is quicker than {seconds(best.bound)}"))
    lines.append(("costs off", _costs_off(best.robustness)))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


def _told(setting: Setting) -> str:
    """A setting as it is pasted, or why there is none."""
    between = " " if setting.engine == PLUGIN and setting.value else ": "
    return f"{setting.name}{between}{setting.value or 'no, ' + setting.refusal}"


def _costs_off(off: Robustness) -> str:
    """How much longer the makespan is in worlds with other costs, in words."""
    world, worst = off.worst
    mean = signed_percent(_part(off.mean, off.expected))
    return (
        f"in {count(len(off.worlds))} worlds with other costs this plan takes {mean} on the mean, with a spread of "
        f"{percent(off.spread / off.expected if off.expected else 0.0)}; at worst {seconds(worst)} "
        f"({signed_percent(_part(worst, off.expected))}), where {world.meaning}"
    )
