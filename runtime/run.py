"""One process of a run, from start to end."""

from __future__ import annotations

import os
import sys

from runtime.arguments import Arguments
from runtime.devices.settings import problems
from runtime.interpreter import Token
from runtime.session import Outcome, Session
from runtime.world import where


def run(arguments: Arguments) -> None:
    """Run this process's part of the schedule and, on process 0, print what came out."""
    with Session(arguments) as session:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # the processes of a machine have the same settings
            sys.stderr.writelines(f"vppc-run: problem: {line}\n" for line in problems(session.device.name, os.environ))
        if arguments.stream:
            if session.world.process == 0 and not arguments.quiet:  # launchers choose a port of their own, some of them
                sys.stderr.write(f"vppc-run: ready for vppc serve --attach {where()}\n")
            session.stream(arguments)
            return
        outcome = session.run(arguments)
        if session.world.process == 0:
            sys.stdout.write(report(outcome))


def report(outcome: Outcome) -> str:
    """A line a request: its first token and its TTFT in seconds."""
    firsts: dict[int, Token] = {}
    for token in outcome.tokens:
        firsts.setdefault(token.request, token)
    lines = [f"{'request':<16} {'token':>8} {'TTFT':>12}"]
    for index, request in enumerate(outcome.schedule.requests):
        first = firsts.get(index)
        what = f"{first.token:>8} {first.seconds:>10.4f} s" if first is not None else f"{'cancelled':>21}"
        lines.append(f"{request.id:<16} {what}")
    return "\n".join(lines) + "\n"
