"""``vppc serve-sim``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

import click

from vppc.cli.machine import EP, LAYER_SPLIT, NETWORK, TP, Machine, note_context, note_nodes
from vppc.cli.needs import check_beside, check_needs, model_needs, picture_needs, queue_needs, strategy_needs
from vppc.cli.number import COUNT, Number
from vppc.cli.output import JSON, PICTURES, Output, wants_json
from vppc.cli.picture import THEMES, is_picture, write_picture
from vppc.cli.progress import progress
from vppc.cli.prompts import IN_TIME, WHO_IS_NEXT, read_prompts
from vppc.costs.model import CostModel
from vppc.errors import InputError
from vppc.files import check_one_stdin, source_name, write_text
from vppc.ir.placement import PLACEMENTS
from vppc.models import load_model
from vppc.passes.strategies import MEASURED_TIMES, STRATEGIES, Options
from vppc.render.serving import serving_text
from vppc.render.serving_plot import serving_plot
from vppc.serving.contest import contest, trials
from vppc.serving.policy import POLICIES
from vppc.serving.simulate import Setting
from vppc.serving.workloads import SUITES, Workload, suite

SECONDS = Number(min=0.0, max=1e9)


@click.command(name="serve-sim")
@click.option("--suite", "suites", type=click.Choice(SUITES), multiple=True, help="A suite of the paper; repeatable.")
@click.option(
    "--requests", "files", metavar="FILE", multiple=True, help="Requests: JSON, JSON lines, Mooncake's or Azure's."
)
@click.option("--limit", type=COUNT, help="Of FILE, the first so many requests.")
@click.option("--prefix-hits", is_flag=True, help="Count prefixes that an earlier request of a trace left cached.")
@click.option("--concurrency", "users", type=COUNT, multiple=True, help="Closed loop: so many at a time; repeatable.")
@click.option("--rate", "rates", type=Number(1e-6, 1e6), multiple=True, help="Open loop: so many a second; repeatable.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random order and arrivals.")
@click.option("--pp", type=click.IntRange(1, 1024), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file: seconds of a layer and of a transfer.")
@click.option("--model", metavar="NAME|FILE", help="Model, priced by roofline if no --cost.")
@click.option("--device", help="With --model: the device [default: 910c].")
@TP
@EP
@click.option("--weight-dtype", help="With --model: dtype of the weights [default: the model's].")
@NETWORK
@click.option("--launch", type=SECONDS, help="Seconds that a forward takes to launch, in place of the costs'.")
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    default=("cpp", "dcpp", "vpp-packed"),
    show_default=True,
    help="Repeatable.",
)
@click.option(
    "--measured-time",
    "measured_times",
    type=click.Choice(MEASURED_TIMES),
    multiple=True,
    default=("wait",),
    show_default=True,
    help="dcpp: what it learns from while serving; repeatable.",
)
@click.option(
    "--warmups", type=click.IntRange(0, 100), default=0, show_default=True, help="dcpp: runs of the same before."
)
@click.option(
    "--chunk-size", "sizes", type=COUNT, multiple=True, default=(8192,), show_default=True, help="Repeatable."
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    help=f"{WHO_IS_NEXT} Repeatable [default: fcfs].",
)
@click.option("--patience", type=SECONDS, default=60.0, show_default=True, help="Starvation bound in seconds.")
@click.option("--ttft-target", type=Number(1e-9, 1e9), help=f"{IN_TIME} For goodput; deadline has 10 without.")
@click.option("--whole-prompts", is_flag=True, help="A chunk holds several prompts only if they are whole.")
@click.option(
    "--max-in-flight", type=COUNT, help="Chunks entered and not finished [default: pp, in a V 2 pp - 1, packed 3 pp]."
)
@click.option("--max-resident-tokens", type=COUNT, help="Prompt tokens of requests entered and not finished.")
@click.option("--page-size", type=COUNT, default=128, show_default=True, help="Dynamic chunks: KV page in tokens.")
@click.option("--min-chunk", type=COUNT, help="dcpp: smallest chunk [default: 4096, at most half --chunk-size].")
@click.option("--smooth", type=Number(0.0, 1.0), help="Dynamic chunks: smoothing [default: 1.0; SGLang 0.75].")
@click.option("--placement", type=click.Choice(PLACEMENTS[1:]), help="Stages of the vpp strategies [default: v].")
@click.option("--vp", type=click.IntRange(2, 1024), help="With --placement: stages a rank [default: zigzag 4, loop 2].")
@LAYER_SPLIT
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option("--theme", type=click.Choice(THEMES), default="auto", show_default=True, help="Colours of a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a simulation", *PICTURES, *JSON),
    help="Where to write: text, .json, or a picture: .svg, .html or .png [default: stdout].",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    suites: tuple[str, ...],
    files: tuple[str, ...],
    limit: int | None,
    prefix_hits: bool,
    users: tuple[int, ...],
    rates: tuple[float, ...],
    seed: int,
    pp: int,
    cost_file: str | None,
    model: str | None,
    device: str | None,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    network: bool,
    launch: float | None,
    strategies: tuple[str, ...],
    measured_times: tuple[str, ...],
    warmups: int,
    sizes: tuple[int, ...],
    policies: tuple[str, ...],
    patience: float,
    ttft_target: float | None,
    whole_prompts: bool,
    max_in_flight: int | None,
    max_resident_tokens: int | None,
    page_size: int,
    min_chunk: int | None,
    smooth: float | None,
    placement: str | None,
    vp: int | None,
    layer_split: str | None,
    jobs: int,
    theme: str,
    as_json: bool,
    output: str | None,
) -> None:
    """Simulate serving: requests that keep coming, under each strategy, at its best chunk size.

    \b
    vppc serve-sim --suite mixed --cost cost.json --chunk-size 16K --chunk-size 32K
    vppc serve-sim --requests trace.jsonl --prefix-hits --rate 0.5 --model deepseek-v3.1 --tp 8 --ep 8
    vppc serve-sim --suite mixed --cost cost.json --concurrency 1 --concurrency 4 --concurrency 16 -o depth.svg

    A closed loop keeps --concurrency requests in the system; in an open one they come at their arrivals, or at
    --rate. Chunks are filled as vLLM fills its batches. What ranks are idle for:

    \b
    transfer   the next input is under way        imbalance  it is not computed yet, and requests wait
    held       requests wait, but may not enter   starved    none waits: there is nothing to pack
    empty      no request is in the system

    The gains are of the last strategy named, and of the last --policy: in throughput, or in an open loop, where that
    is what comes, in the mean time to first token.
    """
    as_json, drawn = wants_json(output, as_json), is_picture(output)
    chosen = tuple(dict.fromkeys(policies or ("fcfs",)))
    needs = {**model_needs(model), **picture_needs(drawn), **queue_needs(chosen)}
    check_needs(context, {**needs, **strategy_needs(strategies, measured_times)})
    if cost_file is not None:
        check_beside(context, "--cost", ["device", "tp", "ep", "weight_dtype"])
    if drawn and "deadline" not in chosen:
        check_beside(context, "a picture", ["ttft_target"])
    check_one_stdin((cost_file, model, *dict.fromkeys(files)))
    spec = load_model(model) if model else None
    machine = Machine(spec, device, tp, ep, weight_dtype, network)
    cost = _priced(machine, cost_file, launch)
    memory = None
    if cost_file is None:
        memory = machine.memory()
        note_nodes(spec, device, pp, tp, network=network)
    if not suites and not rates:
        check_needs(context, {"seed": ("--suite or --rate", False)})
    workloads = list(_workloads(suites, files, limit, prefix_hits, users, rates, seed))
    note_context(spec, (request for workload in workloads for request in workload.requests))
    settings = [
        Setting(cost, options, policy, patience, ttft_target, not whole_prompts, memory)
        for options in (
            Options(
                strategy=strategy,
                pp=pp,
                placement=placement if strategy.startswith("vpp") else None,
                vp=vp if strategy.startswith("vpp") else None,
                split=layer_split,
                max_in_flight=max_in_flight,
                max_resident_tokens=max_resident_tokens,
                page_size=page_size,
                min_chunk=min_chunk,
                smooth=smooth,
                measured_time=time,
                warmups=warmups,
            )
            for strategy in dict.fromkeys(strategies)
            for time in (dict.fromkeys(measured_times) if strategy == "dcpp" else ("offline",))
        )
        for policy in chosen
    ]
    tried = list(trials(workloads, settings, list(dict.fromkeys(sizes))))
    with progress("serve-sim", len(tried)) as done:
        entries = contest(tried, jobs, done)
    if all(entry.best.report is None for entry in entries):
        raise InputError(f"all trials are refused, the first because: {entries[0].best.refusal}")
    if drawn:
        write_picture(serving_plot(entries, theme), output, "vppc serve-sim", theme)
        return
    if as_json:
        shown = {"pp": pp, "cost": cost.name, "entries": [entry.json() for entry in entries]}
        text = json.dumps(shown, indent=1, allow_nan=False) + "\n"
    else:
        text = serving_text(entries, entries[-1].contestant) + "\n"
    write_text(output, text)


def _priced(machine: Machine, file: str | None, launch: float | None) -> CostModel:
    cost = machine.cost(file, None)
    if cost.interference:
        click.echo("note: the costs' interference of transfers with compute is left out", err=True)
    return cost if launch is None else replace(cost, launch=launch)


def _workloads(
    suites: Sequence[str],
    files: Sequence[str],
    limit: int | None,
    prefix_hits: bool,
    users: Sequence[int],
    rates: Sequence[float],
    seed: int,
) -> Iterator[Workload]:
    """Every suite and file as it is, or at each concurrency and rate that is asked for."""
    if not suites and not files:
        raise InputError("nothing says what requests come", remedy=f"give --requests FILE, or --suite {SUITES[-1]}")
    for option, given in (("--limit", limit is not None), ("--prefix-hits", prefix_hits)):
        if given and not files:
            raise InputError("says nothing without --requests", place=option, remedy="give --requests, or leave it out")
    found = [suite(name, seed) for name in dict.fromkeys(suites)]
    for file in dict.fromkeys(files):
        requests = read_prompts(file, prefix_hits=prefix_hits, limit=limit)
        found.append(Workload(PurePath(source_name(file)).name, requests))
    for workload in found:
        if not users and not rates:
            yield workload
        yield from (replace(workload, concurrency=count) for count in dict.fromkeys(users))
        yield from (workload.paced(rate, seed) for rate in dict.fromkeys(rates))
