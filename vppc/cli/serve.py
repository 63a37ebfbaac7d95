"""``vppc serve``."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BufferedReader

import click

from vppc.cli.machine import DEVICES_A_RANK, NETWORK, Machine
from vppc.cli.needs import check_beside, check_needs, queue_needs
from vppc.cli.number import COUNT, Count, Number
from vppc.cli.output import JSON, LINES, Output
from vppc.cli.prompts import IN_TIME, WHO_IS_NEXT
from vppc.cli.provenance import made_by
from vppc.costs.calibration import calibrate
from vppc.costs.document import cost_json
from vppc.errors import InputError
from vppc.files import check_one_stdin, source_name, write_text
from vppc.inputs.requests import is_mooncake
from vppc.ir.placement import PLACEMENTS
from vppc.ir.schedule import Model
from vppc.models import load_model
from vppc.passes.strategies import STRATEGIES, Options
from vppc.serving.batching import Limits
from vppc.serving.chunk_rules import chunk_rule
from vppc.serving.clock import header_of
from vppc.serving.compiler import IncrementalCompiler
from vppc.serving.drift import Drift
from vppc.serving.policy import POLICIES, policy
from vppc.serving.writer import Writer

RUNNERS = ("reference", "timed", "null", "vllm")


@click.command(name="serve")
@click.argument("requests", metavar="[REQUESTS]", default="-")
@click.option("--pp", type=click.IntRange(1, 1024), required=True, help="Pipeline ranks.")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="vpp-packed", show_default=True, help="How chunks are ordered."
)
@click.option("--placement", type=click.Choice(PLACEMENTS), help="Stage placement [default: the strategy's].")
@click.option("--vp", type=click.IntRange(1, 1024), help="Stages a rank [default: straight 1, v 2, zigzag 4, loop 2].")
@click.option("--layers", type=COUNT, help="Layers that the model has, and the costs must have [default: theirs].")
@click.option("--model", metavar="NAME|FILE", help="A preset or a Hugging Face config.json; prices it if no --cost.")
@click.option("--cost", "cost_file", metavar="FILE", help="Cost file: seconds of a layer and of a transfer.")
@click.option("--device", "priced_on", help="Price --model on it if no --cost [default: 910c].")
@NETWORK
@click.option("--tp", type=DEVICES_A_RANK, default=1, show_default=True, help="Processes a rank: tensor parallel ways.")
@click.option("--chunk-size", type=COUNT, default=8192, show_default=True, help="Tokens a chunk.")
@click.option("--whole-prompts", is_flag=True, help="A chunk holds several prompts only if they are whole.")
@click.option("--decode-tokens", type=Count(0), default=0, show_default=True, help="Kept free in every chunk.")
@click.option(
    "--max-in-flight", type=COUNT, help="Chunks entered and not finished [default: pp, in a V 2 pp - 1, packed 3 pp]."
)
@click.option("--max-buffers", type=COUNT, help="Activation buffers a rank [default: what that many chunks need].")
@click.option("--max-resident-tokens", type=COUNT, help="Prompt tokens of requests entered and not finished (KV).")
@click.option("--max-queued", type=COUNT, default=1000, show_default=True, help="More that wait are refused.")
@click.option("--policy", "queue", type=click.Choice(POLICIES), default="fcfs", show_default=True, help=WHO_IS_NEXT)
@click.option("--patience", type=Number(0.0), default=60.0, show_default=True, help="Seconds until nobody overtakes.")
@click.option("--ttft-target", type=Number(0.0), default=10.0, show_default=True, help=f"For deadline. {IN_TIME}")
@click.option("--runner", type=click.Choice(RUNNERS), default="reference", show_default=True, help="What ranks run.")
@click.option(
    "--checkpoint", metavar="DIR", help="Of the vllm runner, or the reference runner [default: a small seeded model]."
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True, help="Of the model."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of seeded weights and prompts.")
@click.option("--attach", metavar="HOST:PORT", help="Serve on ranks that torchrun starts, its store there.")
@click.option("--timeout", type=Number(2.0, 86400.0), default=60.0, show_default=True, help="Bound of every wait, s.")
@click.option("--horizon", type=Number(0.001, 60.0), default=0.05, show_default=True, help="Seconds planned ahead.")
@click.option(
    "--drift",
    "bound",
    type=Number(0.01),
    default=0.2,
    show_default=True,
    help="Part by which FORWARDs may be off their costs, before these are fitted anew.",
)
@click.option("--journal", "journal_folder", metavar="DIR", help="Where to write when what ran, at the end.")
@click.option(
    "--refitted",
    metavar="FILE",
    type=Output("a cost file", *JSON),
    help="Where to write the costs that the ranks showed, at the end.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output("first tokens", *LINES),
    help="Where first tokens go [default: stdout].",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    requests: str,
    pp: int,
    strategy: str,
    placement: str | None,
    vp: int | None,
    layers: int | None,
    model: str | None,
    cost_file: str | None,
    priced_on: str | None,
    network: bool,
    tp: int,
    chunk_size: int,
    whole_prompts: bool,
    decode_tokens: int,
    max_in_flight: int | None,
    max_buffers: int | None,
    max_resident_tokens: int | None,
    max_queued: int,
    queue: str,
    patience: float,
    ttft_target: float,
    runner: str,
    checkpoint: str | None,
    dtype: str,
    seed: int,
    attach: str | None,
    timeout: float,
    horizon: float,
    bound: float,
    journal_folder: str | None,
    refitted: str | None,
    output: str | None,
) -> None:
    """Serve requests as they come, on real ranks: compile while they run, and print first tokens as they are made.

    REQUESTS is a file, or - for stdin, with a JSON object a line: a request, or one to cancel.

    \b
    {"id": "a", "prompt_tokens": 4096}
    {"id": "b", "prompt_tokens": 70000, "arrival": 1.5}
    {"cancel": "b", "arrival": 2.0}

    Out comes an object for each, as it happens: the first token and its TTFT, or that it was cancelled, refused
    (the queue is full) or wrong. At the end of the input, or at SIGTERM, what was accepted is finished first.

    \b
    vppc serve --pp 2 --cost cost.json requests.jsonl
    vppc serve --pp 4 --cost cost.json --runner timed --policy srpf < requests.jsonl
    torchrun --nnodes 2 --nproc-per-node 4 --master-addr HOST --master-port 29500 ... -m runtime --stream --tp 2
    vppc serve --pp 4 --tp 2 --attach HOST:29500 --cost cost.json
    """
    if (
        output is not None
        and os.path.exists(output)
        and os.path.exists(requests)
        and os.path.samefile(output, requests)
    ):
        raise InputError("is where the requests are", file=output, place="-o", remedy="another file")
    _check_options(context)
    check_one_stdin((requests, cost_file, model))
    spec = load_model(model) if model is not None else None
    machine = Machine(spec, priced_on, tp, 1, None, network)
    cost = machine.cost(cost_file, layers)
    machine.note_ways(cost)
    options = Options(strategy=strategy, pp=pp, placement=placement, vp=vp, chunk_size=chunk_size)
    name = (spec.name if spec is not None else cost.name) or "unnamed"
    header = header_of(options, Model(name, cost.layer_count))
    setup = replace(header, extra={**header.extra, **machine.extra(), "tp": tp, **made_by(context)})
    limits = Limits(
        chunk_size=chunk_size,
        max_in_flight=max_in_flight,
        max_buffers=max_buffers,
        max_resident_tokens=max_resident_tokens,
        decode_tokens=decode_tokens,
        max_queued=max_queued,
        fill=not whole_prompts,
    )
    order = policy(queue, cost, patience=patience, ttft_target=ttft_target)
    rule = chunk_rule(options, cost)
    compiler = IncrementalCompiler(setup, cost, limits, order, strategy, rule, horizon=horizon)
    drift = Drift(setup, cost, bound)
    _require_torch()
    from vppc.serving.coordinator import Coordinator
    from vppc.serving.ranks import Ranks
    from vppc.serving.stream_journal import StreamJournal

    with ExitStack() as before:
        lines = before.enter_context(_lines(requests))
        _check_no_trace(lines, requests)
        journal = StreamJournal(journal_folder, compiler.opening(), pp * tp, tp) if journal_folder is not None else None
        with _written(output) as descriptor:  # once it is known that there is something to serve
            if attach is not None:
                ranks = Ranks.attach(*_address(attach), pp * tp, timeout)
            else:
                chosen = ["--runner", runner, "--tp", str(tp), "--dtype", dtype, "--seed", str(seed)]
                chosen += ["--model", checkpoint] if checkpoint is not None else []
                ranks = Ranks.start(pp * tp, timeout, chosen)
            if output not in (None, "-") and stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, 0)  # what the last server wrote, now that there are ranks
            write = Writer(descriptor, output or "stdout", timeout)
            with ranks:
                coordinator = Coordinator(compiler, ranks, drift, write, _notice, tp=tp, journal=journal)
                before.pop_all()  # from here on the input is the coordinator's to close
                try:
                    coordinator.serve(lines)
                finally:
                    if journal is not None:
                        journal.close(coordinator.skew)
            write.close()
    _notice(coordinator.served.summary(drift.value))
    if refitted is not None:
        measured = drift.measurements()
        if not measured.forwards:
            raise InputError("no FORWARD has run to fit costs to", place="--refitted", remedy="send some requests")
        write_text(refitted, json.dumps(cost_json(calibrate(measured, base=cost).cost), indent=1) + "\n")


def _check_options(context: click.Context) -> None:
    """Raises InputError for options that would say nothing beside the others."""
    given = context.params
    model, computes = given["model"] is not None, given["runner"] in ("reference", "vllm")
    check_needs(
        context,
        {
            **dict.fromkeys(("priced_on", "network"), ("--model", model)),
            **queue_needs([given["queue"]]),
            "ttft_target": ("--policy deadline", given["queue"] == "deadline"),
            **dict.fromkeys(("checkpoint", "dtype", "seed"), ("--runner reference or vllm", computes)),
        },
    )
    if given["cost_file"] is not None:
        check_beside(context, "--cost", ["priced_on"])
    if given["attach"] is not None:
        check_beside(context, "--attach: torchrun starts the ranks", ["runner", "checkpoint", "dtype", "seed"])


def _notice(text: str) -> None:
    click.echo(f"vppc: {text}", err=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError(
            f"{text!r} is no address", place="--attach", remedy="HOST:PORT, those of torchrun's --master-*"
        )
    return host, int(port)


def _require_torch() -> None:
    try:
        import torch.distributed  # noqa: F401
    except ModuleNotFoundError:
        raise InputError(
            "needs torch, which is not installed", place="serve", remedy="pip install '.[runtime]'"
        ) from None


def _lines(path: str) -> BufferedReader:
    """The input, for a thread that reads it: of stdin not the object that the interpreter closes when it ends."""
    try:
        if path != "-":
            return open(path, "rb")
        if sys.stdin is None:
            raise InputError("cannot be read: it is closed", file="stdin")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=source_name(path)) from None


def _check_no_trace(lines: BufferedReader, path: str) -> None:
    """Raises InputError for a trace, whose lines would be refused one by one."""
    try:
        first = lines.peek().partition(b"\n")[0] if lines.seekable() else b""
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=source_name(path)) from None
    if is_mooncake(first.decode(errors="replace")):
        raise InputError(
            "is a Mooncake trace, whose lines are no requests",
            file=source_name(path),
            remedy="jq -c '{prompt_tokens: .input_length, arrival: (.timestamp / 1000)}' makes them such; "
            "vppc serve-sim takes a trace as it is",
        )


@contextmanager
def _written(path: str | None) -> Iterator[int]:
    """The descriptor of the output, with what is in it: a thread writes to it, and may be at it when the interpreter
    ends."""
    if path is None or path == "-":
        if sys.stdout is None:
            raise InputError("cannot be written: it is closed", file="stdout")
        yield sys.stdout.fileno()
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
