"""Deadlock: the search for who waits for whom against cycles in the graph of all events, and what is said of it."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import arranged, by_hand, with_program
from tests.executor import Machine
from tests.random_schedules import random_schedule
from vppc.analysis.deadlock import Blocked, Progress, Track, eager, wait_cycles
from vppc.errors import Finding
from vppc.ir.instruction import Program, Recv, Send, Wait
from vppc.ir.rules import check
from vppc.ir.schedule import Schedule


def event_graph(programs: tuple[Program, ...], *, rendezvous: bool) -> nx.DiGraph:
    """All instructions as nodes, edges to what must come later; the transfers matched by counting on channels."""
    graph = nx.DiGraph()
    ends: dict[tuple[int, type], list[tuple[int, int]]] = defaultdict(list)
    for program in programs:
        graph.add_nodes_from((program.rank, index) for index in range(len(program)))
        nx.add_path(graph, [(program.rank, index) for index in range(len(program))])
        for index, instruction in enumerate(program):
            if isinstance(instruction, Send | Recv):
                ends[instruction.channel, type(instruction)].append((program.rank, index))
    partner: dict[tuple[int, int], tuple[int, int]] = {}
    for (channel, kind), posts in ends.items():
        partner.update(zip(posts, ends[channel, Recv if kind is Send else Send], strict=True))
    for program in programs:
        for index, instruction in enumerate(program):
            if isinstance(instruction, Wait) and (rendezvous or isinstance(program[instruction.of], Recv)):
                graph.add_edge(partner[program.rank, instruction.of], (program.rank, index))
    return graph


def tracks(programs: tuple[Program, ...]) -> list[Track]:
    ends: dict[tuple[int, type], list[tuple[int, int]]] = defaultdict(list)
    partners = [array("i", [-1]) * len(program) for program in programs]
    for program in programs:
        for index, instruction in enumerate(program):
            if isinstance(instruction, Send | Recv):
                ends[instruction.channel, type(instruction)].append((program.rank, index))
    for channel in {channel for channel, _ in ends}:
        for (src, send), (dst, recv) in zip(ends[channel, Send], ends[channel, Recv], strict=True):
            partners[src][send], partners[dst][recv] = recv, send
    waits = [array("i", [i for i, each in enumerate(program) if isinstance(each, Wait)]) for program in programs]
    return [Track(p.code, w, partner) for p, w, partner in zip(programs, waits, partners, strict=True)]


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Program, ...]:
    """Ranks that only send and receive: any transfers, posted and waited for in any order."""
    count = draw(st.integers(2, 4))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    transfers = draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=8))
    programs = []
    for rank in range(count):
        mine = [(Send, channel) for channel in transfers if pairs[channel][0] == rank]
        mine += [(Recv, channel) for channel in transfers if pairs[channel][1] == rank]
        posts = draw(st.permutations(mine))
        waits = draw(st.lists(st.integers(0, 3), min_size=len(posts), max_size=len(posts)))
        code: list[Send | Recv | Wait] = []
        due: list[tuple[int, int]] = []  # posts to come before the WAIT, of which instruction
        for (kind, channel), delay in zip(posts, waits, strict=True):
            due = [(left - 1, of) for left, of in due]
            code += [Wait(of) for left, of in due if left < 0]
            due = [(left, of) for left, of in due if left >= 0]
            due.append((delay, len(code)))
            code.append(kind(0, 0, pairs[channel][1 if kind is Send else 0], channel, 0))
        code += [Wait(of) for _, of in due]
        programs.append(Program.of(rank, 1, code))
    return tuple(programs)


@given(traffic())
@settings(max_examples=300)
def test_ranks_come_to_their_end_unless_the_event_graph_has_a_cycle(programs: tuple[Program, ...]) -> None:
    both_ends = tracks(programs)
    hangs = {}
    for rendezvous in (True, False):
        progress = Progress(both_ends if rendezvous else [eager(track) for track in both_ends])
        steps = progress.run()
        graph = event_graph(programs, rendezvous=rendezvous)
        hangs[rendezvous] = not nx.is_directed_acyclic_graph(graph)
        assert bool(progress.blocked()) == bool(wait_cycles(progress.blocked())) == hangs[rendezvous]
        stuck = [node for cycle in nx.strongly_connected_components(graph) if len(cycle) > 1 for node in cycle]
        behind = set(stuck).union(*(nx.descendants(graph, node) for node in stuck))
        for rank, program in enumerate(programs):
            assert progress.reached[rank] == min(
                (index for index in range(len(program)) if (rank, index) in behind), default=len(program)
            )
        assert_order(steps, graph)
        for cycle in wait_cycles(progress.blocked()):
            assert [each.peer for each in cycle] == [each.rank for each in [*cycle[1:], cycle[0]]]
            assert all((each.peer, each.post) in behind and (each.rank, each.wait) in behind for each in cycle)
    assert hangs[True] or not hangs[False]


def assert_order(steps: list[tuple[int, int]], graph: nx.DiGraph) -> None:
    """No event comes before one that it needs."""
    seen: set[tuple[int, int]] = set()
    reached: dict[int, int] = defaultdict(int)
    for rank, upto in steps:
        for index in range(reached[rank], upto):
            assert seen.issuperset(graph.predecessors((rank, index)))
            seen.add((rank, index))
        reached[rank] = upto


def test_a_schedule_is_refused_for_a_deadlock_just_when_its_events_have_a_cycle() -> None:
    """Then it hangs in any interleaving, when both ends are needed, or also when sends complete alone."""
    random = Random("deadlock")
    judged: Counter[str] = Counter()
    for _ in range(100):
        schedule = tightened(random_schedule(random, max_pp=3, max_tokens=4), random)
        codes = {finding.code for finding in check(schedule)}
        assert codes <= {"D1"} or codes <= {"D2"}
        judged.update(codes or {"proven"})
        for rendezvous, hangs in ((True, bool(codes)), (False, codes == {"D1"})):
            graph = event_graph(schedule.programs, rendezvous=rendezvous)
            assert nx.is_directed_acyclic_graph(graph) != hangs
            assert (Machine(schedule, random, not rendezvous).run() == "hang") == hangs
    print(dict(judged))
    assert min(judged[code] for code in ("proven", "D1", "D2")) >= 3


def tightened(schedule: Schedule, random: Random) -> Schedule:
    """Some posts and their WAITs brought together, as far as the rank's own data and the channels' order allow."""
    for program in schedule.programs:
        order = list(range(len(program)))
        for wait, instruction in enumerate(program):
            if not isinstance(instruction, Wait) or random.random() < 0.2:
                continue
            post = instruction.of
            kind, channel = type(program[post]), program[post][3]
            if kind is Send and random.random() < 0.5:
                order.remove(wait)
                order.insert(order.index(post) + 1, wait)
            elif not any(
                isinstance(program[index], kind) and program[index][3] == channel
                for index in order[order.index(post) + 1 : order.index(wait)]
            ):
                order.remove(post)
                order.insert(order.index(wait), post)
        schedule = with_program(schedule, arranged(program, order))
    return schedule


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_a_circle_of_three_ranks_is_told_rank_by_rank() -> None:
    blocked = [Blocked(0, 5, 2, 9), Blocked(1, 3, 0, 8), Blocked(2, 4, 1, 7), Blocked(3, 1, 0, 6)]
    assert wait_cycles(blocked) == [[blocked[0], blocked[2], blocked[1]]]


def test_a_rank_that_waits_for_what_is_still_to_be_posted_is_in_no_circle() -> None:
    assert wait_cycles([Blocked(0, 5, 1, 9), Blocked(1, 3, 0, -1)]) == []


def test_two_circles_are_two_findings() -> None:
    blocked = [Blocked(0, 1, 1, 2), Blocked(1, 1, 0, 2), Blocked(2, 1, 3, 2), Blocked(3, 1, 2, 2)]
    assert wait_cycles(blocked) == [blocked[:2], blocked[2:]]


def test_naive_blocking_transfers_hang_and_batched_ones_do_not() -> None:
    """SEND, WAIT, RECV, WAIT on both sides of a neighbour pair hangs by rendezvous; the four posts together do not."""
    base = by_hand()
    rank0, rank1 = base.programs
    naive = replace(
        base,
        programs=(
            arranged(rank0, [0, 1, 3, 4, 5, 9, 2, 6, 7, 8, 10, 11, 12]),
            arranged(rank1, [0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11]),
        ),
    )
    batched = replace(
        base,
        programs=(
            arranged(rank0, [0, 1, 3, 4, 5, 2, 9, 6, 7, 8, 10, 11, 12]),
            arranged(rank1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ),
    )
    assert check(batched) == ()
    finding = only(check(naive))
    assert finding.code == "D2"
    assert finding.place == "programs[0].instructions[5] (rank 0)"
    assert finding.problem.splitlines() == [
        "ranks 0 and 1 wait for each other for ever, when a transfer needs both ends (rendezvous), "
        "not when sends complete alone",
        "    rank 0 waits at instruction 5 (WAIT of SEND c1 s0) for rank 1 to post RECV c1 s1 (instruction 6), "
        "which comes after its instruction 5",
        "    rank 1 waits at instruction 5 (WAIT of SEND c0 s2) for rank 0 to post RECV c0 s3 (instruction 6), "
        "which comes after its instruction 5",
    ]
    assert finding.remedy == "for one, post RECV c0 s3 on rank 0 before its WAIT at instruction 5"
