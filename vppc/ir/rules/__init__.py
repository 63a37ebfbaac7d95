"""What must hold for a schedule: the rules, each with a code, and whether a given one keeps them.

``docs/rules.md`` shows a bad example of each. Rules are judged in levels: what the header, the requests and
the chunks say; each instruction by itself; whether one is missing; how the ends of the channels meet; what the
buffers hold; whether the ranks always go on; and at last what else the file claims. A fault of one level makes
the next meaningless, so only those of the lowest level are shown.

========================  =====================================================
:mod:`.registry`          the codes and statements, and the report
:mod:`.header`            stages, layers, programs, channels
:mod:`.prompts`           requests and chunks
:mod:`.program`           one rank's instructions in one fast scan
:mod:`.explain`           what is wrong where that scan stops
:mod:`.channels`          the i-th SEND meets the i-th RECV
:mod:`.closing`           what may not be left open
:mod:`.progress`          no deadlock, eager and rendezvous
:mod:`.memory`            limits and buffer sizes
:mod:`.claim`             certificates
:mod:`.segments`          segments follow each other
:mod:`.verifier`          all of it, for a stream that grows
========================  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vppc.errors import CheckFailed, Finding
from vppc.ir.certificate import Certificate
from vppc.ir.rules.registry import RULES, Rule
from vppc.ir.rules.verifier import Verifier
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Segment

__all__ = ["RULES", "Rule", "Verifier", "check", "check_stream", "prove"]


def check(schedule: Schedule) -> tuple[Finding, ...]:
    """What is wrong with a schedule; empty when it is proven. Its certificate, if it has one, is checked too."""
    return Verifier(schedule).findings(closed=True)


def prove(schedule: Schedule) -> Certificate:
    """The certificate of a schedule. Raises CheckFailed with the findings of one that breaks a rule.

    A certificate that the schedule carries already is not looked at.
    """
    verifier = Verifier(replace(schedule, certificate=None))
    findings = verifier.findings(closed=True)
    if findings:
        raise CheckFailed(findings)
    return verifier.certificate()


def check_stream(schedule: Schedule, segments: Iterable[Segment], *, closed: bool) -> tuple[Finding, ...]:
    """What is wrong with a schedule followed by segments; ``closed`` if no other segment is to come.

    An open stream may leave transfers, buffers, chunks and prompts unfinished.
    """
    verifier = Verifier(schedule)
    for segment in segments:
        verifier.extend(segment)
    return verifier.findings(closed=closed)
