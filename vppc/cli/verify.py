"""``vppc verify``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import click

from vppc.cli.output import JSON, Output
from vppc.cli.provenance import command_line, signed
from vppc.compiler import certified
from vppc.errors import CheckFailed, Finding, InputError
from vppc.files import check_one_stdin, read_bytes, source_name, write_text
from vppc.ir.document import digest, parse_schedule, parse_segment, schedule_text
from vppc.ir.rules import RULES, Verifier
from vppc.ir.rules.memory import peak_buffers, peak_kv_tokens
from vppc.ir.schedule import Schedule
from vppc.json_text import dumps

T = TypeVar("T")


@click.command(name="verify")
@click.argument("file", metavar="FILE")
@click.argument("segments", metavar="[SEGMENT]...", nargs=-1)
@click.option("--open", "is_open", is_flag=True, help="More segments will follow: things may be left unfinished.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: proven, findings, and the peaks of each rank.")
@click.option(
    "-o", "--output", metavar="FILE", type=Output("a schedule", *JSON), help="Write the schedule with its certificate."
)
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    segments: tuple[str, ...],
    is_open: bool,
    as_json: bool,
    output: str | None,
) -> None:
    """Prove that a schedule FILE (- is stdin), followed by its SEGMENTs, cannot hang or mix up data.

    Checks every rule of the format: stages and layers, coverage of the prompts, KV order, buffers, transfers,
    and progress both when sends complete alone and when a transfer needs both ends. A certificate in the file
    is checked too. What is wrong goes to stderr, one finding a rule and place, with exit status 1.

    A schedule from elsewhere has no certificate, without which it is not run, or after an edit one that no longer
    holds: -o writes it with a new one.
    """
    check_one_stdin((file, *segments))
    if output is not None:
        for option, given in (("SEGMENT", bool(segments)), ("--open", is_open), ("--json", as_json and output == "-")):
            if given:
                raise InputError(f"does not go with {option}", place="-o", remedy="write one whole schedule to a file")
        proven = _proven(file, command_line(context))
        write_text(output, schedule_text(proven))
        if output == "-":
            return
        verifier = Verifier(proven)
    else:
        verifier = _read(file, segments)
    findings = verifier.findings(closed=not is_open)
    if as_json:
        write_text(None, dumps(_summary(verifier, findings, is_open)) + "\n")
    if findings:
        raise CheckFailed(findings, file=" + ".join(map(source_name, (file, *segments))))
    if not as_json:
        write_text(None, _sentence(verifier, file, segments, is_open) + "\n")


def _proven(file: str, made_by: str) -> Schedule:
    """The schedule in a file with a certificate of its own. Raises CheckFailed when it breaks a rule."""
    schedule, _ = _with_digest(parse_schedule, file)
    try:
        proven = certified(replace(schedule, certificate=None))
    except CheckFailed as error:
        raise CheckFailed(error.findings, file=source_name(file)) from None
    return signed(proven, made_by)


def _read(file: str, segments: Sequence[str]) -> Verifier:
    verifier = Verifier(*_with_digest(parse_schedule, file))
    for path in segments:
        verifier.extend(*_with_digest(parse_segment, path))
    return verifier


def _with_digest(parse: Callable[[bytes, str], T], path: str) -> tuple[T, str]:
    """What is in a file, whose bytes are let go, as they can be many."""
    data = read_bytes(path)
    return parse(data, source_name(path)), digest(data)


def _summary(verifier: Verifier, findings: Sequence[Finding], is_open: bool) -> dict[str, Any]:
    proven: dict[str, Any] = {"proven": not findings, "open": is_open, "ranks": verifier.schedule.pp}
    if not findings:
        proven["instructions"] = [len(tape) for tape in verifier.tapes]
        proven["peak_buffers"] = [peak_buffers(tape) for tape in verifier.tapes]
        proven["peak_kv_tokens"] = peak_kv_tokens(verifier.tapes, verifier.prompts)
    proven["findings"] = [{**asdict(finding), "rule": RULES[finding.code].statement} for finding in findings]
    return proven


def _sentence(verifier: Verifier, file: str, segments: Sequence[str], is_open: bool) -> str:
    tapes = verifier.tapes
    behind = f" + {len(segments)} segment{'s' if len(segments) > 1 else ''}" if segments else ""
    return (
        f"{source_name(file)}{behind}: proven{' so far' if is_open else ''}: {sum(map(len, tapes)):,} instructions on "
        f"{len(tapes)} rank{'s' if len(tapes) > 1 else ''}, no deadlock (eager and rendezvous), "
        f"peak buffers {max(map(peak_buffers, tapes))}, peak KV {max(peak_kv_tokens(tapes, verifier.prompts)):,} tokens"
    )
