"""The schedule and segment files: JSON text to a :class:`Schedule` or :class:`Segment`, and back.

The reader refuses what is wrong by itself: not JSON, another version, a type, a range, a missing key. Whether
two places of the file agree is for :mod:`vppc.ir.rules`. Unknown keys are carried along at every level and
written back, so reading what was written gives the same schedule.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from vppc.costs.document import parse_cost
from vppc.errors import InputError
from vppc.files import decode, read_bytes, source_name
from vppc.ir import schema
from vppc.ir.assembly_reader import parse_assembly
from vppc.ir.certificate import Certificate
from vppc.ir.instruction import Program
from vppc.ir.instruction_json import Code, Notes, instructions_text, parse_instructions
from vppc.ir.lifting import load
from vppc.ir.schedule import Channel, Chunk, Json, Model, Part, Request, Schedule, Stage
from vppc.ir.segment import Continuation, Segment
from vppc.json_text import dumps
from vppc.validation import check_format, validate

_SCHEDULE: TypeAdapter[schema.ScheduleHeader] = TypeAdapter(schema.ScheduleHeader)
_SEGMENT: TypeAdapter[schema.SegmentHeader] = TypeAdapter(schema.SegmentHeader)


def _known(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind)) - {"extra"}


_MODEL, _STAGE, _CHANNEL, _REQUEST, _PART, _CHUNK = map(_known, (Model, Stage, Channel, Request, Part, Chunk))
_PROGRAM = frozenset(("rank", "buffers", "instructions"))
_CONTINUATION = frozenset(("rank", "from", "instructions"))
_ASSEMBLY = re.compile(rb"(\xef\xbb\xbf)?\s*(;[^\n]*\n\s*)*schedule\s")
"""How assembly begins, behind comments."""
_TOP = frozenset(("format", "version", *(_known(Schedule) - {"order"})))
_SEGMENT_TOP = frozenset(("format", "version", *_known(Segment)))
_NOTHING: Json = {}
"""The unknown keys of the many things that have none."""


def read_schedule(path: str) -> Schedule:
    """The schedule in a file (``-`` is stdin). Raises InputError."""
    return parse_schedule(read_bytes(path), source_name(path))


def parse_schedule(text: str | bytes, file: str = "") -> Schedule:
    """The schedule in a JSON text, or in assembly; ``file`` is for messages. Raises InputError.

    A large text should be given as the bytes of its file: then what is made of it is all that there is beside it.
    """
    data = _bytes(text)
    if _ASSEMBLY.match(data):
        schedule = parse_assembly(decode(data, file), file)
        if not schedule.programs:
            raise InputError("there are no programs yet", file=file, remedy="vppc convert --to json lowers it")
        return parse_schedule("".join(schedule_text(schedule)), file)  # which knows the types and ranges
    document = _load(data, file, schema.SCHEDULE, _SCHEDULE)
    if "cost" in document:
        parse_cost(document["cost"], file, "cost")
    model = document["model"]
    return Schedule(
        strategy=document["strategy"],
        model=Model(model["name"], model["layers"], _rest(model, _MODEL)),
        pp=document["pp"],
        vp=document["vp"],
        stages=tuple(
            Stage(each["stage"], each["rank"], tuple(each["layers"]), _rest(each, _STAGE))
            for each in document["stages"]
        ),
        channels=tuple(
            Channel(each["id"], each["src"], each["dst"], _rest(each, _CHANNEL)) for each in document["channels"]
        ),
        requests=_requests(document["requests"]),
        chunks=_chunks(document["chunks"]),
        programs=tuple(
            Program(
                each["rank"],
                each["buffers"],
                *_code(each["instructions"], file, f"programs[{index}].instructions"),
                _rest(each, _PROGRAM),
            )
            for index, each in enumerate(document["programs"])
        ),
        extra=_rest(document, _TOP),
        certificate=_certificate(document.get("certificate"), file),
    )


def schedule_text(schedule: Schedule) -> Iterator[str]:
    """The JSON text of a schedule with programs, in pieces: a line a stage, a chunk, an instruction.

    The same schedule gives the same text. Raises InputError when unknown keys are nested too deeply.
    """
    s, model = schedule, schedule.model
    yield f'{{\n"format": "{schema.SCHEDULE}", "version": {schema.VERSION}, "strategy": {dumps(s.strategy)},\n'
    yield f'"model": {dumps({"name": model.name, "layers": model.layers, **model.extra})}, '
    yield f'"pp": {s.pp}, "vp": {s.vp},\n'
    yield from _list_text("stages", map(_stage_text, s.stages))
    yield from _list_text("channels", map(_channel_text, s.channels))
    yield from _list_text("requests", map(_request_text, s.requests))
    yield from _list_text("chunks", map(_chunk_text, s.chunks))
    yield from (f"{dumps(key)}: {dumps(value)},\n" for key, value in s.extra.items())
    if s.certificate is not None:
        yield '"certificate": '
        yield from s.certificate.text()
        yield ",\n"
    programs = (
        _program_text(f'"rank": {each.rank}, "buffers": {each.buffers}', each.extra, each.code, each.notes)
        for each in s.programs
    )
    yield from _programs_text(programs)


def read_segment(path: str) -> Segment:
    """The segment in a file (``-`` is stdin). Raises InputError."""
    return parse_segment(read_bytes(path), source_name(path))


def parse_segment(text: str | bytes, file: str = "") -> Segment:
    """The segment in a JSON text; ``file`` is for messages. Raises InputError."""
    document = _load(_bytes(text), file, schema.SEGMENT, _SEGMENT)
    return Segment(
        sequence=document["sequence"],
        previous=document["previous"],
        requests=_requests(document["requests"]),
        chunks=_chunks(document["chunks"]),
        programs=tuple(
            Continuation(
                each["rank"],
                each["from"],
                *_code(each["instructions"], file, f"programs[{index}].instructions"),
                _rest(each, _CONTINUATION),
            )
            for index, each in enumerate(document["programs"])
        ),
        extra=_rest(document, _SEGMENT_TOP),
    )


def segment_text(segment: Segment) -> Iterator[str]:
    """The JSON text of a segment, in pieces, as :func:`schedule_text` writes a schedule."""
    yield f'{{\n"format": "{schema.SEGMENT}", "version": {schema.VERSION}, '
    yield f'"sequence": {segment.sequence}, "previous": {dumps(segment.previous)},\n'
    yield from _list_text("requests", map(_request_text, segment.requests))
    yield from _list_text("chunks", map(_chunk_text, segment.chunks))
    yield from (f"{dumps(key)}: {dumps(value)},\n" for key, value in segment.extra.items())
    programs = (
        _program_text(f'"rank": {each.rank}, "from": {each.start}', each.extra, each.code, each.notes)
        for each in segment.programs
    )
    yield from _programs_text(programs)


def digest(data: bytes) -> str:
    """The digest of a schedule or segment file: the SHA-256 of its bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _load(data: bytes, file: str, name: str, shape: TypeAdapter[Any]) -> dict[str, Any]:
    """The document in a text, checked but for instructions and a certificate that :func:`load` left alone."""
    document = check_format(load(data, file, from_json), name, schema.VERSION, file=file)
    validate(shape, document, file=file)
    return document


def _certificate(document: Any, file: str) -> Certificate | None:
    if document is None or isinstance(document, Certificate):
        return document
    return Certificate.read(document, file)


def _code(instructions: list[Any] | Code, file: str, place: str) -> tuple[Code, Notes]:
    if isinstance(instructions, array):
        return instructions, {}
    return parse_instructions(instructions, file, place)


def _requests(documents: list[Json]) -> tuple[Request, ...]:
    return tuple(
        Request(
            each["id"],
            each["prompt_tokens"],
            each.get("cached_tokens", 0),
            float(each.get("arrival", 0.0)),
            _rest(each, _REQUEST),
        )
        for each in documents
    )


def _chunks(documents: list[Json] | tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    if isinstance(documents, tuple):
        return documents
    return tuple(
        Chunk(
            tuple(
                [
                    Part(part["request"], part["start"], part["tokens"], part.get("decode", False), _rest(part, _PART))
                    for part in each["parts"]
                ]
            ),
            _rest(each, _CHUNK),
        )
        for each in documents
    )


def _rest(document: Json, known: frozenset[str]) -> Json:
    return _NOTHING if document.keys() <= known else {key: document[key] for key in document if key not in known}


def _list_text(key: str, items: Iterable[str]) -> Iterator[str]:
    yield f'"{key}": ['
    for index, item in enumerate(items):
        yield f",\n  {item}" if index else f"\n  {item}"
    yield "],\n"


def _stage_text(stage: Stage) -> str:
    return dumps({"stage": stage.stage, "rank": stage.rank, "layers": stage.layers, **stage.extra})


def _channel_text(channel: Channel) -> str:
    return dumps({"id": channel.id, "src": channel.src, "dst": channel.dst, **channel.extra})


def _request_text(request: Request) -> str:
    known = {"id": request.id, "prompt_tokens": request.prompt_tokens, "cached_tokens": request.cached_tokens}
    return dumps({**known, "arrival": request.arrival, **request.extra})


def _chunk_text(chunk: Chunk) -> str:
    return f'{{"parts": [{", ".join(map(_part_text, chunk.parts))}]{_more(chunk.extra)}}}'


def _part_text(part: Part) -> str:
    decode = ', "decode": true' if part.decode else ""
    more = _more(part.extra)
    return f'{{"request": {part.request}, "start": {part.start}, "tokens": {part.tokens}{decode}{more}}}'


def _programs_text(programs: Iterable[Iterator[str]]) -> Iterator[str]:
    yield '"programs": ['
    for index, program in enumerate(programs):
        yield ",\n" if index else "\n"
        yield from program
    yield "]\n}\n"


def _program_text(head: str, extra: Json, code: Code, notes: Notes) -> Iterator[str]:
    yield f'{{{head}{_more(extra)}, "instructions": ['
    yield from instructions_text(code, notes)
    yield "]}"


def _more(extra: Json) -> str:
    return f", {dumps(extra)[1:-1]}" if extra else ""
