"""What serving came to, as text: rates and first tokens of each contestant, where the ranks' time goes, and gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from vppc.passes.strategies import Options, run_ahead
from vppc.render.tables import count, percent, printable, seconds, signed_percent, table
from vppc.serving.contest import Entry, Served
from vppc.serving.metrics import ServingReport
from vppc.serving.workloads import Workload

SHOWN_RANKS = 4
"""Of more ranks, only those with the least and the most bubble are shown."""
_IDLE = (
    "transfer: next input under way; imbalance: not computed; held: may not enter; "
    "starved: none waits; empty: no request"
)


def serving_text(entries: Sequence[Entry], subject: str) -> str:
    """All workloads one after another, and the gains of the contestant ``subject``; ends without a newline."""
    blocks: list[str] = []
    for workload, group in groupby(entries, key=lambda entry: entry.workload):
        blocks += _of_one_workload(workload, list(group), subject)
    for name, same in depths(entries):
        if len(same[0]) > 1:
            what = " gains throughput" if same[0][0].workload.rate is None else "'s mean TTFT"
            blocks += [f"{printable(name)}: {subject}{what} by queue depth", _by_depth(same, subject)]
    refusals = dict.fromkeys(
        f"refused: {entry.contestant}: {served.refusal}"
        for entry in entries
        for served in entry.tried
        if served.refusal
    )
    return "\n\n".join([*blocks, *(["\n".join(refusals)] if refusals else [])])


def depths(entries: Sequence[Entry]) -> Iterator[tuple[str, list[list[Entry]]]]:
    """The workloads that come at several paces: the name, and the contestants at each pace. Closed and open loops
    apart, since in the one throughput is compared and in the other the time to a first token."""
    levels = [list(group) for _, group in groupby(entries, key=lambda entry: entry.workload)]
    for (name, _), group in groupby(levels, key=lambda level: (level[0].workload.name, level[0].workload.rate is None)):
        same = list(group)
        if len(same) > 1:
            yield name, same


def pace(workload: Workload) -> str:
    """How requests come, in words: ``16 at a time``, ``0.52 a second``, ``at once``."""
    if workload.concurrency is not None:
        return f"{count(workload.concurrency)} at a time"
    return "at once" if workload.rate is None else f"{workload.rate:.3g} a second"


def _of_one_workload(workload: Workload, entries: list[Entry], subject: str) -> Iterator[str]:
    setting = entries[0].tried[0].trial.setting
    yield (
        f"{printable(workload.name)}: {count(len(workload.requests), 'request')}, {pace(workload)}, "
        f"{count(workload.tokens, 'token')} to compute; {printable(setting.cost.name) or 'unnamed costs'}, "
        f"{count(setting.options.pp, 'rank')}"
    )
    if held := _held(entries):
        yield held
    if len(entries[0].tried) > 1:
        yield _by_size(entries)
    done = [(entry, entry.best.report) for entry in entries if entry.best.report is not None]
    if not done:
        return
    yield _first_tokens(done)
    yield _ranks(done)
    if memory := _memory(done):
        yield memory
    if overrun := _overrun(done):
        yield overrun
    if gains := _gains(entries, subject):
        yield gains


def _held(entries: list[Entry]) -> str:
    """How far straight strategies run ahead here, which differs from where they are compiled; empty without any."""
    straight = [options for entry in entries if not (options := _options(entry)).strategy.startswith("vpp")]
    if not straight:
        return ""
    names = ", ".join(dict.fromkeys(options.strategy for options in straight))
    first = straight[0]
    return (
        f"chunks in flight: {names} {count(first.max_in_flight or first.pp)}, as engines "
        f"(vppc compile and compare: {count(run_ahead(first))} ahead)"
    )


def _options(entry: Entry) -> Options:
    return entry.tried[0].trial.setting.options


def _by_size(entries: list[Entry]) -> str:
    """What counts, by chunk size, the best marked."""
    sizes = [count(served.chunk_size) for served in entries[0].tried]
    what = "tokens/s" if entries[0].workload.rate is None else "mean TTFT"
    return table(
        (f"{what} by chunk size", *sizes),
        ((entry.contestant, *(_cell(served, entry) for served in entry.tried)) for entry in entries),
    )


def _cell(served: Served, entry: Entry) -> str:
    if served.report is None:
        return "refused"
    closed = entry.workload.rate is None
    value = rate(served.report.throughput) if closed else seconds(served.report.ttft.mean)
    return value + ("*" if served is entry.best else " ")


def _first_tokens(done: list[tuple[Entry, ServingReport]]) -> str:
    headers: tuple[str, ...] = ("at its best", "chunk size", "chunks", "tokens/s", "TTFT mean", "P50", "P90", "P99")
    headers += ("queueing", "in system", "KV tokens")
    targets = any(report.target is not None for _, report in done)
    return table(
        headers + (("goodput",) if targets else ()),
        (
            (
                entry.contestant,
                count(entry.best.chunk_size),
                count(report.chunks),
                rate(report.throughput),
                *(seconds(time) for time in (report.ttft.mean, report.ttft.p50, report.ttft.p90, report.ttft.p99)),
                seconds(report.queueing.mean),
                f"{report.depth:.1f}",
                count(report.kv_tokens),
                *((f"{report.goodput:.3g}/s",) if report.goodput is not None else ()),
            )
            for entry, report in done
        ),
    )


def _ranks(done: list[tuple[Entry, ServingReport]]) -> str:
    causes = ("compute", "collective", "transfer", "imbalance", "held", "starved", "empty")
    lines = []
    for entry, report in done:
        uses = sorted(report.ranks, key=lambda use: use.bubble)
        uses = list(report.ranks) if len(uses) <= SHOWN_RANKS else [uses[0], uses[-1]]
        for use in uses:
            parts = (getattr(use, cause) / report.makespan if report.makespan else 0.0 for cause in causes)
            lines.append((entry.contestant, str(use.rank), *map(percent, parts), percent(report.bubble_ratio(use))))
    return f"{table(('share of the time', 'rank', *causes, 'bubble'), lines)}\n{_IDLE}"


def _memory(done: list[tuple[Entry, ServingReport]]) -> str:
    """What the fullest rank needs of its devices' memory, where these are known, and whether it is there."""
    held = [(entry.contestant, entry.best.fullest) for entry, _ in done]
    known = [(name, rank) for name, rank in held if rank is not None]
    if not known:
        return ""
    gib = table(
        ("memory of the fullest rank, GiB a device", "rank", "KV held at once", "in all", "limit", ""),
        (
            (
                name,
                str(rank.rank),
                f"{rank.kv / 2**30:.2f}",
                f"{rank.total / 2**30:.2f}",
                f"{rank.limit / 2**30:.2f}",
                "fits" if rank.free >= 0 else f"{-rank.free / 2**30:.2f} too much",
            )
            for name, rank in known
        ),
        "<>>>><",
    )
    over = [name for name, rank in known if rank.free < 0]
    if not over:
        return gib
    return (
        f"{gib}\nwarning: the devices cannot hold what {_listed(over)} keeps resident, and its times are those of "
        "devices that can: bound it with --max-resident-tokens"
    )


def _overrun(done: list[tuple[Entry, ServingReport]]) -> str:
    """Who does not keep up with an open loop; empty where everybody does."""
    late = [(entry.contestant, report) for entry, report in done if entry.best.overrun]
    if not late:
        return ""
    workload = done[0][0].workload
    served = ", ".join(
        f"{name} serves {rate(report.requests / report.makespan)} (when the last comes, "
        f"{count(report.depth_at_last)} are in the system)"
        for name, report in late
    )
    chosen = ", and so does the choice of a chunk size by it" if len(done[0][0].tried) > 1 else ""
    return (
        f"note: requests come faster than they are served, {pace(workload)}: {served}. The queue grows until no more "
        f"come, so TTFT, queueing and goodput depend on how long the trace is{chosen}; tokens/s do not"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


def _gains(entries: list[Entry], subject: str) -> str:
    ours = next(entry for entry in entries if entry.contestant == subject)
    others = [(entry.contestant, ours.gain_over(entry)) for entry in entries if entry is not ours]
    said = [(name, part) for name, part in others if part is not None]
    if not said:
        return ""
    if ours.workload.rate is None:
        return f"{subject} gains {', '.join(f'{signed_percent(part)} over {name}' for name, part in said)}"
    return f"{subject}'s mean TTFT is {', '.join(f'{_shorter(part)} than that of {name}' for name, part in said)}"


def _shorter(part: float) -> str:
    """In words, so that nobody takes a time that falls for a loss: ``21.8% shorter``, ``3.0% longer``."""
    return f"{percent(abs(part))} {'shorter' if part <= 0 else 'longer'}"


def _by_depth(levels: list[list[Entry]], subject: str) -> str:
    others = [entry.contestant for entry in levels[0] if entry.contestant != subject]
    closed = levels[0][0].workload.rate is None
    what, said = ("tokens/s", signed_percent) if closed else ("mean TTFT", _shorter)
    lines = []
    for level in levels:
        found = {entry.contestant: entry for entry in level}
        ours = found[subject]
        report = ours.best.report
        gains = (ours.gain_over(found[name]) for name in others)
        lines.append(
            (
                pace(ours.workload),
                "" if report is None else f"{report.depth:.1f}",
                "" if report is None else rate(report.throughput) if closed else seconds(report.ttft.mean),
                *("" if part is None else said(part) for part in gains),
            )
        )
    beside = (f"{'over' if closed else 'than'} {name}" for name in others)
    return table(("requests come", "in system", what, *beside), lines)


def rate(value: float) -> str:
    """A rate a second: whole from 100 on, else three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
