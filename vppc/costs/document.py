"""The cost file (``vppc.cost``): its shape, its reader and its writer.

Keys that the format does not have are ignored at the top, where people note where the numbers come from. In
``layers``, ``embed``, ``head`` and ``transfer`` they are refused: a misspelt cost would count as 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.files import read_text, source_name
from vppc.json_text import Location, loads
from vppc.validation import CLOSED, OPEN, Count, Seconds, check_format, json_schema, validate

FORMAT = "vppc.cost"
VERSION = 1
MOST_LAYERS = 2**20
"""Layers of a model at most, so that a small file cannot ask for all memory."""


@with_config(CLOSED)
class LayerDocument(TypedDict):
    """Seconds of one layer, for ``count`` such layers in a row. A missing cost is 0; without topk attention is full."""

    count: Annotated[int, Field(ge=1, le=MOST_LAYERS, strict=True)]
    fixed: NotRequired[Seconds]
    per_token: NotRequired[Seconds]
    per_pair: NotRequired[Seconds]
    per_prefix_token: NotRequired[Seconds]
    indexer_per_pair: NotRequired[Seconds]
    topk: NotRequired[Count]
    collective_fixed: NotRequired[Seconds]
    collective_per_token: NotRequired[Seconds]


@with_config(CLOSED)
class LinearDocument(TypedDict):
    """Seconds of the embedding or of the head."""

    fixed: NotRequired[Seconds]
    per_token: NotRequired[Seconds]


@with_config(CLOSED)
class TransferDocument(TypedDict):
    """Seconds of one transfer between two ranks."""

    latency: NotRequired[Seconds]
    per_token: NotRequired[Seconds]


@with_config(OPEN)
class CostDocument(TypedDict):
    """A cost file. ``layers`` is run-length in layer order; ``launch`` is paid once a FORWARD."""

    format: Literal["vppc.cost"]
    version: Literal[1]
    unit: NotRequired[Literal["s"]]
    name: NotRequired[str]
    layers: Annotated[list[LayerDocument], Field(min_length=1)]
    embed: NotRequired[LinearDocument]
    head: NotRequired[LinearDocument]
    transfer: NotRequired[TransferDocument]
    launch: NotRequired[Seconds]
    interference: NotRequired[Seconds]


_COST: TypeAdapter[CostDocument] = TypeAdapter(CostDocument)
_SECTIONS: dict[str | int, type] = {
    "layers": LayerDocument,
    "embed": LinearDocument,
    "head": LinearDocument,
    "transfer": TransferDocument,
}


def read_cost(path: str) -> CostModel:
    """The cost model in a file (``-`` is stdin). Raises InputError."""
    file = source_name(path)
    return parse_cost(loads(read_text(path), file), file)


def parse_cost(document: Any, file: str = "", place: str = "") -> CostModel:
    """The cost model of a parsed document; ``place`` is where in ``file`` it is embedded. Raises InputError."""
    check_format(document, FORMAT, VERSION, file=file, place=place)
    cost = validate(_COST, document, file=file, prefix=f"{place}." if place else "", known=_known_keys)
    transfer = cost.get("transfer", {})
    model = CostModel(
        layers=tuple(LayerCost(**kind) for kind in cost["layers"]),
        embed=Linear(**cost.get("embed", {})),
        head=Linear(**cost.get("head", {})),
        transfer=Linear(transfer.get("latency", 0.0), transfer.get("per_token", 0.0)),
        launch=cost.get("launch", 0.0),
        interference=cost.get("interference", 0.0),
        name=cost.get("name", ""),
    )
    if model.layer_count > MOST_LAYERS:
        raise InputError(
            f"the counts add up to {model.layer_count} layers",
            file=file,
            place=f"{place}.layers" if place else "layers",
            remedy=f"at most {MOST_LAYERS}",
        )
    return model


def cost_json(model: CostModel) -> dict[str, Any]:
    """The document of a cost model, zeros left out: what :func:`parse_cost` reads back."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "unit": "s",
        "name": model.name,
        "layers": [_without_zeros(asdict(kind)) for kind in model.layers],
        "embed": _without_zeros(asdict(model.embed)),
        "head": _without_zeros(asdict(model.head)),
        "transfer": _without_zeros({"latency": model.transfer.fixed, "per_token": model.transfer.per_token}),
    }
    return document | _without_zeros({"launch": model.launch, "interference": model.interference})


def check_layers(cost: CostModel, layers: int, *, file: str = "", place: str = "layers") -> None:
    """Raises InputError when the costs are not for a model of so many ``layers``."""
    if cost.layer_count != layers:
        raise InputError(
            f"the counts add up to {cost.layer_count} layers, but the model has {layers}",
            file=file,
            place=place,
            remedy="a cost file for this model, or counts that add up",
        )


def cost_schema() -> dict[str, Any]:
    """The JSON Schema of the cost file."""
    return json_schema(_COST, FORMAT)


def _known_keys(location: Location) -> Iterable[str]:
    if not location:  # there, other keys are no mistakes
        return ()
    return _SECTIONS[location[-1] if isinstance(location[-1], str) else location[-2]].__annotations__


def _without_zeros(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}
