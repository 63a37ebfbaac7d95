"""Exported graphs: dot through pydot, GraphML and JSON through networkx, against the DAG and the verifier's words."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pydot
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import with_program
from vppc.cli import vppc
from vppc.ir.dag import Dag
from vppc.ir.document import schedule_text
from vppc.ir.instruction import Forward, Program, Wait
from vppc.ir.placement import stage_ranks
from vppc.ir.rules import check
from vppc.ir.schedule import Chunk, Order, Part, Schedule
from vppc.ir.torch_csv import parse_torch_csv
from vppc.render.graph import Graph, instruction_graph, op_graph, to_dot, to_graphml, to_json

V = "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1\n"
CROSSING = (
    "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n"
)


def from_json(pieces: Any) -> nx.MultiDiGraph:
    return nx.node_link_graph(json.loads("".join(pieces)), edges="edges")


def from_graphml(pieces: Any) -> nx.MultiDiGraph:
    return nx.read_graphml(io.BytesIO("".join(pieces).encode()), force_multigraph=True)


def edges_of(graph: nx.MultiDiGraph) -> set[tuple[str, str, str, bool]]:
    return {(before, after, data["kind"], data["transfer"]) for before, after, data in graph.edges(data=True)}


def test_operations_of_a_lowered_schedule() -> None:
    graph = from_json(to_json(op_graph(parse_torch_csv(V))))
    assert graph.graph == {"name": "operations"}
    assert graph.nodes["c1.s3"] == {"rank": 0, "kind": "back", "label": "c1 s3", "chunk": 1, "stage": 3}
    assert list(graph.nodes) == ["c0.s0", "c0.s3", "c1.s0", "c1.s3", "c0.s1", "c0.s2", "c1.s1", "c1.s2"]
    assert edges_of(graph) == {
        ("c0.s0", "c0.s1", "activation", True),
        ("c0.s1", "c0.s2", "activation", False),
        ("c0.s2", "c0.s3", "activation", True),
        ("c1.s0", "c1.s1", "activation", True),
        ("c1.s1", "c1.s2", "activation", False),
        ("c1.s2", "c1.s3", "activation", True),
        ("c0.s0", "c1.s0", "prefix", False),
        ("c0.s1", "c1.s1", "prefix", False),
        ("c0.s2", "c1.s2", "prefix", False),
        ("c0.s3", "c1.s3", "prefix", False),
        ("c0.s0", "c1.s0", "rank", False),
        ("c1.s0", "c0.s3", "rank", False),
        ("c0.s3", "c1.s3", "rank", False),
        ("c0.s1", "c0.s2", "rank", False),
        ("c0.s2", "c1.s1", "rank", False),
        ("c1.s1", "c1.s2", "rank", False),
    }


def test_instructions_and_the_ends_of_transfers() -> None:
    graph = from_json(to_json(instruction_graph(parse_torch_csv("0F0,0SEND_F0\n1RECV_F0,1F0\n"))))
    assert [(name, data["label"]) for name, data in graph.nodes(data=True)] == [
        ("r0.0", "0 FORWARD c0 s0"),
        ("r0.1", "1 SEND c0 s0"),
        ("r0.2", "2 WAIT 1"),
        ("r1.0", "0 RECV c0 s1"),
        ("r1.1", "1 WAIT 0"),
        ("r1.2", "2 FORWARD c0 s1"),
        ("r1.3", "3 SAMPLE c0"),
    ]
    assert {edge for edge in edges_of(graph) if edge[2] != "program"} == {
        ("r0.1", "r1.1", "data", True),
        ("r1.0", "r0.2", "rendezvous", True),
    }
    assert sum(edge[2] == "program" for edge in edges_of(graph)) == 5


@pytest.mark.parametrize(
    ("rank", "left"),
    [(0, ("r0.1", "r1.1", "data", True)), (1, ("r1.0", "r0.2", "rendezvous", True))],
    ids=["of a SEND", "of a RECV"],
)
def test_a_wait_that_is_missing_ends_no_transfer(rank: int, left: tuple[str, str, str, bool]) -> None:
    """A schedule need not be right to be drawn."""
    schedule = parse_torch_csv("0F0,0SEND_F0\n1RECV_F0,1F0\n")
    without = [each for each in schedule.programs[rank] if not isinstance(each, Wait)]
    cut = with_program(schedule, Program.of(rank, schedule.programs[rank].buffers, without))
    graph = from_json(to_json(instruction_graph(cut)))
    assert [edge for edge in edges_of(graph) if edge[2] != "program"] == [left]


def test_tokens_of_a_decode() -> None:
    schedule = parse_torch_csv("0F0,0F1\n")
    decode = Chunk((Part(0, 1, 1, decode=True),))
    schedule = replace(schedule, chunks=(Chunk((Part(0, 0, 1),)), decode))
    assert ("c0.s0", "c1.s0", "token", False) in edges_of(from_json(to_json(op_graph(schedule))))


def test_a_cycle_is_a_deadlock() -> None:
    """SENDs that cross hang where they are waited for at once, and not where they are posted ahead."""
    hangs = from_json(to_json(instruction_graph(parse_torch_csv(CROSSING, transfers="blocking"))))
    assert {kind for _, _, kind in nx.find_cycle(hangs)} == {"program", "rendezvous"}
    runs = from_json(to_json(instruction_graph(parse_torch_csv(CROSSING, transfers="posted"))))
    assert nx.is_directed_acyclic_graph(runs)


@st.composite
def naive_programs(draw: st.DrawFn) -> Schedule:
    """A runnable order of a few chunks, every RECV right before its FORWARD, every SEND right behind."""
    placement, pp, chunks = draw(st.sampled_from(["v", "loop"])), draw(st.integers(2, 3)), draw(st.integers(1, 4))
    ranks = stage_ranks(placement, pp, 2)
    done = [0] * chunks
    rows: list[list[str]] = [[] for _ in range(pp)]
    while ready := [c for c in range(chunks) if done[c] < len(ranks) and (c == 0 or done[c - 1] > done[c])]:
        chunk = draw(st.sampled_from(ready))
        stage = done[chunk]
        row = rows[ranks[stage]]
        if stage and ranks[stage - 1] != ranks[stage]:
            row.append(f"{stage}RECV_F{chunk}")
        row.append(f"{stage}F{chunk}")
        if stage + 1 < len(ranks) and ranks[stage + 1] != ranks[stage]:
            row.append(f"{stage}SEND_F{chunk}")
        done[chunk] += 1
    transfers: Any = draw(st.sampled_from(["posted", "blocking"]))
    return parse_torch_csv("\n".join(map(",".join, rows)), transfers=transfers)


@settings(max_examples=60)
@given(naive_programs())
def test_the_verifier_finds_a_deadlock_where_networkx_finds_a_cycle(schedule: Schedule) -> None:
    codes = {finding.code for finding in check(schedule)}
    if codes <= {"D1", "D2"}:
        graph = from_json(to_json(instruction_graph(schedule)))
        assert nx.is_directed_acyclic_graph(graph) == (not codes)


@settings(max_examples=20)
@given(naive_programs())
def test_formats_and_the_dag_agree(schedule: Schedule) -> None:
    graph = op_graph(schedule)
    listed = from_json(to_json(graph))
    dag = Dag.of(replace(schedule, order=forwards(schedule))).to_networkx()
    names = {op: f"c{data['chunk']}.s{data['stage']}" for op, data in dag.nodes(data=True)}
    assert edges_of(listed) == edges_of(nx.relabel_nodes(dag, names))
    assert {n: (d["chunk"], d["stage"], d["rank"]) for n, d in listed.nodes(data=True)} == {
        names[op]: (d["chunk"], d["stage"], d["rank"]) for op, d in dag.nodes(data=True)
    }
    for each in (graph, instruction_graph(schedule)):
        reference = from_json(to_json(each))
        assert edges_of(from_graphml(to_graphml(each))) == edges_of(reference)
        assert dict(from_graphml(to_graphml(each)).nodes(data=True)) == dict(reference.nodes(data=True))


@pytest.mark.parametrize("level", [op_graph, instruction_graph])
def test_dot_has_the_nodes_by_rank_and_all_edges(level: Callable[[Schedule], Graph]) -> None:
    graph = level(parse_torch_csv(CROSSING))
    reference = from_json(to_json(graph))
    dot = parsed_dot("".join(to_dot(graph)))
    drawn = [(edge.get_source().strip('"'), edge.get_destination().strip('"')) for edge in dot.get_edges()]
    assert sorted(drawn) == sorted((before, after) for before, after, _ in reference.edges)
    ranks = {
        (node.get_name().strip('"'), int(cluster.get_name().removeprefix("cluster_")))
        for cluster in dot.get_subgraphs()
        for node in cluster.get_nodes()
    }
    assert ranks == {(name, data["rank"]) for name, data in reference.nodes(data=True)}


def forwards(schedule: Schedule) -> Order:
    stages = len(schedule.stages)
    return Order(
        tuple(tuple(i.chunk * stages + i.stage for i in p if isinstance(i, Forward)) for p in schedule.programs)
    )


def parsed_dot(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pydot's own, of its parser
        graphs = pydot.graph_from_dot_data(text)
    assert graphs is not None
    assert len(graphs) == 1
    return graphs[0]


def test_an_ordered_schedule_keeps_its_order() -> None:
    ordered = parse_torch_csv("0F0,0F1,3F0,3F1\n1F0,2F0,1F1,2F1\n")
    assert edges_of(from_json(to_json(op_graph(ordered)))) == edges_of(from_json(to_json(op_graph(parse_torch_csv(V)))))


def test_empty_programs_draw_an_empty_graph() -> None:
    graph = instruction_graph(replace(parse_torch_csv(V), programs=()))
    assert "".join(to_dot(graph)).count("{") == "".join(to_dot(graph)).count("}") == 1
    assert len(from_json(to_json(graph))) == 0


def run(tmp_path: Path, *arguments: str) -> str:
    path = tmp_path / "plan.json"
    path.write_text("".join(schedule_text(parse_torch_csv(V))))
    result = CliRunner().invoke(vppc, ["graph", str(path), *arguments])
    assert result.exception is None, result.output
    return result.output


def test_the_command_takes_its_format_from_the_output_file(tmp_path: Path) -> None:
    output = tmp_path / "plan.graphml"
    assert run(tmp_path, "-o", str(output)) == ""
    assert len(from_graphml(output.read_text())) == 8
    assert run(tmp_path).startswith("digraph operations {")
    assert run(tmp_path, "--format", "json", "--level", "instruction").startswith('{"directed": true')
    run(tmp_path, "--format", "dot", "-o", str(tmp_path / "plan.json2"))
    assert (tmp_path / "plan.json2").read_text().startswith("digraph operations {")


def test_dot_is_golden() -> None:
    text = "".join(to_dot(op_graph(parse_torch_csv("0F0,3F0\n1F0,2F0\n"))))
    assert text == (Path(__file__).parent / "golden" / "operations.dot").read_text()


def test_a_picture_is_refused_and_says_who_draws_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("".join(schedule_text(parse_torch_csv("0F0\n"))))
    target = str(tmp_path / "x.svg")
    refused = CliRunner().invoke(vppc, ["graph", str(path), "-o", target])
    assert str(refused.exception).startswith(f"{target}: -o: .svg is no format of a graph here ")
    assert "dot -Tsvg" in str(refused.exception)
    assert not Path(target).exists()
    unknown = CliRunner().invoke(vppc, ["graph", str(path), "-o", str(tmp_path / "x.y")])
    assert ".y is no format of a graph here" in str(unknown.exception)
