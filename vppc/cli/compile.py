"""``vppc compile``."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import click

from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.devices import find_device
from vppc.costs.document import check_layers, read_cost
from vppc.costs.model import CostModel
from vppc.costs.roofline import roofline_cost
from vppc.errors import InputError
from vppc.files import write_text
from vppc.inputs.requests import read_requests
from vppc.ir.assembly import to_assembly
from vppc.ir.document import schedule_text
from vppc.ir.partition import SPLITS, Ranges, read_ranges
from vppc.ir.placement import PLACEMENTS
from vppc.ir.schedule import Model, Request, Schedule
from vppc.models import ModelSpec, load_model
from vppc.models.payload import widest_payload
from vppc.passes.strategies import PASS_NAMES, STRATEGIES, Options, Pass, layout_of

COUNT = click.IntRange(min=1, max=2**31 - 1)
SECONDS = click.FloatRange(min=0.0, max=1e9)


@click.command(name="compile")
@click.option("--pp", type=click.IntRange(1, 1024), required=True, help="Pipeline ranks.")
@click.option("--chunks", type=COUNT, help="The paper's setting: N one-token chunks, chunk k taking (k+1)t a layer.")
@click.option(
    "--tokens", type=COUNT, multiple=True, help="A prompt of this many tokens; repeat for a queue of prompts."
)
@click.option("--requests", metavar="FILE", help="Prompts: vppc JSON, Mooncake JSONL or Azure CSV; - is stdin.")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="vpp-packed", show_default=True, help="A named list of passes."
)
@click.option("--placement", type=click.Choice(PLACEMENTS), help="Stage placement [default: the strategy's].")
@click.option("--vp", type=click.IntRange(1, 1024), help="Stages a rank [default: straight 1, v 2, zigzag 4, loop 2].")
@click.option("--layers", type=COUNT, help="Layers of the model [default: the cost file's].")
@click.option("--model", metavar="NAME|FILE", help="A preset or a Hugging Face config.json; prices it if no --cost.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file: seconds of a layer and of a transfer.")
@click.option("--device", default="910c", show_default=True, help="Without --cost: the device to price the model on.")
@click.option(
    "--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="Devices a rank (tensor parallel)."
)
@click.option("--weight-dtype", help="Without --cost: dtype of the weights [default: the model's].")
@click.option("--chunk-size", type=COUNT, default=8192, show_default=True, help="Tokens a chunk, or dynamic budget.")
@click.option("--token-budget", type=COUNT, help="Put short prompts together in chunks of at most this many tokens.")
@click.option(
    "--layer-ranges", metavar="JSON", help="Ranges of the stages: vpp_layer_ranges, or counts like 16,15,15,15."
)
@click.option("--layer-split", type=click.Choice(list(SPLITS)), help="Who gets the remainder of uneven layers.")
@click.option("--max-in-flight", type=COUNT, help="Chunks entered and not finished [default: what the order needs].")
@click.option(
    "--max-resident-tokens", type=COUNT, help="Prompt tokens of requests entered and not finished (KV cache)."
)
@click.option("--max-buffers", type=COUNT, help="Activation buffers a rank [default: as many as keep the timing].")
@click.option(
    "--prefix-hits", is_flag=True, help="Count prefixes that an earlier request of a Mooncake trace left cached."
)
@click.option("--page-size", type=COUNT, default=128, show_default=True, help="Dynamic chunks: KV page in tokens.")
@click.option("--min-chunk", type=COUNT, default=4096, show_default=True, help="dcpp: smallest chunk.")
@click.option(
    "--smooth", type=click.FloatRange(0.0, 1.0), help="Dynamic chunks: smoothing [default: 1.0; SGLang 0.75]."
)
@click.option("--context-length", type=COUNT, help="dcpp-sglang: the model's context length.")
@click.option("--t", "seconds", type=SECONDS, default=1.0, show_default=True, help="With --chunks: t in seconds.")
@click.option("--transfer", type=SECONDS, default=0.0, show_default=True, help="With --chunks: seconds of a transfer.")
@click.option(
    "--print-after", multiple=True, type=click.Choice([*PASS_NAMES, "all"]), help="Print the schedule after a pass."
)
@click.option("-o", "--output", metavar="FILE", help="Where to write the schedule [default: stdout].")
def command(
    chunks: int | None,
    tokens: tuple[int, ...],
    requests: str | None,
    layers: int | None,
    model: str | None,
    cost_file: str | None,
    device: str,
    tp: int,
    weight_dtype: str | None,
    layer_ranges: str | None,
    layer_split: str | None,
    prefix_hits: bool,
    seconds: float,
    transfer: float,
    print_after: tuple[str, ...],
    output: str | None,
    **given: Any,
) -> None:
    """Compile prompts into a proven schedule: one instruction list a rank.

    \b
    The paper's setting, five chunks on two ranks:
      vppc compile --pp 2 --chunks 5 --strategy vpp
    A 128K prompt with measured costs:
      vppc compile --pp 2 --tokens 131072 --cost cost.json -o plan.json
    """
    if sum([chunks is not None, bool(tokens), requests is not None]) != 1:
        raise InputError(
            "give one of --chunks, --tokens and --requests",
            remedy="--chunks N is the paper's setting, --tokens L one prompt, --requests FILE many",
        )
    options = Options(**{field.name: given[field.name] for field in fields(Options) if field.name in given})
    ranks = layout_of(options)[2]
    if chunks is not None:
        if cost_file or model or options.strategy.startswith("dcpp"):
            raise InputError(
                "--chunks is the paper's setting: fixed one-token chunks with costs of its own",
                place="--chunks",
                remedy="give --tokens or --requests with --cost, --model or a dynamic strategy",
            )
        cost = paper_cost(layers or max(2 * options.pp, len(ranks)), seconds, transfer)
        prompts: tuple[Request, ...] = (Request("r0", chunks),)
        spec = None
        options = replace(options, chunk_size=1)
    else:
        prompts = read_requests(requests, prefix_hits=prefix_hits) if requests is not None else _prompts(tokens)
        spec = load_model(model) if model is not None else None
        cost = _cost(cost_file, spec, layers, device, tp, weight_dtype)
    options = replace(options, split=layer_split)
    if layer_ranges is not None:
        options = replace(options, ranges=_ranges(layer_ranges, ranks, cost.layer_count))

    def after(step: Pass, schedule: Schedule) -> None:
        if step.name in print_after or "all" in print_after:
            click.echo(f"; after {step.name}", err=True)
            click.echo("".join(to_assembly(schedule)), err=True)

    named = Model((spec.name if spec is not None else cost.name) or "unnamed", cost.layer_count)
    extra: dict[str, Any] = {"tp": tp} if tp > 1 else {}
    if spec is not None:
        extra["payload"] = widest_payload(spec, tp=tp)
    schedule = compile_schedule(prompts, named, cost, options, extra=extra, after=after)
    write_text(output, schedule_text(schedule))


def _prompts(tokens: tuple[int, ...]) -> tuple[Request, ...]:
    return tuple(Request(f"r{index}", count) for index, count in enumerate(tokens))


def _cost(
    cost_file: str | None, spec: ModelSpec | None, layers: int | None, device: str, tp: int, weight_dtype: str | None
) -> CostModel:
    """The costs of a file, or of a model by roofline, for as many layers as the user says that there are."""
    if cost_file is not None:
        cost = read_cost(cost_file)
    elif spec is not None:
        cost = roofline_cost(spec, find_device(device), tp=tp, weight_dtype=weight_dtype)
    else:
        raise InputError(
            "real prompts need costs", place="--cost", remedy="give --cost FILE, or --model NAME for costs by roofline"
        )
    for expected in (layers, spec.layers if spec is not None else None):
        if expected is not None:
            check_layers(cost, expected, file=cost_file or "--layers")
    return cost


def _ranges(text: str, ranks: tuple[int, ...], layers: int) -> Ranges:
    try:
        return read_ranges(text, ranks, layers)
    except InputError as error:
        raise error.in_file("--layer-ranges") from None
