"""What a server is asked, a JSON object a line.

    {"id": "a", "prompt_tokens": 4096, "arrival": 1.5}      prefill a prompt; without an id it gets one by its line
    {"cancel": "a", "arrival": 2.0}                         give a request up

``arrival``, in seconds from the start, is when the line counts; without it, or in the past, that is when it is read.
A request may have what a request of a schedule may: ``cached_tokens``, and ``ttft_target`` seconds for a queue policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.errors import InputError
from vppc.files import decode
from vppc.inputs.requests import Prompt, request_of
from vppc.ir.schedule import Request
from vppc.json_text import loads, shown
from vppc.validation import OPEN, Seconds, validate

LONGEST = 2**20
"""Bytes of a line."""
LEVELS = 64
"""Of values in values. What can just be read is too deep to be written again, with the segment that it is in."""


@with_config(OPEN)
class _Cancel(TypedDict):
    cancel: str
    arrival: NotRequired[Seconds]


_PROMPT: TypeAdapter[Prompt] = TypeAdapter(Prompt)
_CANCEL: TypeAdapter[_Cancel] = TypeAdapter(_Cancel)
_NAMES = frozenset(Prompt.__annotations__)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up the request with that id, ``arrival`` seconds from the start."""

    id: str
    arrival: float


@dataclass(frozen=True, slots=True)
class Line:
    """Line ``number`` of the input."""

    number: int
    text: bytes


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines that are not blank, each as it comes. Of one that is too long, only the beginning is kept."""
    number = 0
    while text := stream.readline(LONGEST + 1):
        number += 1
        rest = text
        while len(rest) > LONGEST and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST + 1)
        if text.strip():
            yield Line(number, text)


def parse_line(line: Line) -> Request | Cancel:
    """What is asked in a line. Raises InputError for what is no request."""
    place = f"line {line.number}"
    if len(line.text) > LONGEST:
        raise InputError(f"is longer than {LONGEST:,} bytes", file=place)
    try:
        document = loads(decode(line.text, line=line.number))
    except InputError as error:
        raise InputError(error.problem, file=place) from None
    if _is_deep(document, LEVELS):
        raise InputError("values are nested too deeply", file=place, remedy=f"at most {LEVELS} levels")
    if isinstance(document, dict) and "cancel" in document:
        cancel = validate(_CANCEL, document, file=place)
        if both := [key for key in document if key in _NAMES - {"arrival"}]:
            raise InputError(f"asks for a request ({both[0]}) and gives one up", file=place, remedy="a line for each")
        return Cancel(cancel["cancel"], cancel.get("arrival", 0.0))
    if not isinstance(document, dict):
        raise InputError(f"{shown(document)} is no request", file=place, remedy='{"id": .., "prompt_tokens": ..}')
    prompt = validate(_PROMPT, document, file=place, known=lambda _: Prompt.__annotations__)
    return request_of(prompt, prompt.get("id", f"line-{line.number}"))


def _is_deep(value: Any, levels: int) -> bool:
    """Whether there are more levels of lists and objects than so many."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_is_deep(each, levels - 1) for each in inner))
