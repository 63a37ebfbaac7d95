"""``vppc graph``."""

from __future__ import annotations

import click

from vppc.cli.output import GRAPHS, Output, suffix_of, wrong_format
from vppc.files import write_text
from vppc.ir.document import read_schedule
from vppc.render.graph import instruction_graph, op_graph, to_dot, to_graphml, to_json

SUFFIXES = {"": "dot", ".dot": "dot", ".gv": "dot", ".graphml": "graphml", ".json": "json"}
GRAPH = "a graph here (Graphviz draws: vppc graph FILE | dot -Tsvg)"
FORMATS = {"dot": to_dot, "graphml": to_graphml, "json": to_json}
LEVELS = {"op": op_graph, "instruction": instruction_graph}


@click.command(name="graph")
@click.argument("file", metavar="FILE")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="[default: the suffix of -o, or dot]")
@click.option(
    "--level",
    type=click.Choice(list(LEVELS)),
    default="op",
    show_default=True,
    help="A node for every (chunk, stage), or for every instruction.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=Output(GRAPH, *GRAPHS),
    help="Where to write the graph [default: stdout].",
)
def command(file: str, form: str | None, level: str, output: str | None) -> None:
    """Export the dependency graph of the schedule FILE (- is stdin).

    \b
    vppc graph plan.json | dot -Tsvg > plan.svg
    vppc graph plan.json --level instruction -o plan.graphml

    Edges are activation, prefix (the KV cache), token (decoding) and rank; at the level of instructions they are
    program, data and rendezvous, and a cycle is a deadlock. A schedule need not be right to be drawn.
    """
    form = form or SUFFIXES.get(suffix_of(output))
    if form is None:
        raise wrong_format(output or "", GRAPH, GRAPHS)
    write_text(output, FORMATS[form](LEVELS[level](read_schedule(file))))
