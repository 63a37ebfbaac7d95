"""Graphs of a schedule for other tools: dot for Graphviz, GraphML, and the node-link JSON of networkx.

Two levels. ``op``: the dependency DAG of :mod:`vppc.ir.dag`, a node for every (chunk, stage). ``instruction``: a
node for every instruction, and edges for what it waits for; programs are free of deadlock, also where a transfer
starts only when both ends are posted, exactly when this graph has no cycle.

=============  ========================================================================================
edge           the second cannot happen before the first
=============  ========================================================================================
activation     a stage reads the output of the stage before; ``transfer`` where that is on another rank
prefix         a chunk reads the KV cache that the request's chunk before it wrote
token          a chunk decodes from the token that was sampled before
rank           a rank runs one operation after another
program        a rank runs one instruction after another
data           a RECV is complete, and its WAIT over, only after the SEND is posted
rendezvous     a SEND is complete, and its WAIT over, only after the RECV is posted
=============  ========================================================================================

Graphs are streams of nodes and edges, so that dot and JSON take no memory to speak of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vppc.ir.dag import Dag
from vppc.ir.instruction import FORWARD, OPS, RECV, SEND, WAIT, Row
from vppc.ir.schedule import Order, Schedule


class Node(NamedTuple):
    """``kind`` is an instruction's op, or of an operation the direction of its sweep, ``out`` or ``back``."""

    id: str
    rank: int
    kind: str
    label: str
    attributes: Mapping[str, int]


class Edge(NamedTuple):
    """From one node to another, by id."""

    source: str
    target: str
    kind: str
    transfer: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """``nodes`` and ``edges`` start a new pass over them at each call; nodes come rank by rank."""

    name: str
    nodes: Callable[[], Iterable[Node]]
    edges: Callable[[], Iterable[Edge]]


def op_graph(schedule: Schedule) -> Graph:
    """The dependency DAG, with rank edges; of a lowered schedule in the order of its FORWARDs."""
    ordered = schedule if schedule.order is not None else replace(schedule, order=_forwards(schedule))
    dag = Dag.of(ordered)

    def name(op: int) -> str:
        chunk, stage = dag.op(op)
        return f"c{chunk}.s{stage}"

    held: dict[int, list[int]] = {}  # rank -> its stages
    for stage, rank in enumerate(dag.ranks):
        held.setdefault(rank, []).append(stage)

    def nodes() -> Iterator[Node]:
        for rank, stages in sorted(held.items()):
            for chunk in range(len(schedule.chunks)):
                for stage in stages:
                    kind = "back" if stage // schedule.pp % 2 else "out"
                    op = chunk * dag.stages + stage
                    yield Node(name(op), rank, kind, f"c{chunk} s{stage}", {"chunk": chunk, "stage": stage})

    def edges() -> Iterator[Edge]:
        for before, after, kind in dag.edges():
            transfer = kind == "activation" and dag.ranks[before % dag.stages] != dag.ranks[after % dag.stages]
            yield Edge(name(before), name(after), kind, transfer)

    return Graph("operations", nodes, edges)


def _forwards(schedule: Schedule) -> Order:
    """The operations that each program runs, those left out that do not exist."""
    chunks, stages = len(schedule.chunks), len(schedule.stages)
    return Order(
        tuple(
            tuple(
                chunk * stages + stage
                for op, chunk, stage, *_ in program.rows()
                if op == FORWARD and chunk < chunks and stage < stages
            )
            for program in schedule.programs
        )
    )


def instruction_graph(schedule: Schedule) -> Graph:
    """The instructions of all ranks, in program order, with the edges between the ends of each transfer."""

    def nodes() -> Iterator[Node]:
        for program in schedule.programs:
            for index, row in enumerate(program.rows()):
                yield Node(
                    _name(program.rank, index), program.rank, OPS[row[0]], _label(index, row), _attributes(index, row)
                )

    def edges() -> Iterator[Edge]:
        for program in schedule.programs:
            for index in range(1, len(program)):
                yield Edge(_name(program.rank, index - 1), _name(program.rank, index), "program", False)
        yield from _transfer_edges(schedule)

    return Graph("instructions", nodes, edges)


def _name(rank: int, index: int) -> str:
    return f"r{rank}.{index}"


def _label(index: int, row: Row) -> str:
    op, chunk, stage, x, _, _ = row
    if op == WAIT:
        return f"{index} WAIT {x}"
    return f"{index} {OPS[op]} c{chunk}" + (f" s{stage}" if stage >= 0 else "")


def _attributes(index: int, row: Row) -> dict[str, int]:
    op, chunk, stage, x, y, z = row
    if op == WAIT:
        return {"index": index, "of": x}
    attributes = {"index": index, "chunk": chunk}
    if stage >= 0:
        attributes["stage"] = stage
    if op in (SEND, RECV):
        attributes.update(peer=y, channel=z)
    return attributes


def _transfer_edges(schedule: Schedule) -> Iterator[Edge]:
    """Between the ends of transfers: from each post to the WAIT at the other end. Open ends have no edge."""
    sends: dict[int, list[str]] = {channel.id: [] for channel in schedule.channels}
    recvs: dict[int, list[str]] = {channel.id: [] for channel in schedule.channels}
    waits: dict[str, str] = {}
    for program in schedule.programs:
        for index, row in enumerate(program.rows()):
            name = _name(program.rank, index)
            if row[0] == WAIT:
                waits.setdefault(_name(program.rank, row[3]), name)
            elif row[0] in (SEND, RECV):
                (sends if row[0] == SEND else recvs).setdefault(row[5], []).append(name)
    for channel, posted in sends.items():
        for send, recv in zip(posted, recvs.get(channel, ()), strict=False):
            if recv in waits:
                yield Edge(send, waits[recv], "data", True)
            if send in waits:
                yield Edge(recv, waits[send], "rendezvous", True)


_FILLS = {
    "out": "#bfdbfe",
    "back": "#fde68a",
    "FORWARD": "#bfdbfe",
    "SEND": "#bbf7d0",
    "RECV": "#d9f99d",
    "WAIT": "#e5e7eb",
    "SAMPLE": "#fbcfe8",
}
_STROKES = {
    "activation": "color=black",
    "prefix": 'color="#9ca3af", style=dashed, constraint=false',
    "token": 'color="#db2777", style=bold',
    "rank": 'color="#93c5fd", arrowhead=vee',
    "program": 'color="#9ca3af"',
    "data": 'color="#1d4ed8", constraint=false',
    "rendezvous": 'color="#ea580c", style=dotted, constraint=false',
}


def to_dot(graph: Graph) -> Iterator[str]:
    """Graphviz: a cluster a rank, nodes coloured by kind, edges by reason and bold where they are transfers."""
    yield f"digraph {graph.name} {{\n"
    yield "  rankdir=LR; nodesep=0.15; ranksep=0.35; compound=true; fontname=Helvetica;\n"
    yield "  node [shape=box, style=filled, fontname=Helvetica, fontsize=10, height=0.3, margin=0.08];\n"
    yield "  edge [fontname=Helvetica, fontsize=8, arrowsize=0.6];\n"
    cluster = -1
    for node in graph.nodes():
        if node.rank != cluster:
            yield "" if cluster < 0 else "  }\n"
            cluster = node.rank
            yield f'  subgraph cluster_{cluster} {{\n    label="rank {cluster}"; style=rounded; color="#9ca3af";\n'
        yield f'    "{node.id}" [label="{node.label}", fillcolor="{_FILLS[node.kind]}"];\n'
    yield "" if cluster < 0 else "  }\n"
    for edge in graph.edges():
        bold = ", penwidth=2" if edge.transfer else ""
        yield f'  "{edge.source}" -> "{edge.target}" [{_STROKES[edge.kind]}{bold}];\n'
    yield "}\n"


def to_json(graph: Graph) -> Iterator[str]:
    """The node-link JSON that ``networkx.node_link_graph`` reads; an edge's key is its kind."""
    yield f'{{"directed": true, "multigraph": true, "graph": {{"name": "{graph.name}"}},\n"nodes": ['
    nodes = ({"id": n.id, "rank": n.rank, "kind": n.kind, "label": n.label, **n.attributes} for n in graph.nodes())
    yield from _items(nodes)
    yield '],\n"edges": ['
    edges = (
        {"source": e.source, "target": e.target, "key": e.kind, "kind": e.kind, "transfer": e.transfer}
        for e in graph.edges()
    )
    yield from _items(edges)
    yield "]}\n"


def _items(items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for number, item in enumerate(items):
        yield f"{',' if number else ''}\n{json.dumps(item)}"


def to_graphml(graph: Graph) -> Iterator[str]:
    """GraphML, through networkx and so in memory."""
    import networkx as nx

    built = nx.MultiDiGraph(name=graph.name)
    for node in graph.nodes():
        built.add_node(node.id, rank=node.rank, kind=node.kind, label=node.label, **node.attributes)
    for edge in graph.edges():
        built.add_edge(edge.source, edge.target, key=edge.kind, kind=edge.kind, transfer=edge.transfer)
    for line in nx.generate_graphml(built):
        yield f"{line}\n"
