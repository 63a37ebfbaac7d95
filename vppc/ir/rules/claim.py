"""The certificate: what a proof found out, so that a reader need not search for it again, only check it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vppc.analysis.deadlock import Track
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, WIDTH
from vppc.ir.rules.explain import excerpt, name, row_of
from vppc.ir.rules.program import Tape
from vppc.ir.rules.registry import Report


@dataclass(frozen=True, slots=True)
class Certificate:
    """A possible order of all instructions, and how long every buffer holds what.

    ``order`` is a list of steps [rank, upto]: the rank runs the instructions before ``upto`` that it has not
    run yet. No WAIT in it comes before what it waits for, so nobody ever blocks, even by rendezvous.
    ``lifetimes`` is, for every rank, a list of [buffer, first, last]: instruction ``first`` writes the buffer,
    ``last`` frees it. Both are as in the file and never changed.
    """

    order: list[list[int]]
    lifetimes: list[list[list[int]]]

    @classmethod
    def read(cls, document: Any, file: str = "", place: str = "certificate") -> Certificate:
        """The certificate in a parsed JSON value. Raises InputError when that has another shape."""
        if not isinstance(document, dict):
            raise InputError("is not an object", file=file, place=place, remedy='{"order": [..], "lifetimes": [..]}')
        order: Any = document.get("order")
        lifetimes: Any = document.get("lifetimes")
        if not _is_table(order, 2):
            raise InputError("is not a list of steps", file=file, place=f"{place}.order", remedy="[rank, upto] each")
        if not isinstance(lifetimes, list) or not all(_is_table(each, 3) for each in lifetimes):
            raise InputError(
                "is not a list of lifetimes for every rank",
                file=file,
                place=f"{place}.lifetimes",
                remedy="for each rank a list of [buffer, first, last]",
            )
        return cls(order, lifetimes)

    def json(self) -> dict[str, Any]:
        """The certificate as it stands in a schedule file."""
        return {"order": self.order, "lifetimes": self.lifetimes}


def lifetimes(tape: Tape) -> list[list[int]]:
    """The buffer lifetimes of a rank that have ended, by the instruction that wrote."""
    code = tape.code
    return [
        [code[first * WIDTH + (4 if code[first * WIDTH] == FORWARD else 3)], first, last]
        for first, last in enumerate(tape.ends)
        if last
    ]


def check_order(claim: Certificate, tracks: Sequence[Track], tapes: Sequence[Tape], report: Report) -> None:
    """Follow the order step by step (rules X1 and X2); only the first fault is reported."""
    reached, passed = [0] * len(tracks), [0] * len(tracks)
    for number, (rank, upto) in enumerate(claim.order):
        here = f"certificate.order[{number}]"
        if not 0 <= rank < len(tracks):
            report.add("X2", here, f"rank {rank} does not exist", f"name one of the {len(tracks)} ranks")
            return
        track = tracks[rank]
        if not reached[rank] < upto <= len(track):
            remedy = f"name an end between {reached[rank] + 1} and {len(track)}, or prove the schedule again"
            report.add("X2", here, f"rank {rank} goes from instruction {reached[rank]} to {upto}", remedy)
            return
        while passed[rank] < len(track.waits) and track.waits[passed[rank]] < upto:
            wait = track.waits[passed[rank]]
            peer, post = track.needs(wait)
            if post < 0 or reached[peer] <= post:
                _report_early(here, tapes[rank], wait, tapes[peer], post, report)
                return
            passed[rank] += 1
        reached[rank] = upto
    for rank, track in enumerate(tracks):
        if reached[rank] < len(track):
            report.add(
                "X2",
                "certificate.order",
                f"ends with rank {rank} at instruction {reached[rank]} of {len(track)}",
                "add the steps that are missing, or prove the schedule again",
            )


def _report_early(here: str, tape: Tape, wait: int, peer: Tape, post: int, report: Report) -> None:
    what = f"{name(row_of(peer, post))} (instruction {post})" if post >= 0 else "the other end"
    report.add(
        "X1",
        here,
        f"rank {tape.rank} passes its instruction {wait} before rank {peer.rank} has posted {what}",
        "prove the schedule again; this certificate belongs to another",
        excerpt(tape, wait),
    )


def check_lifetimes(claim: Certificate, tapes: Sequence[Tape], report: Report) -> None:
    """Compare the lifetimes with those of the programs (rule X3)."""
    remedy = "prove the schedule again; this certificate belongs to another"
    if len(claim.lifetimes) != len(tapes):
        problem = f"has {len(claim.lifetimes)} lists for {len(tapes)} ranks"
        report.add("X3", "certificate.lifetimes", problem, remedy)
        return
    for rank, (claimed, tape) in enumerate(zip(claim.lifetimes, tapes, strict=True)):
        actual = lifetimes(tape)
        if claimed == actual:
            continue
        here = f"certificate.lifetimes[{rank}]"
        have, want = Counter(map(tuple, claimed)), Counter(map(tuple, actual))
        for entry in sorted(have - want):
            buffer, first, last = entry
            wrong = (
                "is listed twice"
                if entry in want
                else f"is not so: b{buffer} is not written at {first} and freed at {last}"
            )
            report.add("X3", here, f"[{buffer}, {first}, {last}] {wrong}", remedy)
        for buffer, first, last in sorted(want - have):
            report.add("X3", here, f"[{buffer}, {first}, {last}] is missing", remedy)


def _is_table(value: Any, width: int) -> bool:
    """Whether a value is a list of lists of ``width`` integers."""
    return (
        isinstance(value, list)
        and {list}.issuperset(map(type, value))
        and {width}.issuperset(map(len, value))
        and {int}.issuperset(map(type, chain.from_iterable(value)))
    )
