"""``vppc compare``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

import click
from click.core import ParameterSource

from vppc import __version__
from vppc.cli.machine import DEFAULT_DEVICE, EP, LAYER_SPLIT, NETWORK, TP, note_context, note_nodes, note_pricing
from vppc.cli.needs import check_beside, check_needs, model_needs, picture_needs, strategy_needs
from vppc.cli.number import COUNT, Number
from vppc.cli.output import JSON, PICTURES, Output, wants_json
from vppc.cli.picture import THEMES, is_picture, write_picture
from vppc.cli.progress import progress
from vppc.cli.prompts import read_prompts
from vppc.cli.provenance import command_line
from vppc.compare import Case, Machine, Queue, Row, cases, compare, equal_prompts, queue_of, widened
from vppc.costs.devices import find_device
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel
from vppc.costs.roofline import roofline_cost
from vppc.errors import InputError
from vppc.files import check_one_stdin, source_name, write_text
from vppc.ir.partition import Ranges, read_ranges
from vppc.models import ModelSpec, load_model
from vppc.passes.chunking import MOST_CHUNKS
from vppc.passes.strategies import MEASURED_TIMES, STRATEGIES, Options, layout_of
from vppc.render.comparison import comparison_text
from vppc.render.comparison_plot import comparison_plot

LENGTHS = (65536, 131072, 262144, 524288)
ALONE = ("cpp", "dcpp", "vpp", "vpp-async")
QUEUED = ("cpp", "dcpp", "vpp-async", "vpp-packed")
"""The strategies compared when there is one prompt at a time, and when there are several."""
SIZES = (2048, 4096, 8192, 16384, 24576, 32768)


def _lengths(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The tokens of the prompts of each queue."""
    return [tuple(COUNT.convert(each, option, context) for each in text.split("+")) for text in dict.fromkeys(texts)]


@click.command(name="compare")
@click.option("--pp", type=click.IntRange(1, 1024), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--cost", "cost_files", metavar="FILE", multiple=True, help="Cost file; repeat for more.")
@click.option("--model", "models", metavar="NAME|FILE", multiple=True, help="Model, priced by roofline; repeatable.")
@click.option("--device", help=f"With --model: the device [default: {DEFAULT_DEVICE}].")
@TP
@EP
@click.option("--weight-dtype", help="With --model: dtype of the weights [default: the model's].")
@NETWORK
@click.option(
    "--tokens", type=COUNT, multiple=True, help="A prompt alone; repeat to compare more [default: 64K to 512K]."
)
@click.option(
    "--queue",
    "together",
    metavar="L+L+..",
    multiple=True,
    callback=_lengths,
    help="Prompts that wait together, in this order: 128K+32K+8K; repeat to compare more.",
)
@click.option("--requests", "files", metavar="FILE", multiple=True, help="A queue of prompts, as compile takes it.")
@click.option(
    "--prompts",
    type=click.IntRange(1, MOST_CHUNKS),
    default=1,
    show_default=True,
    help="Equal prompts that wait together.",
)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    help="Repeatable [default: cpp, dcpp, vpp, vpp-async; of queues cpp, dcpp, vpp-async, vpp-packed].",
)
@click.option(
    "--measured-time",
    "measured_times",
    type=click.Choice(MEASURED_TIMES),
    multiple=True,
    default=MEASURED_TIMES,
    show_default=True,
    help="dcpp: what it learns from while serving; repeatable.",
)
@click.option(
    "--warmups", type=click.IntRange(0, 1000), default=1, show_default=True, help="dcpp: prompts it served before."
)
@click.option(
    "--chunk-size",
    "sizes",
    type=COUNT,
    multiple=True,
    default=SIZES,
    show_default="2K to 32K, and beyond while the first or the last is the best",
    help="Repeatable.",
)
@click.option("--page-size", type=COUNT, default=128, show_default=True, help="Dynamic chunks: KV page in tokens.")
@click.option("--min-chunk", type=COUNT, help="dcpp: smallest chunk [default: 4096, at most half --chunk-size].")
@click.option("--smooth", type=Number(0.0, 1.0), help="Dynamic chunks: smoothing [default: 1.0; SGLang 0.75].")
@LAYER_SPLIT
@click.option(
    "--layer-ranges",
    metavar="JSON",
    multiple=True,
    help="As compile takes them, for the strategies with so many stages; repeatable.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a comparison", *PICTURES, *JSON),
    help="Where to write: text, .json, or a picture: .svg, .html or .png [default: stdout].",
)
@click.option("--theme", type=click.Choice(THEMES), default="auto", show_default=True, help="Colours of a picture.")
@click.pass_context
def command(
    context: click.Context,
    /,
    pp: int,
    cost_files: tuple[str, ...],
    models: tuple[str, ...],
    device: str | None,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    network: bool,
    tokens: tuple[int, ...],
    together: list[tuple[int, ...]],
    files: tuple[str, ...],
    prompts: int,
    strategies: tuple[str, ...],
    measured_times: tuple[str, ...],
    warmups: int,
    sizes: tuple[int, ...],
    page_size: int,
    min_chunk: int | None,
    smooth: float | None,
    layer_split: str | None,
    layer_ranges: tuple[str, ...],
    jobs: int,
    as_json: bool,
    output: str | None,
    theme: str,
) -> None:
    """Compare strategies over chunk sizes and prompt lengths on one machine, each at its best and at equal sizes.

    \b
    vppc compare --cost cost.json
    vppc compare --model deepseek-v3.1 --tp 8 --pp 4 --tokens 128K --jobs 4 -o compare.svg
    vppc compare --cost cost.json --queue 128K+32K+8K
    vppc compare --cost cost.json --requests queue.jsonl --strategy cpp --strategy vpp-packed

    Every schedule is compiled, proven and priced; with --model it must also fit the device's memory. vLLM-Ascend's
    dynamic chunks (dcpp) come once for each --measured-time: planned from its start-up profile alone (offline), or
    calibrated while it serves, from times of the last rank's own work (own) or that include its wait for the rank
    before (wait).

    vpp-packed starts a prompt while the one before drains. For one prompt there is nothing to pack: it is vpp-async
    that may run further ahead, and so compared by default with queues only.

    The gains are of the last strategy named. A picture shows throughput, where the time goes, and chunk sizes.
    """
    as_json, drawn = wants_json(output, as_json), is_picture(output)
    check_needs(context, {**model_needs(models), **picture_needs(drawn)})
    check_one_stdin((*cost_files, *models, *dict.fromkeys(files)))
    specs = [load_model(model) for model in models]
    priced = {read_cost(file): None for file in cost_files} | dict(
        _modelled(spec, device, tp, ep, weight_dtype, network) for spec in specs
    )
    if not priced:
        raise InputError("nothing says what anything takes", place="--cost", remedy="give --cost FILE or --model NAME")
    queues = [Queue(PurePath(source_name(file)).name, read_prompts(file)) for file in dict.fromkeys(files)]
    queues += [queue_of(lengths) for lengths in together]
    lengths = tokens or (() if queues else LENGTHS)
    queues += [equal_prompts(length, prompts) for length in dict.fromkeys(lengths)]
    note_nodes(next(iter(specs), None), device, pp, tp, network=network)
    for spec in dict.fromkeys(specs):
        note_context(spec, (request for queue in queues for request in queue.requests))
    queued = any(len(queue.requests) > 1 for queue in queues)
    chosen = dict.fromkeys(strategies or (QUEUED if queued else ALONE))
    check_needs(context, {**strategy_needs(chosen, measured_times), "prompts": ("--tokens", bool(lengths))})
    contestants = [
        Options(
            strategy=strategy,
            pp=pp,
            split=layer_split,
            page_size=page_size,
            min_chunk=min_chunk,
            smooth=smooth,
            measured_time=time,
            warmups=warmups,
        )
        for strategy in chosen
        for time in (dict.fromkeys(measured_times) if strategy == "dcpp" else ("offline",))
    ]
    laid = {cost: _laid(contestants, layer_ranges, cost) for cost in priced}
    if all(options.ranges is not None for each in laid.values() for options in each):
        check_beside(context, "--layer-ranges of all strategies", ["layer_split"])
    contest = [
        case
        for cost, machine in priced.items()
        for case in cases(cost, queues, laid[cost], list(dict.fromkeys(sizes)), machine)
    ]

    def judged(some: list[Case]) -> tuple[Row, ...]:
        with progress("compare", len(some)) as done:
            return compare(some, jobs, done)

    rows = judged(contest)
    if context.get_parameter_source("sizes") is ParameterSource.DEFAULT:
        rows = widened(rows, judged)
    if all(row.best.report is None for row in rows):
        raise InputError(f"all cases are refused, the first because: {rows[0].best.refusal}")
    if drawn:
        write_picture(comparison_plot(rows, theme), output, "vppc compare", theme)
        return
    if as_json:
        provenance = {"compiler": f"vppc {__version__}", "command": command_line(context)}
        compared = {"pp": pp, "rows": [row.json() for row in rows], "provenance": provenance}
        text = json.dumps(compared, indent=1, allow_nan=False) + "\n"
    else:
        text = comparison_text(rows, contest[-1].contestant) + "\n"
    write_text(output, text)


def _modelled(
    spec: ModelSpec, device: str | None, tp: int, ep: int, weight_dtype: str | None, network: bool
) -> tuple[CostModel, Machine | None]:
    note_pricing(spec, device, weight_dtype)
    device = device or DEFAULT_DEVICE
    found = find_device(device)
    cost = roofline_cost(spec, found, tp=tp, ep=ep, weight_dtype=weight_dtype, network=network)
    return cost, Machine(spec, found, tp, ep, weight_dtype)


def _laid(contestants: Sequence[Options], layer_ranges: Iterable[str], cost: CostModel) -> list[Options]:
    """The contestants, each with the layer ranges that are for its stages, if there are such."""
    placed = {options: layout_of(options)[2] for options in contestants}
    found: dict[tuple[int, ...], Ranges] = {}
    for text in layer_ranges:
        fitting, refused = {}, None
        for ranks in dict.fromkeys(placed.values()):
            try:
                fitting[ranks] = read_ranges(text, ranks, cost.layer_count)
            except InputError as error:
                refused = error
        if not fitting and refused is not None:
            raise refused.in_file("--layer-ranges")
        found |= fitting
    return [
        replace(options, ranges=found[ranks], split=None) if ranks in found else options
        for options, ranks in placed.items()
    ]
