"""Reads a schedule file with the standard library alone.

The compiler validated the file when it wrote it, and the certificate is checked after this; so the reader only
builds, and what cannot be built is not a schedule. :mod:`vppc.ir.document` has the reader that explains.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, OPS, RECV, SEND, WAIT, Program
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage

_CODES = {name: code for code, name in enumerate(OPS)}
_OWN = ("format", "version", "strategy", "model", "pp", "vp", "stages", "channels", "requests", "chunks", "programs")


def schedule_of(text: str, file: str) -> Schedule:
    """The schedule in a JSON text. Raises InputError when it is none, or of another version."""
    try:
        document = json.loads(text)
        if document["format"] != "vppc.schedule" or document["version"] != 1:
            raise ValueError("it is not a vppc.schedule of version 1")
        return _schedule(document)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"is no schedule that can be run: {error!r}", file=file, remedy=f"`vppc verify {file}` says what is wrong"
        ) from None


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
        requests=tuple(
            Request(r["id"], r["prompt_tokens"], r.get("cached_tokens", 0), r.get("arrival", 0.0))
            for r in document["requests"]
        ),
        chunks=tuple(
            Chunk(tuple(Part(p["request"], p["start"], p["tokens"], p.get("decode", False)) for p in c["parts"]))
            for c in document["chunks"]
        ),
        programs=tuple(_program(p) for p in document["programs"]),
        extra={key: value for key, value in document.items() if key not in _OWN},
    )


def _program(document: Mapping[str, Any]) -> Program:
    code: list[int] = []
    for each in document["instructions"]:
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
    known = ("rank", "buffers", "instructions")
    extra = {key: value for key, value in document.items() if key not in known}
    return Program(document["rank"], document["buffers"], array("i", code), extra=extra)
