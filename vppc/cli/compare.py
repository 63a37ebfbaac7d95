"""``vppc compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from vppc.cli.number import COUNT, Number
from vppc.compare import cases, compare
from vppc.costs.devices import find_device
from vppc.costs.document import read_cost
from vppc.costs.roofline import roofline_cost
from vppc.errors import InputError
from vppc.files import write_text
from vppc.ir.partition import SPLITS
from vppc.models import load_model
from vppc.passes.chunking import MOST_CHUNKS
from vppc.passes.strategies import MEASURED_TIMES, STRATEGIES, Options
from vppc.render.comparison import comparison_text

WAYS = click.IntRange(1, 65536)
LENGTHS = (65536, 131072, 262144, 524288)
SIZES = (8192, 16384, 24576, 32768)


@click.command(name="compare")
@click.option("--pp", type=click.IntRange(1, 1024), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--cost", "cost_files", metavar="FILE", multiple=True, help="Cost file; repeat for more.")
@click.option("--model", "models", metavar="NAME|FILE", multiple=True, help="Model, priced by roofline; repeatable.")
@click.option("--device", default="910c", show_default=True, help="With --model: the device.")
@click.option("--tp", type=WAYS, default=1, show_default=True, help="With --model: devices a rank (tensor parallel).")
@click.option("--ep", type=WAYS, default=1, show_default=True, help="With --model: devices that share the experts.")
@click.option("--weight-dtype", help="With --model: dtype of the weights [default: the model's].")
@click.option("--tokens", type=COUNT, multiple=True, help="Prompt length; repeatable [default: 64K to 512K].")
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
    default=("cpp", "dcpp", "vpp", "vpp-async"),
    show_default=True,
    help="Repeatable.",
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
@click.option("--chunk-size", "sizes", type=COUNT, multiple=True, default=SIZES, show_default=True, help="Repeatable.")
@click.option("--page-size", type=COUNT, default=128, show_default=True, help="Dynamic chunks: KV page in tokens.")
@click.option("--min-chunk", type=COUNT, default=4096, show_default=True, help="dcpp: smallest chunk.")
@click.option("--smooth", type=Number(0.0, 1.0), help="Dynamic chunks: smoothing [default: 1.0; SGLang 0.75].")
@click.option("--layer-split", type=click.Choice(list(SPLITS)), help="Who gets the remainder of uneven layers.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("-o", "--output", metavar="FILE", help="Where to write it [default: stdout].")
def command(
    pp: int,
    cost_files: tuple[str, ...],
    models: tuple[str, ...],
    device: str,
    tp: int,
    ep: int,
    weight_dtype: str | None,
    tokens: tuple[int, ...],
    prompts: int,
    strategies: tuple[str, ...],
    measured_times: tuple[str, ...],
    warmups: int,
    sizes: tuple[int, ...],
    page_size: int,
    min_chunk: int,
    smooth: float | None,
    layer_split: str | None,
    jobs: int,
    as_json: bool,
    output: str | None,
) -> None:
    """Compare strategies over chunk sizes and prompt lengths on one machine, each at its best and at equal sizes.

    \b
    vppc compare --cost cost.json
    vppc compare --model deepseek-v3.1 --tp 8 --pp 4 --tokens 131072 --jobs 4

    Every schedule is compiled, proven and priced. vLLM-Ascend's dynamic chunks (dcpp) come once for each
    --measured-time: planned from its start-up profile alone (offline), or calibrated while it serves, from times of
    the last rank's own work (own) or that include its wait for the rank before (wait).

    The gains are of the last strategy named.
    """
    measured = map(read_cost, cost_files)
    modelled = (
        roofline_cost(load_model(model), find_device(device), tp=tp, ep=ep, weight_dtype=weight_dtype)
        for model in models
    )
    costs = list(dict.fromkeys((*measured, *modelled)))
    if not costs:
        raise InputError("nothing says what anything takes", place="--cost", remedy="give --cost FILE or --model NAME")
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
        for strategy in dict.fromkeys(strategies)
        for time in (dict.fromkeys(measured_times) if strategy == "dcpp" else ("offline",))
    ]
    lengths = list(dict.fromkeys(tokens or LENGTHS))
    contest = list(cases(costs, lengths, contestants, list(dict.fromkeys(sizes)), prompts))
    with _progress(len(contest)) as done:
        rows = compare(contest, jobs, done)
    if all(row.best.report is None for row in rows):
        raise InputError(f"all cases are refused, the first because: {rows[0].best.refusal}")
    if as_json:
        text = json.dumps({"pp": pp, "rows": [row.json() for row in rows]}, indent=1, allow_nan=False)
    else:
        text = comparison_text(rows, contest[-1].contestant)
    write_text(output, text + "\n")


@contextmanager
def _progress(length: int) -> Iterator[Callable[[], object]]:
    """What to call after each case: it moves a bar on stderr, when that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label="compare", file=sys.stderr) as bar:
        yield lambda: bar.update(1)
