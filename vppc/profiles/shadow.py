"""The journal of vLLM in shadow mode: a folder with one JSONL file a pipeline rank, ``rank-R.jsonl``.

A header, and a line a batch, with its parts (request, position of its first token, tokens, tokens of the prompt)::

    {"format": "vppc.shadow", "version": 1, "model": "..", "model_layers": 6, "layers": [0, 3], "rank": 0, "pp": 2, ..}
    {"start": 1796021276.628, "end": 1796021276.645, "parts": [["0-b1fceb95", 0, 256, 300]]}

Seconds of each process's own clock. The last line may be cut: vLLM ends its workers without asking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.costs.samples import Forward, Layers, Measurements, forward
from vppc.errors import InputError
from vppc.files import read_text
from vppc.ir.schedule import Part, Request
from vppc.json_text import loads
from vppc.sums import plain_sum
from vppc.validation import OPEN, Count, Index, Seconds, check_format, validate

FORMAT, VERSION = "vppc.shadow", 1
# JSON has lists only
Range: TypeAlias = Annotated[tuple[Index, Index], Field(strict=False)]
PartRow: TypeAlias = Annotated[tuple[str, Index, Count, Count], Field(strict=False)]


@with_config(OPEN)
class Header(TypedDict):
    """The first line of a rank's file."""

    model: str
    model_layers: Count
    layers: Range
    rank: Index
    pp: Count
    chunk_size: Count


@with_config(OPEN)
class BatchLine(TypedDict):
    """A further line."""

    start: Seconds
    end: Seconds
    parts: list[PartRow]


_HEADER: TypeAdapter[Header] = TypeAdapter(Header)
_BATCH: TypeAdapter[BatchLine] = TypeAdapter(BatchLine)


@dataclass(frozen=True, slots=True)
class ShadowBatch:
    """One batch on one rank: where it was read, when it ran, and its parts (of requests by index)."""

    place: str
    start: float
    end: float
    parts: tuple[Part, ...]

    @property
    def decodes(self) -> bool:
        """Whether no prompt is in it."""
        return all(part.decode for part in self.parts)


@dataclass(frozen=True, slots=True)
class ShadowRank:
    """A rank: the layers that it holds, half-open, and its batches in order."""

    layers: tuple[int, int]
    batches: tuple[ShadowBatch, ...]

    @property
    def computing(self) -> float:
        """Seconds in which it computed."""
        return plain_sum(batch.end - batch.start for batch in self.batches)

    @property
    def span(self) -> float:
        """Seconds from its first batch's start to its last one's end."""
        return self.batches[-1].end - self.batches[0].start if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class Shadow:
    """What vLLM did: its ranks, and the requests in the order in which they were first scheduled, which is taken for
    their arrival: how long they had waited by then, workers do not know. What was found cached counts as cached."""

    model: str
    model_layers: int
    chunk_size: int
    ranks: tuple[ShadowRank, ...]
    requests: tuple[Request, ...]

    def measurements(self) -> Measurements:
        """Every batch with a prompt in it that took any time, on every rank, as a forward of that rank's layers."""
        layers = Layers.alike(self.model_layers)
        return Measurements(layers, tuple(self._forwards(layers)), name=self.model)

    def _forwards(self, layers: Layers) -> Iterator[Forward]:
        for index, rank in enumerate(self.ranks):
            for batch in rank.batches:
                if not batch.decodes and batch.end > batch.start:
                    parts = [(part.tokens, part.start) for part in batch.parts]
                    held = layers.between(*rank.layers)
                    seconds = batch.end - batch.start
                    yield forward(batch.place, seconds, parts, held, layers.topks, embeds=index == 0)


def read_shadow(folder: str) -> Shadow:
    """Read the journal of all ranks. Raises InputError with the file and the line of what is wrong."""
    first = Path(folder) / "rank-0.jsonl"
    if not first.is_file():
        raise InputError("has no rank-0.jsonl", file=folder, remedy="name the journal folder of vLLM in shadow mode")
    header, lines = _read(first)
    seen: dict[str, list[float]] = {}  # prompt, first token, arrival
    for line in lines:
        for request, start, _, prompt in line["parts"]:
            known = seen.setdefault(request, [prompt, start, line["start"]])
            known[1] = min(known[1], start)
    if all(start >= prompt for line in lines for _, start, _, prompt in line["parts"]):
        raise InputError("has no batches of prompts", file=str(first), remedy="send vLLM some requests")
    origin = min(arrival for _, _, arrival in seen.values())
    requests = tuple(
        Request(name, int(prompt), min(int(cached), int(prompt) - 1), arrival - origin)
        for name, (prompt, cached, arrival) in seen.items()
    )
    indices = {request.id: index for index, request in enumerate(requests)}
    ranks = [_rank(first, header, lines, indices)]
    for rank in range(1, header["pp"]):
        file = Path(folder) / f"rank-{rank}.jsonl"
        ranks.append(_rank(file, *_read(file), indices))
    return Shadow(header["model"], header["model_layers"], header["chunk_size"], tuple(ranks), requests)


def _read(file: Path) -> tuple[Header, list[BatchLine]]:
    text = read_text(str(file))
    whole = text[: text.rfind("\n") + 1].splitlines()
    if not whole:
        raise InputError("has no header", file=str(file), remedy="let vLLM start before it is read")
    document = check_format(loads(whole[0], str(file)), FORMAT, VERSION, file=str(file))
    header = validate(_HEADER, document, file=str(file), prefix="line 1: ")
    batches = [
        validate(_BATCH, loads(line, str(file), line=number), file=str(file), prefix=f"line {number}: ")
        for number, line in enumerate(whole[1:], start=2)
    ]
    return header, batches


def _rank(file: Path, header: Header, lines: list[BatchLine], indices: dict[str, int]) -> ShadowRank:
    batches = []
    for number, line in enumerate(lines, start=2):
        parts = tuple(
            Part(indices[request], start, tokens, decode=start >= prompt)
            for request, start, tokens, prompt in line["parts"]
            if request in indices  # that rank 0 wrote down, before it was ended
        )
        if line["end"] < line["start"]:
            raise InputError("ends before it starts", file=str(file), place=f"line {number}", remedy="start, then end")
        if parts:
            batches.append(ShadowBatch(f"{file}:{number}", line["start"], line["end"], parts))
    return ShadowRank(header["layers"], tuple(batches))
