"""``vppc compile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import click
from click.core import ParameterSource

from vppc.analysis.memory import known_memory, memory_line
from vppc.cli.machine import EP, LAYER_SPLIT, NETWORK, TP, Machine, note_context, note_nodes
from vppc.cli.needs import Needs, check_needs, fitted_needs, strategy_needs
from vppc.cli.number import COUNT, Number
from vppc.cli.output import JSON, Output
from vppc.cli.prompts import read_prompts
from vppc.cli.provenance import made_by
from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.document import MOST_LAYERS
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import InputError
from vppc.files import check_one_stdin, write_text
from vppc.ir.assembly import to_assembly
from vppc.ir.document import schedule_text
from vppc.ir.partition import Ranges, read_ranges
from vppc.ir.placement import PLACEMENTS
from vppc.ir.schedule import Model, Request, Schedule
from vppc.models import load_model
from vppc.passes.strategies import (
    BALANCED,
    MEASURED_TIMES,
    PASS_NAMES,
    STRATEGIES,
    Options,
    Pass,
    layout_of,
    run_ahead,
)
from vppc.render.tables import count, percent
from vppc.sums import plain_sum

SECONDS = Number(min=0.0, max=1e9)
_DEFAULT_SIZE = "chunks of {} tokens are a default, no recommendation: vppc compare finds each strategy's best size"
UNEVEN = 0.02
"""How much more work than the mean a rank may have before that is worth a note."""


@click.command(name="compile")
@click.option("--pp", type=click.IntRange(1, 1024), required=True, help="Pipeline ranks.")
@click.option("--chunks", type=COUNT, help="The paper's setting: N one-token chunks, chunk k taking (k+1)t a layer.")
@click.option(
    "--tokens", type=COUNT, multiple=True, help="A prompt of this many tokens; repeat for a queue of prompts."
)
@click.option(
    "--requests", metavar="FILE", help="Prompts: JSON, JSON lines (as serve's), Mooncake's or Azure's; - is stdin."
)
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="vpp-packed", show_default=True, help="A named list of passes."
)
@click.option("--placement", type=click.Choice(PLACEMENTS), help="Stage placement [default: the strategy's].")
@click.option("--vp", type=click.IntRange(1, 1024), help="Stages a rank [default: straight 1, v 2, zigzag 4, loop 2].")
@click.option(
    "--layers",
    type=click.IntRange(1, MOST_LAYERS),
    help="Layers that the model has, and the costs must have [default: theirs].",
)
@click.option("--model", metavar="NAME|FILE", help="A preset or a Hugging Face config.json; prices it if no --cost.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file: seconds of a layer and of a transfer.")
@click.option("--device", help="Price --model on it if no --cost, and check its memory [default without --cost: 910c].")
@TP
@EP
@click.option("--weight-dtype", help="Of --model's weights: bf16, fp8, w8a8 or fp32 [default: the config's].")
@NETWORK
@click.option("--chunk-size", type=COUNT, default=8192, show_default=True, help="Tokens a chunk, or dynamic budget.")
@click.option("--token-budget", type=COUNT, help="Put short prompts together in chunks of at most this many tokens.")
@click.option(
    "--layer-ranges", metavar="JSON", help="Ranges of the stages: vpp_layer_ranges, or counts like 16,15,15,15."
)
@LAYER_SPLIT
@click.option(
    "--max-in-flight", type=COUNT, help="Chunks entered and not finished [default: in a V 2 pp - 1, packed 3 pp]."
)
@click.option(
    "--max-resident-tokens", type=COUNT, help="Prompt tokens of requests entered and not finished (KV cache)."
)
@click.option(
    "--max-buffers",
    type=COUNT,
    help="Activation buffers a rank [default: as many as keep the timing; straight: up to 3 pp].",
)
@click.option(
    "--prefix-hits", is_flag=True, help="Count prefixes that an earlier request of a Mooncake trace left cached."
)
@click.option("--page-size", type=COUNT, default=128, show_default=True, help="Dynamic chunks: KV page in tokens.")
@click.option("--min-chunk", type=COUNT, help="dcpp: smallest chunk [default: 4096, at most half --chunk-size].")
@click.option("--smooth", type=Number(0.0, 1.0), help="Dynamic chunks: smoothing [default: 1.0; SGLang 0.75].")
@click.option("--context-length", type=COUNT, help="dcpp-sglang: the model's context length.")
@click.option(
    "--measured-time",
    type=click.Choice(MEASURED_TIMES),
    default="offline",
    show_default=True,
    help="dcpp: calibrate while serving, from the last rank's own times, or with its waits.",
)
@click.option(
    "--warmups", type=click.IntRange(0, 1000), default=1, show_default=True, help="dcpp: prompts it served before."
)
@click.option("--t", "seconds", type=SECONDS, default=1.0, show_default=True, help="With --chunks: t in seconds.")
@click.option("--transfer", type=SECONDS, default=0.0, show_default=True, help="With --chunks: seconds of a transfer.")
@click.option(
    "--print-after",
    multiple=True,
    type=click.Choice([*PASS_NAMES, "all"]),
    help="Print the schedule after a pass, on stderr; repeatable.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a schedule", *JSON),
    help="Where to write the schedule [default: stdout].",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    chunks: int | None,
    tokens: tuple[int, ...],
    requests: str | None,
    layers: int | None,
    model: str | None,
    cost_file: str | None,
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
    A model priced by roofline, refused when it does not fit the device's memory:
      vppc compile --pp 2 --model deepseek-v3.1 --tp 8 --ep 8 --weight-dtype w8a8 --tokens 262144 -o plan.json

    \b
    cpp          the straight pipeline of engines, chunks of one size
    dcpp         the same with vLLM-Ascend's dynamic chunks; dcpp-sglang: SGLang's
    vpp          folded to a V, step by step, every rank waiting for the transfers of its step
    vpp-async    a V whose transfers hide behind compute, one prompt after another
    vpp-packed   the same, and a prompt's first chunks fill the drain of the one before
    """
    if sum([chunks is not None, bool(tokens), requests is not None]) != 1:
        raise InputError(
            "give one of --chunks, --tokens and --requests",
            remedy="--chunks N is the paper's setting, --tokens L one prompt, --requests FILE many",
        )
    check_needs(context, _needs(context.params))
    check_one_stdin((cost_file, model, requests))
    if chunks is not None and context.get_parameter_source("chunk_size") is ParameterSource.COMMANDLINE:
        raise InputError("--chunks are of one token", place="--chunk-size", remedy="give one of the two")
    options = Options(**{each.name: given[each.name] for each in fields(Options) if each.name in given})
    options = replace(options, split=layer_split)
    spec = load_model(model) if model is not None else None
    machine = Machine(spec, given["device"], given["tp"], given["ep"], given["weight_dtype"], given["network"])
    if chunks is not None:
        if cost_file or model or options.strategy.startswith("dcpp"):
            raise InputError(
                "--chunks is the paper's setting: fixed one-token chunks with costs of its own",
                place="--chunks",
                remedy="give --tokens or --requests with --cost, --model or a dynamic strategy",
            )
        options = replace(options, chunk_size=1)
        prompts: tuple[Request, ...] = (Request("r0", chunks),)
        cost = paper_cost(layers or max(2 * options.pp, len(layout_of(options)[2])), seconds, transfer)
    else:
        if requests is not None:
            prompts = read_prompts(requests, prefix_hits=prefix_hits)
        else:
            prompts = tuple(Request(f"r{index}", count) for index, count in enumerate(tokens))
        cost = machine.cost(cost_file, layers)
        if cost_file is None:
            note_nodes(spec, machine.device, options.pp, machine.tp, network=machine.network)
        machine.note_ways(cost)
    if layer_ranges is not None:
        options = replace(options, ranges=_ranges(layer_ranges, options, cost.layer_count))

    def after(step: Pass, schedule: Schedule) -> None:
        if step.name in print_after or "all" in print_after:
            click.echo(f"; after {step.name}", err=True)
            click.echo("".join(to_assembly(schedule)), err=True)

    name = (spec.name if spec is not None else cost.name) or "unnamed"
    extra = {**machine.extra(), **made_by(context)}
    schedule = compile_schedule(prompts, Model(name, cost.layer_count), cost, options, extra=extra, after=after)
    schedule = machine.fitting(schedule, priced=cost_file is None)
    write_text(output, schedule_text(schedule))
    note_context(spec, prompts)
    if output not in (None, "-"):
        count_of = sum(map(len, schedule.programs))
        size = f"{count(count_of, 'instruction')} on {count(options.pp, 'rank')}"
        ahead = f"up to {count(run_ahead(options), 'chunk')} may run ahead"
        click.echo(f"{output}: {size}, proven; {ahead}", err=True)
        if known := known_memory(schedule):
            click.echo(memory_line(known), err=True)
        _note_imbalance(schedule, cost, balanced=options.split == BALANCED)
        if chunks is None and context.get_parameter_source("chunk_size") is ParameterSource.DEFAULT:
            click.echo(f"note: {_DEFAULT_SIZE.format(count(options.chunk_size))}", err=True)


def _note_imbalance(schedule: Schedule, cost: CostModel, *, balanced: bool) -> None:
    """Say so when one rank has clearly more work than the others have, and whether another split can help."""
    seconds, stages = OpCosts.of(schedule, cost).seconds, len(schedule.stages)
    work = [plain_sum(plain_sum(seconds[stage::stages]) for stage in mine) for mine in schedule.rank_stages]
    most, mean = max(work), sum(work) / len(work)
    if most <= (1 + UNEVEN) * mean:
        return
    rank = work.index(most)
    layers = sum(last - first for first, last in (schedule.stages[s].layers for s in schedule.rank_stages[rank]))
    what = "vppc tune searches for better layers and stages"
    if not balanced:
        what = f"--layer-split {BALANCED} puts layers where they cost least, {what}"
    elif most - mean < most / layers:
        what = "that is less than a layer, and layers are not cut; balanced has put it where it costs least"
    share = f"{layers} of {count(cost.layer_count, 'layer')}, {percent(most / mean - 1)} more work than the mean"
    click.echo(f"note: rank {rank} has {share}: {what}", err=True)


def _needs(given: Mapping[str, Any]) -> Needs:
    chunks = given["chunks"] is not None
    dynamic = {
        name: need
        for name, need in strategy_needs([given["strategy"]], [given["measured_time"]]).items()
        if name not in ("placement", "vp")  # which the layout checks
    }
    return {
        **dynamic,
        **fitted_needs(given["model"], fitted=not given["cost_file"] or bool(given["device"])),
        "token_budget": ("--tokens or --requests", not chunks),
        "seconds": ("--chunks", chunks),
        "transfer": ("--chunks", chunks),
        "prefix_hits": ("--requests", given["requests"] is not None),
    }


def _ranges(text: str, options: Options, layers: int) -> Ranges:
    try:
        return read_ranges(text, layout_of(options)[2], layers)
    except InputError as error:
        raise error.in_file("--layer-ranges") from None
