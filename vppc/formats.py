"""What vppc's own files are called, and who reads which: for readers that are given another one."""

from __future__ import annotations

import re

from vppc.errors import InputError

_KINDS = {
    "vppc.schedule": ("a schedule", "vppc verify, show, simulate, explain, plot, report and trace take a schedule"),
    "vppc.segment": ("a segment", "vppc verify takes segments, behind their schedule"),
    "vppc.cost": ("a cost file", "--cost takes a cost file"),
    "vppc.journal": (
        "a process's part of a journal",
        "vppc profile, explain, plot, report and trace take the folder that it is in",
    ),
    "vppc.shadow": ("a process's notes of a shadow run", "vppc shadow takes the folder that it is in"),
}
"""By format: what such a file is, and who takes it."""
_HEAD = 1000
"""In so many characters a file says which format it has."""
_FORMAT = re.compile(r'"format"\s*:\s*"(vppc\.\w+)"')


def mistaken(found: object, wanted: str, *, file: str = "", place: str = "") -> InputError | None:
    """The error of a file of format ``found`` where ``wanted`` is read; None where ``found`` is no format of vppc's.

    ``wanted`` is a format, or words for what is no format of vppc's own.
    """
    if found == wanted or not isinstance(found, str) or found not in _KINDS:
        return None
    name, takers = _KINDS[found]
    return InputError(f"is {name}, not {_KINDS.get(wanted, (wanted,))[0]}", file=file, place=place, remedy=takers)


def check_not_ours(head: str, wanted: str, *, file: str = "") -> None:
    """Raises InputError when a text begins as a file of vppc's own does, where ``wanted`` is read."""
    said = _FORMAT.search(head[:_HEAD]) if head.lstrip().startswith("{") else None
    if said and (error := mistaken(said[1], wanted, file=file)):
        raise error
