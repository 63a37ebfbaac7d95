"""``vppc convert``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath

import click

from vppc.cli.needs import check_needs
from vppc.cli.output import NOTATIONS, Output
from vppc.cli.provenance import command_line, signed
from vppc.errors import CheckFailed, InputError
from vppc.files import read_text, source_name, write_text
from vppc.ir.assembly import parse_assembly, to_assembly
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.partition import Ranges, write_partition, write_vpp_layer_ranges
from vppc.ir.schedule import Schedule
from vppc.ir.torch_csv import Transfers, parse_torch_csv, to_torch_csv
from vppc.lowering import lower

SUFFIXES = {".json": "json", ".asm": "asm", ".csv": "torch-csv"}
READS = ("json", "asm", "torch-csv")
WRITES: Mapping[str, Callable[[Schedule], str | Iterable[str]]] = {
    "json": schedule_text,
    "asm": to_assembly,
    "torch-csv": to_torch_csv,
    "torch-compute-csv": lambda schedule: to_torch_csv(schedule, compute_only=True),
    "vpp_layer_ranges": lambda schedule: write_vpp_layer_ranges(_ranges(schedule), schedule.stage_ranks) + "\n",
    "VLLM_PP_LAYER_PARTITION": lambda schedule: write_partition(_ranges(schedule), schedule.stage_ranks) + "\n",
    "SGLANG_PP_LAYER_PARTITION": lambda schedule: write_partition(_ranges(schedule), schedule.stage_ranks) + "\n",
}


@click.command(name="convert")
@click.argument("file", metavar="FILE")
@click.option(
    "--from", "source", metavar="NOTATION", type=click.Choice(READS), help="Notation of FILE [default: by its suffix]."
)
@click.option(
    "--to", "target", type=click.Choice(list(WRITES)), help="Notation to write [default: by the suffix of -o]."
)
@click.option(
    "--transfers",
    type=click.Choice(["posted", "blocking"]),
    default="posted",
    show_default=True,
    help="Of a torch-csv with transfers: wait as PyTorch's runtime does, or at once for each.",
)
@click.option(
    "-o", "--output", metavar="FILE", type=Output("a schedule", *NOTATIONS), help="Where to write [default: stdout]."
)
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    source: str | None,
    target: str | None,
    transfers: Transfers,
    output: str | None,
) -> None:
    """Translate the schedule FILE (- is stdin) to another notation. Says nothing of whether it is right: verify does.

    \b
    json   the schedule file                       .json
    asm    readable and editable, nothing is lost  .asm
    torch-csv, torch-compute-csv                   .csv
           PyTorch's pipelining CSV; one without transfers is lowered on reading
    vpp_layer_ranges, VLLM_PP_LAYER_PARTITION, SGLANG_PP_LAYER_PARTITION
           the layer split, as engines are told
    """
    source = source or _notation(file, "--from")
    target = target or _notation(output or "-", "--to")
    check_needs(context, {"transfers": ("--from torch-csv", source == "torch-csv")})
    name = source_name(file)
    try:
        schedule = _read(read_text(file), name, source, transfers)
        made = source == "torch-csv" or not schedule.programs
        if not schedule.programs and target != "torch-compute-csv":
            schedule = lower(schedule)
        if source == "asm" and schedule.programs:
            parse_schedule("".join(schedule_text(schedule)), name)  # its reader knows the types and ranges
        write_text(output, WRITES[target](signed(schedule, command_line(context)) if made else schedule))
    except InputError as error:
        raise error.in_file(name) from None
    except CheckFailed as error:
        raise CheckFailed(error.findings, file=name) from None


def _notation(path: str, option: str) -> str:
    suffix = PurePath(path).suffix.lower()
    if suffix not in SUFFIXES:
        shown = "a pipe" if path == "-" else f"{path!r}"
        remedy = f"give {option}, or a name that ends in {', '.join(SUFFIXES)}"
        raise InputError(f"cannot tell the notation of {shown} by its name", place=option, remedy=remedy)
    return SUFFIXES[suffix]


def _read(text: str, name: str, notation: str, transfers: Transfers) -> Schedule:
    if notation == "json":
        return parse_schedule(text, name)
    if notation == "torch-csv":
        return parse_torch_csv(text, name, transfers)
    return parse_assembly(text, name)


def _ranges(schedule: Schedule) -> Ranges:
    if not schedule.stages:
        raise InputError("there is no stage", place="stages", remedy="a schedule has pp x vp stages")
    return tuple(stage.layers for stage in schedule.stages)
