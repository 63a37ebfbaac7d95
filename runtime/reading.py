"""Reads schedules and segments with the standard library alone.

The compiler validated the file when it wrote it, and the certificate is checked after this; so the reader only
builds, and what cannot be built is not a schedule. :mod:`vppc.ir.document` has the reader that explains.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.certificate import Certificate
from vppc.ir.instruction import LARGEST, Program
from vppc.ir.lifting import load
from vppc.ir.rows import rows_of
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage
from vppc.ir.segment import Continuation, Segment

MOST_BUFFERS = 2**20
LARGEST_AMOUNT = 1e18
_BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
_OWN = (
    *("format", "version", "strategy", "model", "pp", "vp", "stages", "channels", "requests", "chunks", "programs"),
    "certificate",
)


def schedule_of(data: bytes, file: str) -> Schedule:
    """The schedule in the bytes of a JSON file. Raises InputError when it is none, or of another version."""
    document = load(data, file, json.loads)
    try:
        if document["format"] != "vppc.schedule" or document["version"] != 1:
            raise ValueError("it is not a vppc.schedule of version 1")
        return _schedule(document, file)
    except _BROKEN as error:
        raise _explained(data, file, error) from None


def _explained(data: bytes, file: str, error: Exception) -> InputError:
    """What is wrong with a schedule, in the words of the reader that explains, if what that needs is installed."""
    try:
        from vppc.ir.document import parse_schedule

        parse_schedule(data, file)
    except InputError as explained:
        return explained
    except ModuleNotFoundError:
        pass
    return InputError(
        f"is no schedule that can be run: {error!r}", file=file, remedy=f"`vppc verify {file}` says what is wrong"
    )


def segment_of(data: bytes) -> Segment:
    """The segment in a JSON text. Raises InputError when it is none, or of another version."""
    try:
        document = load(data, "", json.loads)
        if document["format"] != "vppc.segment" or document["version"] != 1:
            raise ValueError("it is not a vppc.segment of version 1")
        known = ("format", "version", "sequence", "previous", "requests", "chunks", "programs")
        return Segment(
            sequence=_int(document["sequence"]),
            previous=_text(document["previous"]),
            requests=_requests(document["requests"]),
            chunks=_chunks(document["chunks"]),
            programs=tuple(
                Continuation(_int(each["rank"]), _int(each["from"]), _code(each["instructions"]))
                for each in document["programs"]
            ),
            extra=_extra(document, known),
        )
    except _BROKEN as error:
        raise InputError(f"is no segment that can be run: {error!r}", file="the stream") from None


def cost_of(document: Mapping[str, Any]) -> CostModel:
    """The cost model in a schedule's cost document."""
    transfer = document.get("transfer", {})
    return CostModel(
        layers=tuple(LayerCost(**layer) for layer in document["layers"]),
        embed=Linear(**document.get("embed", {})),
        head=Linear(**document.get("head", {})),
        transfer=Linear(transfer.get("latency", 0.0), transfer.get("per_token", 0.0)),
        launch=document.get("launch", 0.0),
        interference=document.get("interference", 0.0),
        name=document.get("name", ""),
    )


def _schedule(document: Mapping[str, Any], file: str) -> Schedule:
    return Schedule(
        strategy=document["strategy"],
        model=Model(_text(document["model"]["name"]), _int(document["model"]["layers"])),
        pp=_int(document["pp"]),
        vp=_int(document["vp"]),
        stages=tuple(map(_stage, document["stages"])),
        channels=tuple(Channel(_int(c["id"]), _int(c["src"]), _int(c["dst"])) for c in document["channels"]),
        requests=_requests(document["requests"]),
        chunks=_chunks(document["chunks"]),
        programs=tuple(_program(p) for p in document["programs"]),
        extra=_extra(document, _OWN),
        certificate=_certificate(document.get("certificate"), file),
    )


def _certificate(document: Any, file: str) -> Certificate | None:
    if document is None or isinstance(document, Certificate):
        return document
    return Certificate.read(document, file)


def _stage(document: Mapping[str, Any]) -> Stage:
    first, last = document["layers"]
    return Stage(_int(document["stage"]), _int(document["rank"]), (_int(first), _int(last)))


def _requests(documents: Sequence[Mapping[str, Any]]) -> tuple[Request, ...]:
    return tuple(
        Request(
            _text(r["id"]), _int(r["prompt_tokens"]), _int(r.get("cached_tokens", 0)), _amount(r.get("arrival", 0.0))
        )
        for r in documents
    )


def _chunks(documents: Sequence[Any]) -> tuple[Chunk, ...]:
    if isinstance(documents, tuple):
        return documents
    return tuple(Chunk(tuple(map(_part, c["parts"]))) for c in documents)


def _part(document: Mapping[str, Any]) -> Part:
    decode = document.get("decode", False)
    if type(decode) is not bool:
        raise ValueError(f"{str(decode)[:40]} is not true or false")
    return Part(_int(document["request"]), _int(document["start"]), _int(document["tokens"]), decode)


def _program(document: Mapping[str, Any]) -> Program:
    extra = _extra(document, ("rank", "buffers", "instructions"))
    code = _code(document["instructions"])
    return Program(_int(document["rank"]), _int(document["buffers"], MOST_BUFFERS), code, extra=extra)


def _code(instructions: Any) -> array[int]:
    return instructions if isinstance(instructions, array) else rows_of(instructions)


def _extra(document: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The other keys. Raises an error where a rule would stumble over one."""
    extra = {key: value for key, value in document.items() if key not in known}
    for key in extra.keys() & _CHECKS.keys():
        _CHECKS[key](extra[key])
    return extra


def _int(value: Any, most: int = LARGEST) -> int:
    """The value, when it is an integer that can count something. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no integer from 0 to {most}")
    return value


def _text(value: Any) -> str:
    """The value, when it is a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]} is no text")
    return value


def _amount(value: Any) -> float:
    """The value, when it is a time or a size. Raises ValueError."""
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_AMOUNT:
        raise ValueError(f"{str(value)[:40]} is no amount")
    return float(value)


def _check_memory(value: Mapping[str, Any]) -> None:
    for key in value.keys() & {"limit", "weights", "kv_per_token"}:
        _amount(value[key])


def _check_payload(value: Sequence[Mapping[str, Any]]) -> None:
    for tensor in value:
        for key in ("name", "dtype", "layout"):
            _text(tensor[key])
        for size in tensor["shape"]:
            if size != "tokens":
                _int(size)


def _check_cost(cost: Any) -> None:
    cost_of(cost)
    parts = [cost, *cost["layers"], *(cost.get(key, {}) for key in ("embed", "head", "transfer"))]
    for part in parts:
        for key, value in part.items():
            if key not in ("format", "version", "unit", "name", "layers", "embed", "head", "transfer"):
                _amount(value)


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "cost": _check_cost,
    "tp": _int,
    "buffer_tokens": _int,
    "cancelled": lambda value: [_int(each) for each in value],
    "memory": _check_memory,
    "payload": _check_payload,
}
