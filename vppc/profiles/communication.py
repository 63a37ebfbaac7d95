"""Ascend's ``communication.json``: every communication operator of a rank, by step, with where its time went."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vppc.errors import CheckFailed, Finding, InputError
from vppc.files import read_text, source_name
from vppc.json_text import loads, path_text, shown
from vppc.profiles.kernels import Total, collective_kind

_TOTAL = "Total Op Info"
_TIMES = "Communication Time Info"
_ELAPSE, _TRANSIT, _WAIT = "Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)"
MOST = 1e12
"""Milliseconds of an operator."""
_STEP = re.compile(r"step\s*(\d*)", re.ASCII | re.IGNORECASE)


@dataclass(slots=True)
class Collective(Total):
    """All operators of a kind; of their seconds, those in transit and those waiting for the other ranks."""

    transit: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Communication:
    """The operators of one step of a rank, by kind."""

    step: str
    kinds: dict[str, Collective]


def read_communication(path: str, step: str | None = None) -> Communication:
    """The operators in a file, of ``step`` if it is given.

    Raises InputError with the place of what is wrong, also when there are several steps and none is given, and
    CheckFailed when operators do not add up to the total in the file.
    """
    file = source_name(path)
    document = loads(read_text(path), file)
    steps = {name: found[1] for name in _object(document, (), file) if (found := _STEP.fullmatch(name))}
    chosen = [name for name, number in steps.items() if step is None or number == step]
    if not steps:
        raise InputError("has no steps", file=file, remedy="communication.json, or another file of a profile")
    if len(chosen) != 1:
        there = ", ".join(map(shown, steps))
        problem = f"has steps {there}" if len(chosen) > 1 else f"has no step {step or ''}".rstrip()
        raise InputError(problem, file=file, remedy=f"pick one with --step; there are {there}")
    kinds: dict[str, Collective] = {}
    for group in _object(document[chosen[0]], (chosen[0],), file):
        total = 0.0
        stated: float | None = None
        for name, elapse, transit, wait in _operators(document[chosen[0]][group], (chosen[0], group), file):
            if name == _TOTAL:
                stated = elapse
                continue
            total += elapse
            kind = kinds.setdefault(collective_kind(name), Collective())
            kind.add(elapse)
            kind.transit += transit
            kind.wait += wait
        if stated is not None and abs(total - stated) > 1e-6 * (1.0 + total):
            raise CheckFailed(
                (
                    Finding(
                        "U3",
                        path_text((chosen[0], group, _TOTAL)),
                        f"is {stated * 1e3:.4f} ms, but the operators add up to {total * 1e3:.4f} ms",
                        "all operators of one step, as the profiler wrote them",
                    ),
                ),
                file=file,
            )
    return Communication(steps[chosen[0]], kinds)


def _operators(group: Any, where: tuple[str, ...], file: str) -> Iterator[tuple[str, float, float, float]]:
    """(name, elapsed, transit, waiting) of the operators of a group and of its total; seconds."""
    for name, operator in _object(group, where, file).items():
        inside = _object(operator, (*where, name), file)
        times = _object(inside.get(_TIMES), (*where, name, _TIMES), file)
        values = [_milliseconds(times, key, (*where, name, _TIMES), file) for key in (_ELAPSE, _TRANSIT, _WAIT)]
        yield name, values[0], values[1], values[2]


def _object(value: Any, where: tuple[str, ...], file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        problem = "is missing" if value is None else f"{shown(value)} is not an object"
        raise InputError(problem, file=file, place=path_text(where), remedy="{ .. }, as the profiler writes it")
    return value


def _milliseconds(times: dict[str, Any], key: str, where: tuple[str, ...], file: str) -> float:
    value: Any = times.get(key)
    if type(value) not in (int, float) or not 0.0 <= value <= MOST:
        problem = "is missing" if value is None else f"{shown(value)} is not a time"
        raise InputError(problem, file=file, place=path_text((*where, key)), remedy=f"milliseconds, from 0 to {MOST:g}")
    return float(value) / 1e3
