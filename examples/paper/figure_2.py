"""The paper's figure 2, drawn from schedules: five chunks on two ranks in four schemes, and the next request's three.

``python -m examples.paper.figure_2 -o docs/images/figure-2.svg``, from the repository's root.
"""

from __future__ import annotations

import click

from vppc.analysis.timing import simulate
from vppc.compiler import compile_schedule, paper_cost
from vppc.costs.model import OpCosts
from vppc.files import write_text
from vppc.ir.schedule import Model, Request
from vppc.passes.strategies import Options
from vppc.render.lanes import Run
from vppc.render.plot import Style, plot

SCHEMES = ("cpp", "vpp", "vpp-async", "vpp-packed")
REQUESTS = (Request("R", 5), Request("R'", 3))
TRANSFER = 0.3
"""Of a chunk's hop, in units of t, the time of the first chunk in a stage."""


def runs() -> tuple[Run, ...]:
    """Both requests under each scheme."""
    return tuple(map(_run, SCHEMES))


def _run(strategy: str) -> Run:
    cost = paper_cost(4, 1.0, TRANSFER)
    options = Options(strategy=strategy, pp=2, chunk_size=1)
    schedule = compile_schedule(REQUESTS, Model(cost.name, cost.layer_count), cost, options)
    return Run(strategy, schedule, simulate(schedule, OpCosts.of(schedule, cost)))


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Where to write the picture [default: stdout].")
def command(output: str | None) -> None:
    """Draw the VPP paper's figure 2."""
    write_text(output, plot(runs(), Style()))


if __name__ == "__main__":
    command()
