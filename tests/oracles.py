"""Slow and simple ways to know what the fast analyses should say, and random valid programs to ask about.

Nothing here shares code with what it judges: event graphs in networkx, enumeration, and walking a clock tick
by tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise
from random import Random

import networkx as nx

from vppc.analysis.timing import Timing
from vppc.costs.model import OpCosts
from vppc.ir.dag import Dag
from vppc.ir.instruction import Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage


def shape(
    ranks: Sequence[int], chunks: Sequence[Sequence[Part]], arrivals: Sequence[float] = (0.0,), pp: int | None = None
) -> Schedule:
    """A schedule without programs: a layer a stage, the prompts as long as their parts say, a channel a direction."""
    lengths = [0 for _ in arrivals]
    for part in chain.from_iterable(chunks):
        lengths[part.request] = max(lengths[part.request], part.end)
    crossings = dict.fromkeys((a, b) for a, b in pairwise(ranks) if a != b)
    pp = pp or max(ranks) + 1
    return Schedule(
        strategy="test",
        model=Model("test", len(ranks)),
        pp=pp,
        vp=len(ranks) // pp,
        stages=tuple(Stage(s, rank, (s, s + 1)) for s, rank in enumerate(ranks)),
        channels=tuple(Channel(i, src, dst) for i, (src, dst) in enumerate(crossings)),
        requests=tuple(Request(f"r{i}", lengths[i], arrival=arrival) for i, arrival in enumerate(arrivals)),
        chunks=tuple(Chunk(tuple(parts)) for parts in chunks),
    )


def one_prompt(ranks: Sequence[int], count: int) -> Schedule:
    """One request in ``count`` chunks of one token."""
    return shape(ranks, [[Part(0, k, 1)] for k in range(count)])


def with_programs(schedule: Schedule, *programs: Sequence[Instruction]) -> Schedule:
    made = tuple(Program.of(rank, 99, program) for rank, program in enumerate(programs))
    return replace(schedule, programs=made)


def straight_pair(receive_late: bool = False) -> Schedule:
    """Two chunks over two ranks; rank 1 posts its receives ahead, or only when it needs them."""
    first, second = Recv(0, 1, 0, 0, 0), Recv(1, 1, 0, 0, 1)
    ahead: list[Instruction] = [first, second, Wait(0), Forward(0, 1, 0, None), Wait(1)]
    late: list[Instruction] = [first, Wait(0), Forward(0, 1, 0, None), second, Wait(3)]
    sends: list[Instruction] = [
        Forward(0, 0, None, 0),
        Send(0, 0, 1, 0, 0),
        Forward(1, 0, None, 1),
        Send(1, 0, 1, 0, 1),
    ]
    last: list[Instruction] = [Forward(1, 1, 1, 2), Sample(1, 2)]
    return with_programs(one_prompt([0, 1], 2), [*sends, Wait(1), Wait(3)], [*(late if receive_late else ahead), *last])


def costs(seconds: Sequence[float], transfer: Sequence[float], collective: Sequence[float] = ()) -> OpCosts:
    """Costs of every operation (chunk by chunk), of each chunk's transfers, and the collective part of operations."""
    talk = [float(s) for s in collective] or [0.0] * len(seconds)
    return OpCosts([float(s) for s in seconds], talk, [float(t) for t in transfer])


def eighths(rng: Random, limit: int) -> float:
    """A random time that floats add exactly."""
    return rng.randrange(limit) / 8


def random_shape(rng: Random, max_ranks: int = 4, max_stages: int = 8, max_chunks: int = 6) -> Schedule:
    """Random placement (folds, any path), random chunks of one to three requests, some packed, some late."""
    pp = rng.randint(1, max_ranks)
    ranks = list(range(pp)) * rng.randint(1, max_stages // pp)
    rng.shuffle(ranks)
    requests = rng.randint(1, min(3, max_chunks))
    lengths = [0] * requests
    chunks: list[list[Part]] = []
    for index in range(rng.randint(requests, max_chunks)):
        chosen = rng.sample(range(requests), 1 if rng.random() < 0.7 else rng.randint(1, requests))
        if index < requests and index not in chosen:
            chosen.append(index)  # every request has a chunk
        parts = []
        for request in chosen:
            tokens = rng.randint(1, 3)
            parts.append(Part(request, lengths[request], tokens))
            lengths[request] += tokens
        chunks.append(parts)
    late = rng.random() < 0.5
    return shape(ranks, chunks, [eighths(rng, 100) if late else 0.0 for _ in lengths], pp)


def random_costs(rng: Random, schedule: Schedule) -> OpCosts:
    """Costs that floats add exactly, some of them zero; they need not follow any model."""
    ops = len(schedule.chunks) * len(schedule.stages)
    collective = [eighths(rng, 12) for _ in range(ops)]
    slow = rng.choice([1, 8, 60])
    return OpCosts(
        [eighths(rng, 80) + talk for talk in collective], collective, [eighths(rng, slow) for _ in schedule.chunks]
    )


def random_programs(rng: Random, schedule: Schedule) -> Schedule:
    """Random programs for a shape that one execution shows to be free of deadlock under rendezvous.

    Everything happens in a random global order in which it can: FORWARDs, posts as early or late as they come, WAITs
    once both ends are posted. A buffer a value.
    """
    stages, ranks = len(schedule.stages), schedule.stage_ranks
    dag = Dag.of(schedule)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(dag)))
    graph.add_edges_from((edge.before, edge.after) for edge in dag.edges())
    order = random_topological_order(rng, graph)
    forwards = {rank: [op for op in order if ranks[op % stages] == rank] for rank in range(schedule.pp)}
    ids = {(c.src, c.dst): c.id for c in schedule.channels}
    crossing = {op: ids[pair] for op in order if (pair := hop(ranks, op % stages)) in ids}
    sends = {c.id: [op for op in order if crossing.get(op) == c.id] for c in schedule.channels}
    recvs = {c: list(ops) for c, ops in sends.items()}
    programs: list[list[Instruction]] = [[] for _ in range(schedule.pp)]
    done: set[int] = set()
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    arrived: set[int] = set()
    waits: set[tuple[str, int]] = set()

    def ready(op: int) -> bool:
        if op % stages and (op - 1 not in arrived if op - 1 in crossing else op - 1 not in done):
            return False
        return all(before in done for before in graph.predecessors(op))

    while True:
        actions: list[tuple[str, int]] = sorted(waits)
        actions += [("forward", rank) for rank, ops in forwards.items() if ops and ready(ops[0])]
        actions += [("send", channel) for channel, ops in sends.items() if ops and ops[0] in done]
        actions += [("recv", channel) for channel, ops in recvs.items() if ops]
        if not actions:
            break
        kind, which = rng.choice(actions)
        if kind == "forward":
            op = forwards[which].pop(0)
            chunk, stage = divmod(op, stages)
            sampled = stage + 1 == stages and schedule.samples[chunk]
            writes = stage + 1 < stages or sampled
            programs[which].append(Forward(chunk, stage, op - 1 if stage else None, op if writes else None))
            if sampled:
                programs[which].append(Sample(chunk, op))
            done.add(op)
        elif kind == "send":
            op, channel = sends[which].pop(0), schedule.channels[which]
            sent[op] = len(programs[channel.src])
            programs[channel.src].append(Send(*divmod(op, stages), channel.dst, which, op))
        elif kind == "recv":
            op, channel = recvs[which].pop(0), schedule.channels[which]
            received[op] = len(programs[channel.dst])
            programs[channel.dst].append(Recv(*divmod(op + 1, stages), channel.src, which, op))
        else:
            waits.remove((kind, which))
            channel = schedule.channels[crossing[which]]
            if kind == "wait recv":
                programs[channel.dst].append(Wait(received[which]))
                arrived.add(which)
            else:
                programs[channel.src].append(Wait(sent[which]))
        if kind in ("send", "recv") and op in sent and op in received:
            waits |= {("wait send", op), ("wait recv", op)}
    buffers = len(dag)
    made = tuple(Program.of(rank, buffers, program) for rank, program in enumerate(programs))
    return replace(schedule, programs=made)


def random_topological_order(rng: Random, graph: nx.DiGraph) -> list[int]:
    left = {node: graph.in_degree(node) for node in graph}
    order = []
    while left:
        node = rng.choice([node for node, degree in left.items() if degree == 0])
        del left[node]
        order.append(node)
        for after in graph.successors(node):
            left[after] -= 1
    return order


def hop(ranks: Sequence[int], stage: int) -> tuple[int, int] | None:
    return (ranks[stage], ranks[stage + 1]) if stage + 1 < len(ranks) else None


def timing_by_longest_paths(schedule: Schedule, costs: OpCosts, durations: Timing | None = None) -> dict[object, float]:
    """Every time of a run as a longest path in the graph of its events.

    Keys are ("start" or "end", rank, index) and ("transfer start" or "transfer end", channel, number).
    FORWARDs take as long as in ``durations`` if given, else their cost.
    """
    graph = nx.DiGraph()
    stages = len(schedule.stages)
    posts: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for rank, program in enumerate(schedule.programs):
        for index, instruction in enumerate(program):
            if isinstance(instruction, Send | Recv):
                posts.setdefault((type(instruction).__name__, instruction.channel), []).append((rank, index))
    transfer_of: dict[tuple[int, int], tuple[int, int]] = {}
    for channel in schedule.channels:
        both = zip(posts.get(("Send", channel.id), []), posts.get(("Recv", channel.id), []), strict=True)
        for number, (send, recv) in enumerate(both):
            begin, end = ("transfer start", channel.id, number), ("transfer end", channel.id, number)
            graph.add_edge(("end", *send), begin, seconds=0.0)
            graph.add_edge(("end", *recv), begin, seconds=0.0)
            if number:
                graph.add_edge(("transfer end", channel.id, number - 1), begin, seconds=0.0)
            sender = schedule.programs[send[0]][send[1]]
            assert isinstance(sender, Send)
            graph.add_edge(begin, end, seconds=costs.transfer[sender.chunk])
            transfer_of[send] = transfer_of[recv] = (channel.id, number)
    for rank, program in enumerate(schedule.programs):
        for index, instruction in enumerate(program):
            start, end = ("start", rank, index), ("end", rank, index)
            seconds = 0.0
            if isinstance(instruction, Forward):
                seconds = costs.seconds[instruction.chunk * stages + instruction.stage]
                if durations is not None:
                    seconds = durations.ends[rank][index] - durations.starts[rank][index]
                if instruction.stage == 0:
                    graph.add_edge("clock", start, seconds=schedule.chunk_arrivals[instruction.chunk])
            if isinstance(instruction, Wait):
                graph.add_edge(("transfer end", *transfer_of[rank, instruction.of]), end, seconds=0.0)
            graph.add_edge(start, end, seconds=seconds)
            if index:
                graph.add_edge(("end", rank, index - 1), start, seconds=0.0)
    times: dict[object, float] = {}
    for node in nx.topological_sort(graph):
        times[node] = max((times[p] + graph.edges[p, node]["seconds"] for p in graph.predecessors(node)), default=0.0)
    return times


def times_of(timing: Timing) -> dict[object, float]:
    """A timing with the keys of :func:`timing_by_longest_paths`."""
    times: dict[object, float] = {}
    for kind, lists in (("start", timing.starts), ("end", timing.ends)):
        times |= {(kind, rank, index): t for rank, ts in enumerate(lists) for index, t in enumerate(ts)}
    for channel, transfers in enumerate(timing.transfers):
        times |= {("transfer start", channel, i): t for i, t in enumerate(transfers.starts)}
        times |= {("transfer end", channel, i): t for i, t in enumerate(transfers.ends)}
    return times


def breakdown_by_ticks(schedule: Schedule, timing: Timing, tick: float) -> list[dict[str, float]]:
    """Each rank's seconds by what it does in every tick of the clock, which all times are multiples of."""
    origin = min(schedule.chunk_arrivals)
    ticks = round((max(max(ends, default=origin) for ends in timing.ends) - origin) / tick)
    both_posted: dict[tuple[int, int], float] = {}
    for channel, t in zip(schedule.channels, timing.transfers, strict=True):
        for send, recv, sent, received in zip(t.sends, t.recvs, t.send_posted, t.recv_posted, strict=True):
            both_posted[channel.src, send] = both_posted[channel.dst, recv] = max(sent, received)
    found = []
    for rank, program in enumerate(schedule.programs):
        spent = dict.fromkeys(("busy", "exposed", "hidden", "launch", "free"), 0.0)
        mine = [
            t
            for c, transfers in zip(schedule.channels, timing.transfers, strict=True)
            if rank in (c.src, c.dst)
            for t in zip(transfers.starts, transfers.ends, strict=True)
        ]
        timed = list(zip(program, timing.starts[rank], timing.ends[rank], strict=True))
        forwards = [start for instruction, start, _ in timed if isinstance(instruction, Forward)]
        first = min(forwards, default=float("inf"))
        for number in range(ticks):
            now = origin + (number + 0.5) * tick
            doing = next((instruction for instruction, start, end in timed if start < now < end), None)
            if isinstance(doing, Forward):
                what = "busy"
            elif isinstance(doing, Wait) and both_posted[rank, doing.of] < now:
                what = "exposed"
            else:
                what = "launch" if now < first else "free"
            spent[what] += tick
            if what != "exposed" and any(start < now < end for start, end in mine):
                spent["hidden"] += tick
        found.append(spent)
    return found


def linear_extensions(graph: nx.DiGraph) -> Iterator[list[int]]:
    """All orders of the operations that keep every dependency."""
    if not graph:
        yield []
    else:
        yield from nx.all_topological_sorts(graph)


def best_makespan(schedule: Schedule, costs: OpCosts) -> float:
    """The least makespan over all orders of a tiny schedule's operations, everything sent and received at once."""
    dag = Dag.of(schedule)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(dag)))
    graph.add_edges_from((edge.before, edge.after) for edge in dag.edges())
    return min(_finish(schedule, costs, dag, order) for order in linear_extensions(graph))


def _finish(schedule: Schedule, costs: OpCosts, dag: Dag, order: list[int]) -> float:
    ranks = schedule.stage_ranks
    rank_free = dict.fromkeys(ranks, 0.0)
    channel_free: dict[tuple[int, int], float] = {}
    end: dict[int, float] = {}
    there: dict[int, float] = {}  # when an operation's output is where the next stage runs
    for op in order:
        chunk, stage = divmod(op, dag.stages)
        start = max([rank_free[ranks[stage]], *(end[before] for before in dag.predecessors(op))])
        start = max(start, there[op - 1] if stage else schedule.chunk_arrivals[chunk])
        end[op] = there[op] = rank_free[ranks[stage]] = start + costs.seconds[op]
        pair = hop(ranks, stage)
        if pair is not None and pair[0] != pair[1]:
            there[op] = channel_free[pair] = max(end[op], channel_free.get(pair, 0.0)) + costs.transfer[chunk]
    return max(end.values()) - min(schedule.chunk_arrivals)


def best_set_bound(jobs: Sequence[tuple[float, float, float]]) -> float:
    """The largest head + seconds + tail over all sets of (head, seconds, tail) jobs of one machine."""
    sets = (chosen for size in range(1, len(jobs) + 1) for chosen in combinations(jobs, size))
    return max(
        min(head for head, _, _ in chosen) + sum(s for _, s, _ in chosen) + min(tail for _, _, tail in chosen)
        for chosen in sets
    )
