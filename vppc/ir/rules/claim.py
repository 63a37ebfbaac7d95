"""Rules of the certificate: what it says is so."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from vppc.analysis.deadlock import Track
from vppc.ir.certificate import LIFETIME, STEP, Certificate, entries
from vppc.ir.instruction import FORWARD, WIDTH
from vppc.ir.rules.explain import excerpt, name, row_of
from vppc.ir.rules.program import Tape
from vppc.ir.rules.registry import Report


def lifetimes(tape: Tape) -> array[int]:
    """The buffer lifetimes of a rank that have ended, by the instruction that wrote; three integers each."""
    code, found = tape.code, array("i")
    for first, last in enumerate(tape.ends):
        if last:
            found.extend((code[first * WIDTH + (4 if code[first * WIDTH] == FORWARD else 3)], first, last))
    return found


def check_order(claim: Certificate, tracks: Sequence[Track], tapes: Sequence[Tape], report: Report) -> None:
    """Follow the order step by step (rules X1 and X2); only the first fault is reported."""
    reached, passed = [0] * len(tracks), [0] * len(tracks)
    for number, (rank, upto) in enumerate(entries(claim.order, STEP)):
        here = f"certificate.order[{number}]"
        if not 0 <= rank < len(tracks):
            report.add("X2", here, f"rank {rank} does not exist", f"name one of the {len(tracks)} ranks")
            return
        track = tracks[rank]
        if not reached[rank] < upto <= len(track):
            ends = f"{reached[rank] + 1} and {len(track)}"
            remedy = f"name an end between {ends}, or prove the schedule again, by vppc verify -o"
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
                "add the steps that are missing, or prove the schedule again, by vppc verify -o",
            )


def _report_early(here: str, tape: Tape, wait: int, peer: Tape, post: int, report: Report) -> None:
    what = f"{name(row_of(peer, post))} (instruction {post})" if post >= 0 else "the other end"
    report.add(
        "X1",
        here,
        f"rank {tape.rank} passes its instruction {wait} before rank {peer.rank} has posted {what}",
        "prove the schedule again, by vppc verify -o; this certificate belongs to another",
        excerpt(tape, wait),
    )


def check_lifetimes(claim: Certificate, tapes: Sequence[Tape], report: Report) -> None:
    """Compare the lifetimes with those of the programs (rule X3)."""
    remedy = "prove the schedule again, by vppc verify -o; this certificate belongs to another"
    if len(claim.lifetimes) != len(tapes):
        problem = f"has {len(claim.lifetimes)} lists for {len(tapes)} ranks"
        report.add("X3", "certificate.lifetimes", problem, remedy)
        return
    for rank, (claimed, tape) in enumerate(zip(claim.lifetimes, tapes, strict=True)):
        actual = lifetimes(tape)
        if claimed == actual:
            continue
        here = f"certificate.lifetimes[{rank}]"
        have, want = Counter(entries(claimed, LIFETIME)), Counter(entries(actual, LIFETIME))
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
