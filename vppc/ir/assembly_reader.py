"""Reads assembly; :mod:`vppc.ir.assembly` describes and writes it."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from vppc.errors import InputError
from vppc.ir.assembly_json import check_keys, json_value, shown
from vppc.ir.certificate import Certificate
from vppc.ir.instruction import FORWARD, LARGEST, OPS, RECV, SAMPLE, SEND, WAIT, WIDTH, Program, Row
from vppc.ir.schedule import Channel, Chunk, Model, Order, Part, Request, Schedule, Stage

VERSION = 1

_Step: TypeAlias = tuple[int, int, int | None]
"""An operation in an order: chunk, stage, and its step if it has one."""


def parse_assembly(text: str, file: str = "") -> Schedule:
    """Read assembly. Raises InputError that names the line and the form that was expected there.

    What the values mean together is not checked here: that is the verifier's.
    """
    reader = _Reader()
    place = ""
    try:
        for number, line in enumerate(text.split("\n"), 1):
            place = f"line {number}"
            reader.read(line)
        place = ""  # what is missing is missing in the whole file
        return reader.schedule()
    except InputError as error:
        raise InputError(error.problem, file=file, place=place, remedy=error.remedy) from None


_NUMBER = "[0-9]{1,18}"
_STRING = r'"(?:[^"\\]|\\.)*"'
_BODY = re.compile(rf'(?:[^;{{"]|{_STRING})*')
_KEY = re.compile(rf"\.({_STRING}|[A-Za-z_][A-Za-z0-9_]*)[ \t]+")
_PART = re.compile(rf"r({_NUMBER})\[({_NUMBER})\.\.({_NUMBER})\](\+decode)?")
_OP = re.compile(rf"c({_NUMBER})\.s({_NUMBER})(?:@({_NUMBER}))?")


def _items(text: str, item: Callable[[str], re.Match[str] | None], example: str) -> Iterator[re.Match[str]]:
    """The items of a list separated by blanks; ``empty`` is the list without items."""
    for word in text.split() if text != "empty" else ():
        match = item(word)
        if match is None:
            raise ValueError(f"{word} should look like {example}")
        yield match


def _parts(text: str) -> list[Part]:
    parts = []
    for match in _items(text, _PART.fullmatch, "r0[0..4096] or r0[4096..4097]+decode"):
        request, start, end = map(int, match.group(1, 2, 3))
        if end < start:
            raise ValueError(f"{match[0]} ends before it starts")
        parts.append(Part(request, start, end - start, decode=match[4] is not None))
    return parts


def _text(text: str) -> str:
    try:
        value: str = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _steps(text: str) -> list[_Step]:
    return [
        (int(match[1]), int(match[2]), int(match[3]) if match[3] else None)
        for match in _items(text, _OP.fullmatch, "c0.s1, or c0.s1@2 in step 2")
    ]


class _Form:
    """The form of a line, written as people read it: ``stage <stage> rank=<rank> layers=<first>..<last>``.

    A space stands for any blanks. A placeholder is a whole number unless ``SYNTAX`` has its name: how to show
    it, its pattern, and what turns its text into a value.
    """

    SYNTAX: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
        "string": ('"<string>"', _STRING, _text),
        "seconds": ("<seconds>", "[0-9.eE+-]+", _seconds),
        "in": ("b<buffer>|tokens", f"b{_NUMBER}|tokens", lambda text: -1 if text == "tokens" else int(text[1:])),
        "out": ("b<buffer>|none", f"b{_NUMBER}|none", lambda text: -1 if text == "none" else int(text[1:])),
        "parts": ("r<request>[<start>..<end>] ...", ".*", _parts),
        "ops": ("c<chunk>.s<stage> ...", ".*", _steps),
    }

    def __init__(self, form: str) -> None:
        pieces = re.split(r"<(\w+)>", form)  # text and names of placeholders in turn
        fields = [self.SYNTAX.get(name, (f"<{name}>", _NUMBER, int)) for name in pieces[1::2]]
        texts = pieces[::2]
        self.converters = [convert for _, _, convert in fields]
        self.shown = "".join(text + shown for text, (shown, _, _) in zip(texts, [*fields, ("", "", str)], strict=True))
        blanks = [re.escape(text).replace(r"\ ", r"[ \t]+") for text in texts]
        pattern = (
            "".join(text + f"({syntax})" for text, (_, syntax, _) in zip(blanks, fields, strict=False)) + blanks[-1]
        )
        self.match = re.compile(pattern).fullmatch

    def read(self, text: str) -> list[Any]:
        """The values of the placeholders, in order."""
        match = self.match(text)
        if match is None:
            raise InputError(f"cannot read {shown(text)}", remedy=f"the line reads: {self.shown}")
        try:
            return [convert(value) for convert, value in zip(self.converters, match.groups(), strict=True)]
        except ValueError as error:
            problem = f"bad value in {shown(text)}: {error}"
            raise InputError(problem, remedy=f"the line reads: {self.shown}") from None


_DIRECTIVES = {
    "schedule": _Form("schedule <string> version=<version> pp=<pp> vp=<vp>"),
    "model": _Form("model <string> layers=<layers>"),
    "stage": _Form("stage <stage> rank=<rank> layers=<first>..<last>"),
    "channel": _Form("channel <channel> rank <src> -> rank <dst>"),
    "request": _Form("request <request> <string> prompt_tokens=<tokens> cached_tokens=<tokens> arrival=<seconds>"),
    "chunk": _Form("chunk <chunk> <parts>"),
    "order": _Form("order <rank> <ops>"),
    "rank": _Form("rank <rank> buffers=<buffers>"),
}
_INSTRUCTIONS: Mapping[str, tuple[_Form, Callable[..., Row]]] = {
    "FORWARD": (_Form("FORWARD c<chunk> s<stage> <in> -> <out>"), lambda c, s, x, y: (FORWARD, c, s, x, y, -1)),
    "SEND": (
        _Form("SEND c<chunk> s<stage> b<buffer> -> rank <peer> ch<channel>"),
        lambda c, s, b, peer, channel: (SEND, c, s, b, peer, channel),
    ),
    "RECV": (
        _Form("RECV c<chunk> s<stage> b<buffer> <- rank <peer> ch<channel>"),
        lambda c, s, b, peer, channel: (RECV, c, s, b, peer, channel),
    ),
    "WAIT": (_Form("WAIT <instruction>"), lambda of: (WAIT, -1, -1, of, -1, -1)),
    "SAMPLE": (_Form("SAMPLE c<chunk> b<buffer> -> token"), lambda c, b: (SAMPLE, c, -1, b, -1, -1)),
}


@dataclass(slots=True)
class _Listing:
    """A rank's program while it is read."""

    rank: int
    buffers: int
    extra: Mapping[str, Any]
    code: array[int] = field(default_factory=lambda: array("i"))
    notes: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def read(self, line: str, note: Mapping[str, Any]) -> None:
        """Append the instruction on a line."""
        number, text = (*line.split(None, 1), "")[:2]
        index = len(self.code) // WIDTH
        if number != str(index):
            problem = f"instruction {shown(number)} where instruction {index} of rank {self.rank} is next"
            raise InputError(problem, remedy="number a rank's instructions 0, 1, 2, ...; a WAIT names those numbers")
        op = (text.split(None, 1) or [""])[0]
        if op not in _INSTRUCTIONS:
            raise InputError(
                f"unknown instruction in {shown(line)}", remedy=f"an instruction is one of {', '.join(OPS)}"
            )
        form, row = _INSTRUCTIONS[op]
        try:
            self.code.extend(row(*form.read(text)))
        except OverflowError:
            raise InputError(f"number too large in {shown(text)}", remedy=f"at most {LARGEST}") from None
        if note:
            check_keys(op, note)
            self.notes[index] = note


class _Reader:
    """What has been read so far, one line after another."""

    def __init__(self) -> None:
        self.head: tuple[str, int, int] | None = None  # strategy, pp, vp
        self.model: Model | None = None
        self.stages: list[Stage] = []
        self.channels: list[Channel] = []
        self.requests: list[Request] = []
        self.chunks: list[Chunk] = []
        self.orders: list[list[_Step]] = []
        self.listings: list[_Listing] = []
        self.extra: dict[str, Any] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        line = line.strip()
        if line.startswith("."):
            self._key(line)
            return
        body, tail = _split(line)
        word = (body.split(None, 1) or [""])[0]
        if word in _DIRECTIVES:
            self._directive(word, _DIRECTIVES[word].read(body), tail)
        elif word[:1].isdigit() and self.listings:
            self.listings[-1].read(body, tail)
        elif word[:1].isdigit():
            raise InputError(f"instruction {shown(body)} before any rank", remedy=_expected("rank"))
        elif body or tail:
            allowed = f"an instruction with its number, .key, or one of {', '.join(_DIRECTIVES)}"
            raise InputError(f"cannot read {shown(line)}", remedy=f"a line is {allowed}")

    def schedule(self) -> Schedule:
        """The schedule, when all lines are read."""
        if self.head is None or self.model is None:
            missing = "schedule" if self.head is None else "model"
            raise InputError(f"no {missing} line", remedy=_expected(missing))
        strategy, pp, vp = self.head
        certificate = self.extra.pop("certificate", None)
        return Schedule(
            strategy,
            self.model,
            pp,
            vp,
            tuple(self.stages),
            tuple(self.channels),
            tuple(self.requests),
            tuple(self.chunks),
            self._order(),
            tuple(Program(x.rank, x.buffers, x.code, x.notes, x.extra) for x in self.listings),
            self.extra,
            certificate,
        )

    def _key(self, line: str) -> None:
        match = _KEY.match(line)
        if match is None:
            raise InputError(f"cannot read {shown(line)}", remedy="the line reads: .key JSON")
        key = json_value(match[1], 0) if match[1].startswith('"') else match[1]
        if key in self.extra:
            raise InputError(f"a second .{key}", remedy="give each key once")
        check_keys("schedule", (key,))
        value = json_value(line, match.end())
        self.extra[key] = Certificate.read(value) if key == "certificate" else value

    def _directive(self, word: str, values: list[Any], tail: Mapping[str, Any]) -> None:
        if tail and word in ("schedule", "order"):
            raise InputError(f"a JSON object on a line of {word}", remedy=_expected(word))
        check_keys(word, tail)
        match word:
            case "schedule":
                _once(word, self.head)
                strategy, version, pp, vp = values
                if version != VERSION:
                    raise InputError(f"version {version} of the notation", remedy=f"version {VERSION} is known")
                self.head = strategy, pp, vp
            case "model":
                _once(word, self.model)
                name, layers = values
                self.model = Model(name, layers, tail)
            case "stage":
                stage, rank, first, last = values
                self.stages.append(Stage(stage, rank, (first, last), tail))
            case "channel":
                channel, src, dst = values
                self.channels.append(Channel(channel, src, dst, tail))
            case "request":
                index, name, prompt, cached, arrival = values
                _counts(word, index, self.requests)
                self.requests.append(Request(name, prompt, cached, arrival, tail))
            case "chunk":
                index, parts = values
                _counts(word, index, self.chunks)
                self.chunks.append(_chunk(parts, tail))
            case "order":
                rank, ops = values
                if rank != len(self.orders) - 1:  # a rank's order may go on over several lines
                    _counts(word, rank, self.orders)
                    self.orders.append([])
                self.orders[-1].extend(ops)
            case "rank":
                rank, buffers = values
                self.listings.append(_Listing(rank, buffers, tail))

    def _order(self) -> Order | None:
        if not self.orders:
            return None
        stages = len(self.stages)
        steps: dict[int, int] = {}
        ranks = []
        for names in self.orders:
            ops = []
            for chunk, stage, step in names:
                if stage >= stages:
                    problem = f"c{chunk}.s{stage} in an order of {stages} stages"
                    raise InputError(problem, remedy=_expected("stage"))
                op = chunk * stages + stage
                ops.append(op)
                if step is not None:
                    steps[op] = step
            ranks.append(tuple(ops))
        if not steps:
            return Order(tuple(ranks))
        missing = next((op for op in range(len(self.chunks) * stages) if op not in steps), None)
        if missing is not None:
            chunk, stage = divmod(missing, stages)
            problem = f"the order gives steps, but none for c{chunk}.s{stage}"
            raise InputError(problem, remedy="give every operation its step, c<chunk>.s<stage>@<step>, or none")
        return Order(tuple(ranks), tuple(steps[op] for op in range(len(self.chunks) * stages)))


def _chunk(parts: list[Part], tail: Mapping[str, Any]) -> Chunk:
    """A chunk; ``parts`` in its JSON object are the unknown keys of its parts."""
    extras = tail.get("parts", [{}] * len(parts))
    if not (isinstance(extras, list) and len(extras) == len(parts) and all(isinstance(x, dict) for x in extras)):
        raise InputError('"parts" of a chunk is not one JSON object a part', remedy=_expected("chunk"))
    for extra in extras:
        check_keys("part", extra)
    rest = {key: value for key, value in tail.items() if key != "parts"}
    return Chunk(tuple(replace(part, extra=extra) for part, extra in zip(parts, extras, strict=True)), rest)


def _once(word: str, before: object) -> None:
    if before is not None:
        raise InputError(f"a second {word} line", remedy=f"a schedule has one {word} line")


def _counts(word: str, index: int, before: Sequence[object]) -> None:
    if index != len(before):
        problem = f"{word} {index} where {word} {len(before)} is next"
        raise InputError(problem, remedy=f"number every {word} from 0, in order")


def _split(line: str) -> tuple[str, Mapping[str, Any]]:
    """A line without its comment, and the JSON object at its end ({} if there is none)."""
    if "{" not in line and '"' not in line:
        return line.partition(";")[0].rstrip(), {}
    body = _BODY.match(line)
    end = body.end() if body else 0
    if line[end : end + 1] == '"':
        raise InputError(f"a string without end in {shown(line)}", remedy="strings are JSON strings on one line")
    tail = json_value(line, end) if line[end : end + 1] == "{" else {}
    return line[:end].rstrip(), tail


def _expected(word: str) -> str:
    return f"the line reads: {_DIRECTIVES[word].shown}"
