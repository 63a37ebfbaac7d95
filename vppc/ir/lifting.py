"""The long lists of a schedule file, made compact piece by piece: never are all their objects there at once.

A file of a million instructions holds two million JSON objects and lists. Their text is taken out of the file's
bytes, and what is left is parsed as a whole. That is exact, as an element list cut at a comma is two element lists,
and strict JSON has no NaN that could be mistaken for those put in their places.

Standard library only, for the runtime.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from vppc.errors import InputError
from vppc.files import decode
from vppc.ir.certificate import LIFETIME, STEP, Certificate, flat
from vppc.ir.instruction import FORWARD, LARGEST, OPS, RECV, SAMPLE, SEND, WAIT, WIDTH
from vppc.ir.rows import rows_of
from vppc.ir.schedule import Chunk, Part
from vppc.json_text import loads

Parse: TypeAlias = Callable[[bytes], Any]
"""Makes values of a JSON text: as strict of syntax as :func:`json.loads`, and may be quicker."""

_PIECE = 2**18
"""Bytes of a list that are parsed at a time: so few that the objects stay in the cache."""
_LONG = re.compile(rb'"(instructions|chunks|certificate)"\s*:\s*(?=[\[{])')
_KEYS = {FORWARD: 5, SEND: 6, RECV: 6, WAIT: 2, SAMPLE: 3}
_NOTHING: Mapping[str, Any] = {}
_BROKEN = (LookupError, TypeError, ValueError, OverflowError, RecursionError)


def load(data: bytes, file: str, parse: Parse) -> Any:
    """The value of a schedule's or segment's JSON text, its long lists compact where they are ordinary.

    Then the ``instructions`` of a program are rows (:func:`vppc.ir.rows.rows_of`), ``chunks`` are a tuple of
    :class:`Chunk`, and the ``certificate`` of a schedule is a :class:`Certificate`, all as valid as they would have
    to be. Where anything in one is wrong or unknown, it is as the text has it. Raises InputError for what is no JSON.
    """
    skeleton, lifted = _lifted(data, parse)
    if lifted:
        with suppress(InputError):  # for which the whole text has the place
            document = loads(decode(skeleton), in_place_of_nan=lifted)
            if _in_place(document) == len(lifted):
                return document
    return loads(decode(data, file), file)


def _lifted(data: bytes, parse: Parse) -> tuple[bytes, list[Any]]:
    """The text with a NaN in the place of every value that could be lifted, and these values."""
    kept: list[bytes] = []
    lifted: list[Any] = []
    left: set[bytes] = set()  # of which one could not be: else a file of beginnings would be read for each to its end
    start = at = 0
    while found := _LONG.search(data, at):
        at = found.end()
        if found[1] in left:
            continue
        try:
            value, end = _READS[found[1]](data, at, parse)
        except _BROKEN:
            left.add(found[1])
            continue
        lifted.append(value)
        kept += data[start:at], b"NaN"
        start = at = end
    return b"".join((*kept, data[start:])), lifted


def _in_place(document: Any) -> int:
    """How many lifted values stand where they belong: what looked like them in words or unknown keys does not."""
    if not isinstance(document, dict):
        return 0
    programs = document.get("programs")
    found = [each.get("instructions") for each in programs if isinstance(each, dict)] if type(programs) is list else []
    if document.get("format") == "vppc.schedule":
        found.append(document.get("certificate"))
    return sum(isinstance(each, array | tuple | Certificate) for each in (*found, document.get("chunks")))


def _instructions(data: bytes, at: int, parse: Parse) -> tuple[array[int], int]:
    start = at + 1
    end = data.index(b"]", start)
    code = array("i")
    for elements in _pieces(data, start, end, _END_OF_INSTRUCTION, parse):
        code += rows_of(elements)
    ops = code[::WIDTH]
    if data.count(b":", start, end) != sum(_KEYS[op] * ops.count(op) for op in range(len(OPS))):
        raise ValueError("a key is unknown or double, or a string has a colon")
    return code, end + 1


def _chunks(data: bytes, at: int, parse: Parse) -> tuple[tuple[Chunk, ...], int]:
    start = at + 1
    end = _behind(_LAST_CHUNK.search, data, start)
    chunks: list[Chunk] = []
    keys = 0
    for elements in _pieces(data, start, end, _END_OF_CHUNK, parse):
        chunks += map(_chunk, elements)
        keys += sum([len(each) + sum(map(len, each["parts"])) for each in elements])
    if data.count(b":", start, end) != keys:
        raise ValueError("a key is double")
    return tuple(chunks), end + 1


def _chunk(document: Mapping[str, Any]) -> Chunk:
    parts = document["parts"]
    if len(document) != 1 or type(parts) is not list or not parts:
        raise ValueError("more than parts, or none")
    return Chunk(tuple(map(_part, parts)), _NOTHING)


def _part(document: Mapping[str, Any]) -> Part:
    request, start, tokens = document["request"], document["start"], document["tokens"]
    decode = document.get("decode", False)
    if not type(request) is type(start) is type(tokens) is int or type(decode) is not bool:
        raise TypeError
    if len(document) != 3 + ("decode" in document):
        raise ValueError("a key is unknown")
    if not (0 <= request <= LARGEST and 0 <= start <= LARGEST and 1 <= tokens <= LARGEST):
        raise ValueError
    return Part(request, start, tokens, decode, _NOTHING)


def _certificate(data: bytes, at: int, parse: Parse) -> tuple[Certificate, int]:
    order, at = _table(data, _behind(_ORDER.match, data, at), STEP, parse)
    at = _behind(_LIFETIMES.match, data, at)
    lifetimes = []
    while True:
        table, at = _table(data, _behind(_OPEN.match, data, at), LIFETIME, parse)
        lifetimes.append(table)
        at = _behind(_NEXT.match, data, at)
        if data[at - 1 : at] == b"]":
            return Certificate(order, tuple(lifetimes)), _behind(_CLOSE.match, data, at)


_READS: Mapping[bytes, Callable[[bytes, int, Parse], tuple[Any, int]]] = {
    b"instructions": _instructions,
    b"chunks": _chunks,
    b"certificate": _certificate,
}


_END_OF_INSTRUCTION, _END_OF_CHUNK, _END_OF_ENTRY = map(re.compile, (rb"\}\s*,", rb"\]\s*\}\s*,", rb"\]\s*,"))
_LAST_CHUNK, _LAST_ENTRY = map(re.compile, (rb"\]\s*\}\s*(?=\])", rb"\]\s*(?=\])"))
_ORDER, _LIFETIMES = map(re.compile, (rb'\{\s*"order"\s*:\s*\[', rb'\s*,\s*"lifetimes"\s*:\s*\['))
_OPEN, _EMPTY, _NEXT, _CLOSE = map(re.compile, (rb"\s*\[", rb"\s*\]", rb"\s*[,\]]", rb"\s*\}"))


def _table(data: bytes, start: int, width: int, parse: Parse) -> tuple[array[int], int]:
    """The list of lists of ``width`` integers whose elements begin at ``start``, and where it has ended."""
    table = array("i")
    if empty := _EMPTY.match(data, start):
        return table, empty.end()
    end = _behind(_LAST_ENTRY.search, data, start)
    for elements in _pieces(data, start, end, _END_OF_ENTRY, parse):
        table += flat(elements, width)
    return table, end + 1


def _behind(find: Callable[[bytes, int], re.Match[bytes] | None], data: bytes, at: int) -> int:
    """Where what is found from ``at`` on ends. Raises ValueError when nothing is found."""
    found = find(data, at)
    if found is None:
        raise ValueError("written otherwise")
    return found.end()


def _pieces(data: bytes, start: int, end: int, comma: re.Pattern[bytes], parse: Parse) -> Iterator[list[Any]]:
    """The elements of a list in the bytes from ``start`` to ``end``, which are cut at some of its commas."""
    at = start
    while at <= end:
        cut = comma.search(data, at + _PIECE, end)
        stop = cut.end() - 1 if cut else end
        elements = parse(b"[%b]" % data[at:stop])
        if not elements and at > start:
            raise ValueError("nothing behind the last comma")
        yield elements
        at = stop + 1
