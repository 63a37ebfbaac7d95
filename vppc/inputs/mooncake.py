"""Request traces in the JSONL form of Mooncake: one object a line.

``{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..]}``: milliseconds, tokens,
and one id a block of the prompt, equal where the blocks and all before them are equal. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.errors import InputError
from vppc.inputs.lines import numbered_lines
from vppc.ir.schedule import Request
from vppc.json_text import loads
from vppc.validation import OPEN, Count, check_spelling, validate


@with_config(OPEN)
class Record(TypedDict):
    """A line of the trace; ``timestamp`` in milliseconds."""

    timestamp: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
    input_length: Count
    hash_ids: NotRequired[list[int]]


_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def parse_mooncake(
    text: str, file: str, *, prefix_hits: bool, limit: int | None, block_tokens: int
) -> tuple[Request, ...]:
    """The first ``limit`` requests of a trace in file order, called r0, r1, ..; raises InputError with the line.

    With ``prefix_hits`` the leading blocks of a prompt that an earlier line has already seen are cached, but never
    the whole prompt: its last token is computed in any case.
    """
    requests: list[Request] = []
    seen: set[int] = set()
    for number, record in islice(_records(text, file), limit):
        tokens = record["input_length"]
        cached = 0
        if prefix_hits:
            blocks = _blocks(record, number, file, block_tokens)
            hits = next((hit for hit, block in enumerate(blocks) if block not in seen), len(blocks))
            cached = min(hits * block_tokens, tokens - 1)
            seen.update(blocks)
        requests.append(Request(f"r{len(requests)}", tokens, cached, record["timestamp"] / 1000))
    return tuple(requests)


def _records(text: str, file: str) -> Iterator[tuple[int, Record]]:
    for number, line in numbered_lines(text, file):
        record = loads(line, file, line=number)
        check_spelling(record, Record.__annotations__, file=file, place=f"line {number}")
        yield number, validate(_RECORD, record, file=file, prefix=f"line {number}: ")


def _blocks(record: Record, number: int, file: str, block_tokens: int) -> list[int]:
    place = f"line {number}: hash_ids"
    blocks = record.get("hash_ids")
    if blocks is None:
        raise InputError("is missing", file=file, place=place, remedy="prefix hits are found by it; leave them out")
    needed = -(-record["input_length"] // block_tokens)
    if len(blocks) != needed:
        raise InputError(
            f"{len(blocks)} blocks do not fit a prompt of {record['input_length']} tokens",
            file=file,
            place=place,
            remedy=f"{needed} blocks of {block_tokens} tokens",
        )
    return blocks
