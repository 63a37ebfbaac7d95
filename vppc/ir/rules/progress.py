"""Rules of progress: the programs cannot hang, when sends complete alone and when they do not."""

from __future__ import annotations

from collections.abc import Sequence

from vppc.analysis.deadlock import Blocked, Progress, eager, wait_cycles
from vppc.ir.rules.explain import excerpt, name, place, row_of
from vppc.ir.rules.program import Tape
from vppc.ir.rules.registry import Report

SHOWN_RANKS = 6
"""How many ranks of a circle are shown with their instructions."""


def check_progress(progress: Progress, tapes: Sequence[Tape], report: Report) -> list[tuple[int, int]]:
    """Run the ranks on to their end (rules D1 and D2); return the steps, one possible order of all that was run.

    In an open stream a rank may wait for what a later segment posts.
    """
    steps = progress.run()
    cycles = wait_cycles(progress.blocked())
    if cycles:
        alone = Progress([eager(track) for track in progress.tracks])
        alone.run()
        always = wait_cycles(alone.blocked())
        for cycle in always or cycles:
            _report_cycle(cycle, tapes, report, eagerly=bool(always))
    return steps


def _report_cycle(cycle: list[Blocked], tapes: Sequence[Tape], report: Report, *, eagerly: bool) -> None:
    first = cycle[0]
    who = f"ranks {first.rank} and {cycle[1].rank}" if len(cycle) == 2 else f"{len(cycle)} ranks"
    semantics = (
        "even when sends complete alone (eager)"
        if eagerly
        else "when a transfer needs both ends (rendezvous), not when sends complete alone"
    )
    links = [_link(each, behind, tapes) for each, behind in zip(cycle, [*cycle[1:], first], strict=True)]
    report.add(
        "D1" if eagerly else "D2",
        place(first.rank, first.wait),
        "\n".join([f"{who} wait for each other for ever, {semantics}", *links]),
        _remedy(cycle, tapes),
        "\n".join(f"  rank {each.rank}:\n{excerpt(tapes[each.rank], each.wait)}" for each in cycle[:SHOWN_RANKS]),
    )


def _link(each: Blocked, behind: Blocked, tapes: Sequence[Tape]) -> str:
    """One rank of the circle in words; ``behind`` is what holds the rank it waits for."""
    waits_for = name(row_of(tapes[each.rank], row_of(tapes[each.rank], each.wait)[3]))
    post = name(row_of(tapes[each.peer], each.post))
    return (
        f"    rank {each.rank} waits at instruction {each.wait} (WAIT of {waits_for}) for rank {each.peer} to post "
        f"{post} (instruction {each.post}), which comes after its instruction {behind.wait}"
    )


def _remedy(cycle: list[Blocked], tapes: Sequence[Tape]) -> str:
    last = cycle[-1]
    post = name(row_of(tapes[last.peer], last.post))
    return f"for one, post {post} on rank {last.peer} before its WAIT at instruction {cycle[0].wait}"
