"""Request files, in four forms told apart by their content.

* ours: a JSON list of requests as in a schedule (``prompt_tokens``, and if need be ``id``, ``cached_tokens``,
  ``arrival`` in seconds), or an object that holds it as ``requests``, such as a schedule;
* JSON lines, one such request a line, as ``vppc serve`` takes them;
* JSONL of Mooncake's form, see :mod:`vppc.inputs.mooncake`;
* CSV of Azure's form, see :mod:`vppc.inputs.azure`.

The order of the file is kept, whatever the arrivals. A prompt has at least one token that is not cached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.errors import InputError
from vppc.files import read_text, source_name
from vppc.formats import check_not_ours
from vppc.inputs.azure import COLUMNS, is_header, parse_azure
from vppc.inputs.mooncake import Record, parse_mooncake
from vppc.ir.schedule import Request
from vppc.json_text import Location, loads, path_text, shown
from vppc.validation import OPEN, Count, Index, Seconds, check_spelling, validate


@with_config(OPEN)
class Prompt(TypedDict):
    """A request as a user writes it; unknown keys are carried along."""

    id: NotRequired[str]
    prompt_tokens: Count
    cached_tokens: NotRequired[Index]
    arrival: NotRequired[Seconds]
    ttft_target: NotRequired[Seconds]


@with_config(OPEN)
class Prompts(TypedDict):
    """An object that holds requests."""

    requests: list[Prompt]


_ONE: TypeAdapter[Prompt] = TypeAdapter(Prompt)
_LIST: TypeAdapter[list[Prompt]] = TypeAdapter(list[Prompt])
_OBJECT: TypeAdapter[Prompts] = TypeAdapter(Prompts)
_TRACED = tuple(Record.__annotations__)
_KEYS = tuple(Prompt.__annotations__)
_FIELDS = frozenset(("id", "prompt_tokens", "cached_tokens", "arrival"))
"""What a request has a place of its own for."""
_FORMS = (
    "a JSON list of {prompt_tokens, ..}, or one a line, as vppc serve takes them; Mooncake's lines with "
    f"timestamp and input_length; Azure's CSV with the columns {' and '.join(COLUMNS)}"
)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A request, and where it stands: its path or line, with the separator to one of its keys."""

    prompt: Prompt
    prefix: str

    @property
    def place(self) -> str:
        return self.prefix.rstrip(".: ")


def read_requests(
    path: str, *, prefix_hits: bool = False, limit: int | None = None, block_tokens: int = 512
) -> tuple[Request, ...]:
    """The requests in a file (``-`` is stdin). See :func:`parse_requests`."""
    return parse_requests(
        read_text(path), source_name(path), prefix_hits=prefix_hits, limit=limit, block_tokens=block_tokens
    )


def parse_requests(
    text: str, file: str = "", *, prefix_hits: bool = False, limit: int | None = None, block_tokens: int = 512
) -> tuple[Request, ...]:
    """The requests in a text, at least one and at most ``limit`` (the first ones), with ids that differ.

    With ``prefix_hits``, which needs a trace with ``hash_ids`` of ``block_tokens`` tokens each, prompts find the
    prefixes of earlier ones cached. Raises InputError.
    """
    first = text.lstrip().partition("\n")[0].rstrip()
    if is_mooncake(first):
        requests = parse_mooncake(text, file, prefix_hits=prefix_hits, limit=limit, block_tokens=block_tokens)
    elif prefix_hits:
        raise InputError(
            "has no hash_ids to find prefix hits by",
            file=file,
            remedy="leave out prefix hits, or give a JSONL trace with hash_ids",
        )
    elif first.startswith(("[", "{")):
        placed = _from_lines(text, file) if _is_lines(first, text) else _from_document(text, file)
        requests = _requests(placed, file)[:limit]
    elif is_header(first):
        requests = parse_azure(text, file, limit=limit)
    else:
        raise _unknown_form(first, file)
    if not requests:
        raise InputError("has no requests", file=file, remedy="at least one")
    return requests


def _known_keys(location: Location) -> Iterable[str]:
    """The keys of a request, for messages; of no other object."""
    return _KEYS if location and isinstance(location[-1], int) else ()


def is_mooncake(line: str) -> bool:
    """Whether a line is an object with a key of the trace's and no prompt of ours, or the beginning of one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return re.match(r'\s*\{\s*"(\w+)"\s*:', line) is not None and any(f'"{key}"' in line for key in _TRACED)
    return isinstance(value, dict) and not value.keys().isdisjoint(_TRACED) and "prompt_tokens" not in value


def _is_lines(first: str, text: str) -> bool:
    """Whether a text whose first line is ``first`` has an object a line: that line is one, and no list of requests."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "requests" not in value and ("prompt_tokens" in value or "\n" in text.strip())


def _from_lines(text: str, file: str) -> list[_Placed]:
    """The requests of a text with one a line; blank lines count, and say nothing."""
    check_not_ours(text, "a list of requests", file=file)
    placed: list[_Placed] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        value = loads(line, file, line=number)
        if isinstance(value, dict) and "cancel" in value:
            raise InputError("only a server can cancel", file=file, place=place, remedy="leave the line out")
        check_spelling(value, _KEYS, file=file, place=place)
        prompt = validate(_ONE, value, file=file, prefix=f"{place}: ", known=lambda _: _KEYS)
        placed.append(_Placed(prompt, f"{place}: "))
    return placed


def _from_document(text: str, file: str) -> list[_Placed]:
    """The requests of a text that is one JSON document."""
    document = loads(text, file)
    where: tuple[str, ...] = ("requests",) if isinstance(document, dict) else ()
    listed = document.get("requests") if isinstance(document, dict) else document
    if listed is None:
        check_not_ours(text, "a list of requests", file=file)
        if "requests" not in document:
            raise InputError('the key "requests" is missing', file=file, remedy=_FORMS)
    for index, each in enumerate(listed if isinstance(listed, list) else ()):
        check_spelling(each, _KEYS, file=file, place=path_text((*where, index)))
    if where:
        prompts = validate(_OBJECT, document, file=file, known=_known_keys)["requests"]
    else:
        prompts = validate(_LIST, document, file=file, known=_known_keys)
    return [_Placed(prompt, path_text((*where, index)) + ".") for index, prompt in enumerate(prompts)]


def _requests(placed: list[_Placed], file: str) -> tuple[Request, ...]:
    taken = _ids(placed, file)
    requests: list[Request] = []
    for index, each in enumerate(placed):
        prompt = each.prompt
        cached = prompt.get("cached_tokens", 0)
        if cached >= prompt["prompt_tokens"]:
            raise InputError(
                f"{cached} leaves no token of the prompt to compute",
                file=file,
                place=f"{each.prefix}cached_tokens",
                remedy=f"at most {prompt['prompt_tokens'] - 1}, one less than prompt_tokens",
            )
        name = prompt["id"] if "id" in prompt else _free_id(index, taken)
        requests.append(request_of(prompt, name))
    return tuple(requests)


def request_of(prompt: Prompt, name: str) -> Request:
    """The request called ``name`` that a user wrote."""
    extra: dict[str, Any] = {key: value for key, value in prompt.items() if key not in _FIELDS}
    return Request(name, prompt["prompt_tokens"], prompt.get("cached_tokens", 0), prompt.get("arrival", 0.0), extra)


def _ids(placed: list[_Placed], file: str) -> dict[str, str]:
    """The ids in the file, and the place of the request that has each."""
    taken: dict[str, str] = {}
    for each in placed:
        if "id" in each.prompt and taken.setdefault(each.prompt["id"], each.place) != each.place:
            raise InputError(
                f"the id {shown(each.prompt['id'])} is taken by {taken[each.prompt['id']]}",
                file=file,
                place=f"{each.prefix}id",
                remedy="an id of its own for each request, or none",
            )
    return taken


def _free_id(index: int, taken: dict[str, str]) -> str:
    name = f"r{index}"
    while name in taken:
        name += "_"
    taken[name] = name
    return name


def _unknown_form(first: str, file: str) -> InputError:
    if not first:
        return InputError("is empty", file=file, remedy="at least one request")
    return InputError(
        f"{shown(first)} starts no form of request file",
        file=file,
        remedy=_FORMS,
    )
