"""Certificates: prove a schedule once, write down how, and check that elsewhere in one pass.

Standard library only, for a runtime that accepts no schedule without its proof.
"""

from __future__ import annotations

from dataclasses import replace

from vppc.errors import CheckFailed, Finding
from vppc.ir.rules.claim import Certificate
from vppc.ir.rules.verifier import Verifier
from vppc.ir.schedule import Schedule

__all__ = ["Certificate", "check_certificate", "prove"]


def prove(schedule: Schedule) -> Certificate:
    """The certificate of a schedule. Raises CheckFailed with the findings of one that breaks a rule.

    A certificate that the schedule carries already is not looked at.
    """
    extra = {key: value for key, value in schedule.extra.items() if key != "certificate"}
    verifier = Verifier(replace(schedule, extra=extra))
    findings = verifier.findings(closed=True)
    if findings:
        raise CheckFailed(findings)
    return verifier.certificate()


def check_certificate(schedule: Schedule, certificate: Certificate) -> tuple[Finding, ...]:
    """What is wrong with a schedule or with the certificate given for it; empty when both are right."""
    return Verifier(replace(schedule, extra={**schedule.extra, "certificate": certificate.json()})).findings(
        closed=True
    )
