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
_OTHERS = {
    "config": ("a model's config.json", "--model takes it, and vppc model"),
    "requests": ("a list of requests", "--requests takes it"),
    "trace": ("a Chrome trace", "vppc profile takes one of an Ascend profile; Perfetto opens it"),
    "study": ("what vppc compare or tune printed as JSON", "vppc report takes it"),
}
"""Files without a format, by a name for their kind: the same of them."""
_OURS = ("format", "stages", "programs", "layers")
"""Keys of vppc's own files: with one of them a file is one of these, though its format may be missing."""
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


def looks_like(document: object, wanted: str, *, file: str = "", place: str = "") -> InputError | None:
    """The error of a document that has no format where ``wanted`` is read, but looks like a file of a known kind."""
    kind = _kind(document)
    if kind is None:
        return None
    name, takers = _OTHERS[kind]
    return InputError(
        f"looks like {name}, not {_KINDS.get(wanted, (wanted,))[0]}", file=file, place=place, remedy=takers
    )


def _kind(document: object) -> str | None:
    if isinstance(document, list):
        document = {"requests": document}
    if not isinstance(document, dict) or not document.keys().isdisjoint(_OURS):
        return None
    if "model_type" in document or "architectures" in document:
        return "config"
    if "traceEvents" in document:
        return "trace"
    if "provenance" in document:
        return "study"
    first = next(iter(found), None) if isinstance(found := document.get("requests", [document]), list) else None
    return "requests" if isinstance(first, dict) and ("prompt_tokens" in first or "input_length" in first) else None


def format_of(head: str) -> str | None:
    """Which format a text says that it has in its beginning, if it is one of vppc's own."""
    said = _FORMAT.search(head[:_HEAD]) if head.lstrip().startswith("{") else None
    return said[1] if said else None


def check_not_ours(head: str, wanted: str, *, file: str = "") -> None:
    """Raises InputError when a text begins as a file of vppc's own does, where ``wanted`` is read."""
    if error := mistaken(format_of(head), wanted, file=file):
        raise error
