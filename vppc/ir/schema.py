"""The shape of schedule and segment files: what each key may hold, and the JSON Schema made from it.

Only what is wrong by itself is said here; that two places agree is for :mod:`vppc.ir.rules`.
"""

from __future__ import annotations

from array import array
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator, with_config
from typing_extensions import TypedDict

from vppc.costs.document import MOST_LAYERS, CostDocument
from vppc.ir.certificate import Certificate
from vppc.validation import OPEN, Amount, Count, Index, Seconds, json_schema

SCHEDULE, SEGMENT = "vppc.schedule", "vppc.segment"
VERSION = 1

# Sizes that a reader allocates by, so that a small file cannot ask for all memory.
Ranks = Annotated[int, Field(ge=1, le=2**16)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Buffers = Annotated[int, Field(ge=0, le=2**20)]


def _unless_lifted(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, array | tuple | Certificate) else check(value)


LIFTED = WrapValidator(_unless_lifted)
"""Takes what :mod:`vppc.ir.lifting` has made of a list, which is valid, as it is."""

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@with_config(OPEN)
class ForwardDocument(TypedDict):
    """Runs ``stage`` on the chunk; reads buffer ``in`` (null: the tokens) and writes ``out`` (null: nothing)."""

    op: Literal["FORWARD"]
    chunk: Index
    stage: Index
    in_: Annotated[Index | None, Field(alias="in")]
    out: Index | None


@with_config(OPEN)
class SendDocument(TypedDict):
    """Posts ``buffer``, the output of ``stage``, to ``peer``; does not block."""

    op: Literal["SEND"]
    chunk: Index
    stage: Index
    peer: Index
    channel: Index
    buffer: Index


@with_config(OPEN)
class RecvDocument(TypedDict):
    """Posts a receive for the input of ``stage`` into ``buffer``; does not block."""

    op: Literal["RECV"]
    chunk: Index
    stage: Index
    peer: Index
    channel: Index
    buffer: Index


@with_config(OPEN)
class WaitDocument(TypedDict):
    """Blocks until the transfer that instruction ``of`` of this list posted is complete."""

    op: Literal["WAIT"]
    of: Index


@with_config(OPEN)
class SampleDocument(TypedDict):
    """Makes the next token of every request that ends, or decodes, in the chunk, from ``buffer``; frees it."""

    op: Literal["SAMPLE"]
    chunk: Index
    buffer: Index


InstructionDocument = Annotated[
    ForwardDocument | SendDocument | RecvDocument | WaitDocument | SampleDocument, Field(discriminator="op")
]


@with_config(OPEN)
class ModelDocument(TypedDict):
    """The model by name, and how many layers it has."""

    name: str
    layers: Layers


@with_config(OPEN)
class TensorDocument(TypedDict):
    """A tensor that crosses a cut. A dimension is a number, or ``tokens``: the rows of the chunk."""

    name: str
    shape: list[Index | str]
    dtype: str
    layout: Literal["replicated", "sharded"]


@with_config(OPEN)
class StageDocument(TypedDict):
    """A half-open range of layers on one rank. ``payload`` overrides the schedule's for its outgoing edge."""

    stage: Index
    rank: Index
    layers: Annotated[list[Index], Field(min_length=2, max_length=2)]
    modules: NotRequired[list[str]]
    payload: NotRequired[list[TensorDocument]]


@with_config(OPEN)
class ChannelDocument(TypedDict):
    """A one-way FIFO between two ranks."""

    id: Index
    src: Index
    dst: Index


@with_config(OPEN)
class RequestDocument(TypedDict):
    """One prompt, ``cached_tokens`` of it already in the KV cache; ``arrival`` in seconds."""

    id: str
    prompt_tokens: Count
    cached_tokens: NotRequired[Index]
    arrival: NotRequired[Seconds]


@with_config(OPEN)
class PartDocument(TypedDict):
    """``tokens`` tokens of a request (by index) from absolute position ``start``."""

    request: Index
    start: Index
    tokens: Count
    decode: NotRequired[bool]


@with_config(OPEN)
class ChunkDocument(TypedDict):
    """The unit that flows through the pipeline."""

    parts: Annotated[list[PartDocument], Field(min_length=1)]


@with_config(OPEN)
class MemoryDocument(TypedDict):
    """Bytes of a rank: what it has, what its weights take, and what the KV cache takes a token."""

    limit: NotRequired[Amount]
    weights: NotRequired[Amount]
    kv_per_token: NotRequired[Amount]


@with_config(OPEN)
class ProgramHeader(TypedDict):
    """The instruction list of one rank, the instructions themselves left to a faster parser."""

    rank: Index
    buffers: Buffers
    instructions: Annotated[list[Any], LIFTED]
    memory: NotRequired[MemoryDocument]


@with_config(OPEN)
class ProgramDocument(TypedDict):
    """The instruction list of one rank, which uses buffer numbers below ``buffers``."""

    rank: Index
    buffers: Buffers
    instructions: list[InstructionDocument]
    memory: NotRequired[MemoryDocument]


@with_config(OPEN)
class _ScheduleKeys(TypedDict):
    format: Literal["vppc.schedule"]
    version: Literal[1]
    strategy: str
    model: ModelDocument
    pp: Ranks
    vp: Ranks
    stages: list[StageDocument]
    channels: list[ChannelDocument]
    requests: list[RequestDocument]
    chunks: Annotated[list[ChunkDocument], LIFTED]
    cancelled: NotRequired[list[Index]]
    tp: NotRequired[Ranks]
    buffer_tokens: NotRequired[Count]
    payload: NotRequired[list[TensorDocument]]
    prediction: NotRequired[dict[str, Any]]
    provenance: NotRequired[dict[str, Any]]
    certificate: NotRequired[Annotated[dict[str, Any], LIFTED]]


@with_config(OPEN)
class ScheduleHeader(_ScheduleKeys):
    """A schedule file without its instructions and its cost document, which have readers of their own."""

    programs: list[ProgramHeader]


@with_config(OPEN)
class ScheduleDocument(_ScheduleKeys):
    """A schedule: what is prefilled, in which chunks, on which stages, by which program on each rank."""

    programs: list[ProgramDocument]
    cost: NotRequired[CostDocument]


@with_config(OPEN)
class ContinuationHeader(TypedDict):
    """More instructions of a rank, the instructions themselves left to a faster parser."""

    rank: Index
    from_: Annotated[Index, Field(alias="from")]
    instructions: Annotated[list[Any], LIFTED]


@with_config(OPEN)
class ContinuationDocument(TypedDict):
    """More instructions of a rank; ``from`` is the length its list must have."""

    rank: Index
    from_: Annotated[Index, Field(alias="from")]
    instructions: list[InstructionDocument]


@with_config(OPEN)
class _SegmentKeys(TypedDict):
    format: Literal["vppc.segment"]
    version: Literal[1]
    sequence: Index
    previous: Digest
    requests: list[RequestDocument]
    chunks: Annotated[list[ChunkDocument], LIFTED]
    cancelled: NotRequired[list[Index]]


@with_config(OPEN)
class SegmentHeader(_SegmentKeys):
    """A segment file without its instructions."""

    programs: list[ContinuationHeader]


@with_config(OPEN)
class SegmentDocument(_SegmentKeys):
    """What a running schedule grows by; indices go on counting."""

    programs: list[ContinuationDocument]


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of the schedule file."""
    return json_schema(TypeAdapter(ScheduleDocument), SCHEDULE)


def segment_schema() -> dict[str, Any]:
    """The JSON Schema of the segment file."""
    return json_schema(TypeAdapter(SegmentDocument), SEGMENT)
