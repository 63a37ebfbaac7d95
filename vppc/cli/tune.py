"""``vppc tune``."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from vppc import __version__
from vppc.analysis.memory import Memory, check_memory, memory_of
from vppc.cli.machine import DEFAULT_DEVICE, EP, NETWORK, TP, Machine, note_context, note_nodes
from vppc.cli.needs import check_beside, check_needs, fitted_needs
from vppc.cli.number import COUNT, Count, Gibibytes, Number
from vppc.cli.output import JSON, Output
from vppc.cli.progress import progress
from vppc.cli.prompts import read_prompts
from vppc.cli.provenance import command_line, made_by
from vppc.costs.devices import GIB, find_device
from vppc.errors import InputError
from vppc.files import check_one_stdin, write_text
from vppc.ir.document import schedule_text
from vppc.ir.partition import read_ranges
from vppc.ir.placement import DEFAULT_VP, PLACEMENTS, stage_ranks
from vppc.ir.schedule import Model, Request
from vppc.models import load_model
from vppc.render.tuning import tuning_text
from vppc.tuning.beside import beside
from vppc.tuning.engines import PLAN
from vppc.tuning.tune import Task, advice, proven, steps, tune
from vppc.tuning.workload import Limits

OBJECTIVES = {"throughput": 0.02, "both": 0.5, "ttft": 1.0}
"""The share of the mean TTFT. With throughput it decides between schedules that are all but equal."""


@click.command(name="tune")
@click.option("--pp", type=click.IntRange(1, 1024), required=True, help="Pipeline ranks.")
@click.option("--tokens", type=COUNT, multiple=True, help="A prompt of this many tokens; repeat for a queue.")
@click.option(
    "--requests", metavar="FILE", help="Prompts: JSON, JSON lines (as serve's), Mooncake's or Azure's; - is stdin."
)
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file: seconds of a layer and of a transfer.")
@click.option("--layers", type=COUNT, help="Layers that the model has, and the costs must have [default: theirs].")
@click.option("--model", metavar="NAME|FILE", help="A preset or a Hugging Face config.json; prices it if no --cost.")
@click.option(
    "--device", help="Price --model on it if no --cost, and keep to its memory [default without --cost: 910c]."
)
@TP
@EP
@click.option("--weight-dtype", help="Of --model's weights: bf16, fp8, w8a8 or fp32 [default: the config's].")
@NETWORK
@click.option("--max-chunk", type=COUNT, default=32768, show_default=True, help="Largest chunk in tokens.")
@click.option("--min-chunk", type=COUNT, default=64, show_default=True, help="Smallest chunk in tokens.")
@click.option("--align", type=COUNT, default=64, show_default=True, help="Chunks are multiples of so many tokens.")
@click.option("--placement", type=click.Choice(PLACEMENTS), help="Tune this placement only [default: all].")
@click.option("--vp", type=click.IntRange(1, 1024), help="Stages a rank [default: all up to 8].")
@click.option("--layer-ranges", metavar="JSON", help="Keep these layers (weights already loaded); needs --placement.")
@click.option(
    "--token-budget",
    type=Count(0),
    help="Put short prompts together in chunks of at most this many tokens; 0: never [default: where that is quicker].",
)
@click.option("--max-in-flight", type=COUNT, help="Most chunks entered and not finished.")
@click.option("--max-buffers", type=COUNT, help="Most activation buffers of a rank.")
@click.option(
    "--memory",
    type=Gibibytes(min=0.1, max=2**20),
    metavar="GIB",
    help="Keep to this memory a device, in GiB or as 80GB [default: --device's].",
)
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    default="throughput",
    show_default=True,
    help="Of several prompts, what to make short: the makespan, the mean of it and the mean time to first token, or "
    "that time alone.",
)
@click.option("--robust", is_flag=True, help="Prefer schedules that lose little when costs are off.")
@click.option("--exact", type=Number(0.1, 86400.0), metavar="SECONDS", help="Let a solver prove the order.")
@click.option("--effort", type=Number(0.1, 100.0), default=1.0, show_default=True, help="Search longer, or shorter.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("a schedule", *JSON),
    help="Where to write the best schedule; - writes it to stdout and nothing else.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    pp: int,
    tokens: tuple[int, ...],
    requests: str | None,
    cost_file: str | None,
    layers: int | None,
    model: str | None,
    device: str | None,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    network: bool,
    max_chunk: int,
    min_chunk: int,
    align: int,
    placement: str | None,
    vp: int | None,
    layer_ranges: str | None,
    token_budget: int | None,
    max_in_flight: int | None,
    max_buffers: int | None,
    memory: float | None,
    objective: str,
    robust: bool,
    exact: float | None,
    effort: float,
    as_json: bool,
    output: str | None,
) -> None:
    """Find the best schedule: chunk sizes, layer ranges, placement, order; and how far any other could be ahead.

    \b
    vppc tune --pp 2 --tokens 131072 --cost cost.json -o plan.json
    vppc tune --pp 4 --requests queue.json --cost cost.json --placement v
    vppc tune --pp 8 --tokens 524288 --model deepseek-v3.1 --tp 8 --ep 8 --weight-dtype w8a8 --memory 40

    It takes from seconds to minutes, about half of it for short searches of 15 ways to place the stages: --placement
    and --vp leave out the others, --effort scales what comes after.

    The schedule is an ordinary one: verify, simulate, plot and run it. Two bounds come with every result: of any
    order of the same chunks on the same stages, and of any chunking on them.
    """
    if bool(tokens) == (requests is not None):
        raise InputError("give one of --tokens and --requests", remedy="--tokens L is one prompt, --requests FILE many")
    fitted = fitted_needs(model, fitted=cost_file is None or device is not None or memory is not None)
    several = ("several prompts", requests is not None or len(tokens) > 1)
    check_needs(
        context,
        {
            **fitted,
            "memory": ("--model", model is not None),
            "objective": several,
            "token_budget": several,
            "max_in_flight": ("a placement that returns to rank 0", placement != "straight"),
        },
    )
    if output == "-":
        check_beside(context, "-o -, which writes the schedule and nothing else", ["as_json"])
    check_one_stdin((cost_file, model, requests))
    spec = load_model(model) if model is not None else None
    machine = Machine(spec, device, tp, ep, weight_dtype, network)
    cost = machine.cost(cost_file, layers)
    if cost_file is None:
        note_nodes(spec, device, pp, tp, network=network)
    machine.note_ways(cost)
    if requests is not None:
        prompts = read_prompts(requests)
    else:
        prompts = tuple(Request(f"r{index}", count) for index, count in enumerate(tokens))
    note_context(spec, prompts)
    ranges = None
    if layer_ranges is not None and placement is not None:
        vp = vp if vp is not None else DEFAULT_VP[placement]
        try:
            ranges = read_ranges(layer_ranges, stage_ranks(placement, pp, vp), cost.layer_count)
        except InputError as error:
            raise error.in_file("--layer-ranges") from None
    elif layer_ranges is not None:
        raise InputError("layer ranges are of one placement", place="--layer-ranges", remedy="name it with --placement")
    limit = _memory(machine, memory, priced=cost_file is None)
    task = Task(
        requests=prompts,
        cost=cost,
        model=Model((spec.name if spec is not None else cost.name) or "unnamed", cost.layer_count),
        pp=pp,
        limits=Limits(max_chunk, min_chunk, align),
        share=OBJECTIVES[objective] if len(prompts) > 1 else 0.0,  # of one prompt they are the same
        placement=placement,
        vp=vp,
        ranges=ranges,
        max_in_flight=max_in_flight,
        max_buffers=max_buffers,
        token_budget=token_budget,
        memory=limit,
        effort=effort,
        robust=robust,
        extra={**machine.extra(), **made_by(context)},
    )
    with progress("tune", steps(task)) as done:
        results = tune(task, done)
    best = results[0] if exact is None else proven(task, results[0], exact)
    schedule = best.schedule
    if limit is not None:
        schedule = check_memory(schedule, limit.spec, limit.device, tp=tp, ep=ep, weight_dtype=limit.weight_dtype)
    results = (replace(best, schedule=schedule), *results[1:])
    notes, others = list(advice(task, results)), beside(task, best)
    plan = PLAN if output in (None, "-") else output
    if as_json:
        found = {
            "pp": pp,
            "placements": [tuned.json(plan) for tuned in results],
            "beside": [other.json(best.report) for other in others],
            "advice": notes,
            "provenance": {
                "compiler": f"vppc {__version__}",
                "command": command_line(context),
                "costs": cost.name or "unnamed",
            },
        }
        text = json.dumps(found, indent=1, allow_nan=False)
    else:
        text = tuning_text(results, others, notes, plan)
    if output is not None:
        write_text(output, schedule_text(schedule))
    if output != "-":
        write_text(None, text + "\n")


def _memory(machine: Machine, gib: float | None, *, priced: bool) -> Memory | None:
    """The memory to keep to, where something is said of it: of a device that is named, or priced on, or ``gib``."""
    spec = machine.spec
    if spec is None or not (priced or machine.device or gib is not None):
        return None
    device = find_device(machine.device or DEFAULT_DEVICE)
    if gib is not None:
        device = replace(device, memory=round(gib * GIB))
    return memory_of(spec, device, tp=machine.tp, ep=machine.ep, weight_dtype=machine.weight_dtype)
