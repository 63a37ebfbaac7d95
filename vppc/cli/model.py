"""``vppc model``."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import click

from vppc.cli.machine import EP, NETWORK, TP, note_pricing
from vppc.cli.needs import check_beside, check_needs
from vppc.cli.output import JSON, Output
from vppc.costs.devices import DEVICES, find_device
from vppc.costs.document import cost_json
from vppc.costs.model import CostModel, LayerCost
from vppc.costs.roofline import Efficiency, roofline_cost
from vppc.errors import InputError
from vppc.files import write_text
from vppc.models import load_model, preset_names
from vppc.models.describe import describe, description
from vppc.models.spec import ModelSpec
from vppc.models.weights import WEIGHT_BYTES, Sharding
from vppc.render.tables import count, seconds, table

_LEGEND = (
    "seconds of one layer and chunk: fixed, and for each of the chunk's tokens, its pairs, and its prefix's tokens"
)


@click.command(name="model", epilog=f"Presets: {', '.join(preset_names())}. Devices: {', '.join(DEVICES)}.")
@click.argument("model", metavar="NAME|CONFIG")
@TP
@EP
@click.option("--weight-dtype", type=click.Choice(list(WEIGHT_BYTES)), help="[default: the config's]")
@click.option("--device", metavar="NAME", help="Price the model on this device, by roofline.")
@click.option(
    "--efficiency",
    "efficiencies",
    metavar="WHAT=PART",
    multiple=True,
    help="Part of a peak that is reached: matmul, attention, memory or link; repeat for more.",
)
@NETWORK
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a cost file", *JSON),
    help="Also write the cost file; - writes it to stdout and nothing else.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    model: str,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    device: str | None,
    efficiencies: tuple[str, ...],
    network: bool,
    as_json: bool,
    output: str | None,
) -> None:
    """Say what a model is understood to be, and what it costs on a device.

    \b
    vppc model deepseek-v3.1
    vppc model path/to/config.json --tp 8 --ep 8 --weight-dtype w8a8 --device 910c -o cost.json

    NAME is a preset, CONFIG a Hugging Face config.json, a folder with one, or - for stdin. A cost file by roofline
    rests on priors, the efficiencies: measure when you can.
    """
    check_needs(context, {"network": ("--device", device is not None)})
    if output == "-":
        check_beside(context, "-o -, which writes the cost file and nothing else", ["as_json"])
    spec = load_model(model)
    cost = None
    if device is not None:
        note_pricing(spec, device, weight_dtype)
        cost = roofline_cost(
            spec,
            find_device(device),
            tp=tp,
            ep=ep,
            weight_dtype=weight_dtype,
            efficiency=_efficiency(efficiencies),
            network=network,
        )
    elif output is not None or efficiencies:
        raise InputError(
            "costs need a device",
            place="-o" if output is not None else "--efficiency",
            remedy=f"--device NAME, one of {', '.join(DEVICES)}",
        )
    shown = _shown(spec, Sharding(tp, ep), weight_dtype or spec.weight_dtype, cost, as_json)
    if cost is not None and output is not None:
        write_text(output, json.dumps(cost_json(cost), indent=1) + "\n")
    if output != "-":
        write_text(None, shown + "\n")


def _shown(spec: ModelSpec, sharding: Sharding, dtype: str, cost: CostModel | None, as_json: bool) -> str:
    if as_json:
        facts = describe(spec, sharding, dtype)
        return json.dumps(facts if cost is None else {**facts, "cost": cost_json(cost)}, indent=1)
    text = description(spec, sharding, dtype)
    return text if cost is None else f"{text}\n\n{_cost_text(cost)}"


def _cost_text(cost: CostModel) -> str:
    """The constants of the kinds of layers, each once, and what is paid beside them."""
    counts: dict[LayerCost, int] = {}
    for kind in cost.layers:
        one = replace(kind, count=1)
        counts[one] = counts.get(one, 0) + kind.count
    names = [field.name for field in fields(LayerCost) if field.name not in ("count", "topk")]
    used = [name for name in names if any(getattr(kind, name) for kind in counts)]
    rows = ([count(number), *(_constant(kind, name) for name in used)] for kind, number in counts.items())
    beside = [
        ["embedding", seconds(cost.embed.fixed), seconds(cost.embed.per_token)],
        ["head", seconds(cost.head.fixed), seconds(cost.head.per_token)],
        ["transfer", seconds(cost.transfer.fixed), seconds(cost.transfer.per_token)],
        ["launch", seconds(cost.launch), ""],
    ]
    return "\n\n".join(
        [
            f"{cost.name}, by roofline: efficiencies are priors, not measurements",
            f"{table(['layers', *(name.replace('_', ' ') for name in used)], rows, '>')}\n{_LEGEND}",
            table(["beside layers", "fixed", "per token"], beside),
        ]
    )


def _constant(kind: LayerCost, name: str) -> str:
    value: float = getattr(kind, name)
    return f"{value * 1e12:.2f} ps" if name.endswith("per_pair") else seconds(value)


def _efficiency(given: tuple[str, ...]) -> Efficiency:
    names = [field.name for field in fields(Efficiency)]
    efficiency = Efficiency()
    for text in given:
        name, _, part = text.partition("=")
        try:
            efficiency = replace(efficiency, **{name: float(part)})
        except (TypeError, ValueError):
            raise InputError(
                f"{text!r} is not understood", place="--efficiency", remedy=f"WHAT=PART, WHAT one of {', '.join(names)}"
            ) from None
    return efficiency
