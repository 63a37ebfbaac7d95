"""Reads schedules and segments with the standard library alone.

The compiler validated the file when it wrote it, and the certificate is checked after this; so the reader only
builds, and what cannot be built is not a schedule. :mod:`vppc.ir.document` has the reader that explains.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, OPS, RECV, SEND, WAIT, Program
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage
from vppc.ir.segment import Continuation, Segment

_CODES = {name: code for code, name in enumerate(OPS)}
_BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
_OWN = ("format", "version", "strategy", "model", "pp", "vp", "stages", "channels", "requests", "chunks", "programs")


def schedule_of(text: str, file: str) -> Schedule:
    """The schedule in a JSON text. Raises InputError when it is none, or of another version."""
    try:
        document = json.loads(text)
        if document["format"] != "vppc.schedule" or document["version"] != 1:
            raise ValueError("it is not a vppc.schedule of version 1")
        return _schedule(document)
    except _BROKEN as error:
        raise InputError(
            f"is no schedule that can be run: {error!r}", file=file, remedy=f"`vppc verify {file}` says what is wrong"
        ) from None


def segment_of(data: bytes) -> Segment:
    """The segment in a JSON text. Raises InputError when it is none, or of another version."""
    try:
        document = json.loads(data)
        if document["format"] != "vppc.segment" or document["version"] != 1:
            raise ValueError("it is not a vppc.segment of version 1")
        known = ("format", "version", "sequence", "previous", "requests", "chunks", "programs")
        return Segment(
            sequence=document["sequence"],
            previous=document["previous"],
            requests=_requests(document["requests"]),
            chunks=_chunks(document["chunks"]),
            programs=tuple(
                Continuation(each["rank"], each["from"], _code(each["instructions"])) for each in document["programs"]
            ),
            extra={key: value for key, value in document.items() if key not in known},
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


def _schedule(document: Mapping[str, Any]) -> Schedule:
    return Schedule(
        strategy=document["strategy"],
        model=Model(document["model"]["name"], document["model"]["layers"]),
        pp=document["pp"],
        vp=document["vp"],
        stages=tuple(Stage(s["stage"], s["rank"], (s["layers"][0], s["layers"][1])) for s in document["stages"]),
        channels=tuple(Channel(c["id"], c["src"], c["dst"]) for c in document["channels"]),
        requests=_requests(document["requests"]),
        chunks=_chunks(document["chunks"]),
        programs=tuple(_program(p) for p in document["programs"]),
        extra={key: value for key, value in document.items() if key not in _OWN},
    )


def _requests(documents: Sequence[Mapping[str, Any]]) -> tuple[Request, ...]:
    return tuple(
        Request(r["id"], r["prompt_tokens"], r.get("cached_tokens", 0), r.get("arrival", 0.0)) for r in documents
    )


def _chunks(documents: Sequence[Mapping[str, Any]]) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(tuple(Part(p["request"], p["start"], p["tokens"], p.get("decode", False)) for p in c["parts"]))
        for c in documents
    )


def _program(document: Mapping[str, Any]) -> Program:
    known = ("rank", "buffers", "instructions")
    extra = {key: value for key, value in document.items() if key not in known}
    return Program(document["rank"], document["buffers"], _code(document["instructions"]), extra=extra)


def _code(instructions: Sequence[Mapping[str, Any]]) -> array[int]:
    code: list[int] = []
    for each in instructions:
        op = _CODES[each["op"]]
        if op == WAIT:
            code += (op, -1, -1, each["of"], -1, -1)
        elif op == FORWARD:
            source, target = each["in"], each["out"]
            code += (op, each["chunk"], each["stage"])
            code += (-1 if source is None else source, -1 if target is None else target, -1)
        elif op in (SEND, RECV):
            code += (op, each["chunk"], each["stage"], each["buffer"], each["peer"], each["channel"])
        else:
            code += (op, each["chunk"], -1, each["buffer"], -1, -1)
    return array("i", code)
