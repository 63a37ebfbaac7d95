"""The dependency DAG of (chunk, stage) operations, which the passes order and the analyses judge against.

Three kinds of edges say what must come before what:

* **activation**: stage s of a chunk needs stage s - 1 of the same chunk;
* **prefix**: a chunk reads the KV cache that the request's chunk before it wrote, stage by stage;
* **token**: a chunk that decodes needs the token that the request's last sample made.

They are regular: prefix edges are the same at every stage. So the DAG keeps them once a chunk, not once an
operation, and is as large as the prompts' chunks, whatever the number of stages. An ordered schedule adds

* **rank** edges: a rank runs one operation after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from vppc.ir.schedule import Chunk, Op, Order, Schedule

if TYPE_CHECKING:
    import networkx as nx


class Edge(NamedTuple):
    """A dependency between two operations (by number), and why it exists."""

    before: int
    after: int
    kind: str


@dataclass(frozen=True, slots=True)
class Dag:
    """The dependencies of ``len(prefix) * stages`` operations; operation = chunk * stages + stage.

    ``prefix[c]`` are the chunks whose KV chunk c reads directly: for each of its parts, the chunk with the
    part before. ``token[c]`` are the chunks whose sampled token c decodes from. ``ranks[s]`` holds stage s.
    """

    stages: int
    ranks: tuple[int, ...]
    prefix: tuple[tuple[int, ...], ...]
    token: tuple[tuple[int, ...], ...]
    order: Order | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Dag:
        """The DAG of a schedule that has chunks and stages; with rank edges when it is ordered."""
        prefix, token = _chunk_edges(schedule.chunks)
        return cls(len(schedule.stages), schedule.stage_ranks, prefix, token, schedule.order)

    def __len__(self) -> int:
        return len(self.prefix) * self.stages

    def op(self, op: int) -> Op:
        """The (chunk, stage) of an operation's number."""
        return Op(*divmod(op, self.stages))

    def predecessors(self, op: int) -> list[int]:
        """What must end before ``op`` starts (rank edges aside)."""
        chunk, stage = divmod(op, self.stages)
        before = [earlier * self.stages + stage for earlier in self.prefix[chunk]]
        if stage:
            before.append(op - 1)
        else:
            before.extend(earlier * self.stages + self.stages - 1 for earlier in self.token[chunk])
        return before

    def edges(self) -> Iterator[Edge]:
        """All dependencies, an operation's incoming edges together, operations in chunk order."""
        stages = self.stages
        for chunk, (prefix, token) in enumerate(zip(self.prefix, self.token, strict=True)):
            for stage in range(stages):
                op = chunk * stages + stage
                if stage:
                    yield Edge(op - 1, op, "activation")
                else:
                    for earlier in token:
                        yield Edge(earlier * stages + stages - 1, op, "token")
                for earlier in prefix:
                    yield Edge(earlier * stages + stage, op, "prefix")
        if self.order is not None:
            for ops in self.order.ranks:
                for before, after in pairwise(ops):
                    yield Edge(before, after, "rank")

    def to_networkx(self) -> nx.MultiDiGraph:
        """A networkx view: nodes are operation numbers with chunk, stage and rank, edges carry their kind.

        The edge key is the kind, since two operations can depend on each other for several reasons.
        """
        import networkx as nx

        graph = nx.MultiDiGraph()
        for op in range(len(self)):
            chunk, stage = divmod(op, self.stages)
            graph.add_node(op, chunk=chunk, stage=stage, rank=self.ranks[stage])
        for before, after, kind in self.edges():
            transfer = kind == "activation" and self.ranks[before % self.stages] != self.ranks[after % self.stages]
            graph.add_edge(before, after, key=kind, kind=kind, transfer=transfer)
        return graph


def _chunk_edges(chunks: tuple[Chunk, ...]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    last: dict[int, int] = {}
    prefix: list[tuple[int, ...]] = []
    token: list[tuple[int, ...]] = []
    for index, chunk in enumerate(chunks):
        parts = chunk.parts
        if len(parts) == 1 and not parts[0].decode:  # nearly every chunk of a long prompt
            before = last.get(parts[0].request)
            prefix.append(() if before is None else (before,))
            token.append(())
            last[parts[0].request] = index
            continue
        reads = dict.fromkeys(last[p.request] for p in parts if p.request in last)
        decodes = dict.fromkeys(last[p.request] for p in parts if p.decode and p.request in last)
        prefix.append(tuple(reads))
        token.append(tuple(decodes))
        for part in parts:
            last[part.request] = index
    return tuple(prefix), tuple(token)
