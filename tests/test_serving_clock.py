"""The pipeline's clock, beside a slow one that looks at everything anew for every operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, nextafter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving_streams import LAYERS, header
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts
from vppc.ir.schedule import Chunk, Part, Request, Schedule
from vppc.passes.admission import Admission, default_in_flight
from vppc.passes.chunking import FixedChunks
from vppc.passes.list_schedule import Ran, list_schedule
from vppc.serving.batching import Limits
from vppc.serving.clock import Pipeline
from vppc.serving.policy import Policy, policy

EXACT = CostModel(
    (LayerCost(LAYERS, fixed=1 / 64, per_token=1 / 128, per_pair=1 / 256),), transfer=Linear(1 / 32, 1 / 64)
)
"""Costs whose sums are exact, so that times can be compared."""


def pipeline(
    strategy: str = "vpp-packed",
    pp: int = 2,
    limits: Limits | None = None,
    queue: Policy | str = "fcfs",
    setup: Schedule | None = None,
) -> Pipeline:
    order = policy(queue, EXACT) if isinstance(queue, str) else queue
    return Pipeline(setup or header(strategy, pp), EXACT, limits or Limits(chunk_size=8), order, strategy)


def ran(each: Pipeline) -> list[Ran]:
    each.run()
    return list(each.take_committed().operations)


@dataclass
class Slow:
    """List scheduling by its definition: of all that could start first, the lowest rank's; times by looking back."""

    setup: Schedule
    requests: list[Request]
    chunk_size: int
    in_flight: int
    resident: float
    key: Callable[[Request, int], float]
    """(request, tokens left) -> what requests are sorted by"""
    share: bool
    barrier: bool
    finish_first: bool
    covered: list[int] = field(init=False)
    chunks: list[Chunk] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    ops: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.covered = [request.cached_tokens for request in self.requests]

    def run(self) -> list[Ran]:
        while True:
            chances = [(at, rank) for rank in range(self.setup.pp) if (at := self.earliest(rank)) < inf]
            if not chances:
                return self.ops
            self.start(*min(chances))

    def count(self, stage: int) -> int:
        return sum(op.stage == stage for op in self.ops)

    def free(self, rank: int) -> float:
        return max((op.end for op in self.ops if op.rank == rank), default=0.0)

    def arrival(self, stage: int, chunk: int) -> float:
        return next((op.arrives for op in self.ops if (op.stage, op.chunk) == (stage - 1, chunk)), inf)

    def earliest(self, rank: int) -> float:
        free = self.free(rank)
        later = min((self.arrival(s, self.count(s)) for s in self.setup.rank_stages[rank] if s), default=inf)
        best = max(free, later)
        if rank == 0:
            moments = {free, *(r.arrival for r in self.requests), *(op.end for op in self.ops)}
            best = min([best, *(t for t in moments if t >= free and self.next_parts(t))])
        return best

    def next_parts(self, now: float) -> list[Part]:
        """What the next chunk holds if it is made now."""
        last = len(self.setup.stages) - 1
        through = {op.chunk for op in self.ops if op.stage == last and op.end <= now}
        inside = [chunk for number, chunk in enumerate(self.chunks) if number not in through]
        if len(inside) >= self.in_flight:
            return []
        started = {part.request for chunk in self.chunks for part in chunk.parts}
        left = [r.prompt_tokens - c for r, c in zip(self.requests, self.covered, strict=True)]
        open_ones = [i for i in started if left[i]]
        here = {part.request for chunk in inside for part in chunk.parts} | set(open_ones)
        room = self.resident - sum(self.requests[i].prompt_tokens for i in here)
        waiting = [i for i, r in enumerate(self.requests) if r.arrival <= now and left[i]]
        waiting.sort(key=lambda i: (self.key(self.requests[i], left[i]), i))
        if self.barrier and (open_ones or inside):
            waiting = open_ones
        if waiting and waiting[0] not in started and self.requests[waiting[0]].prompt_tokens > room:
            waiting = [i for i in waiting if i in started]
        if not waiting:
            return []
        first = waiting[0]
        parts = [Part(first, self.covered[first], min(self.chunk_size, left[first]))]
        if self.share and first not in started and parts[0].tokens == left[first]:
            room -= self.requests[first].prompt_tokens
            budget = self.chunk_size - left[first]
            for i in waiting[1:]:
                if i in started or left[i] > budget or self.requests[i].prompt_tokens > room:
                    break
                parts.append(Part(i, self.covered[i], left[i]))
                budget -= left[i]
                room -= self.requests[i].prompt_tokens
        return parts

    def costs(self, chunks: list[Chunk]) -> OpCosts:
        return OpCosts.of(replace(self.setup, requests=tuple(self.requests), chunks=tuple(chunks)), EXACT)

    def start(self, now: float, rank: int) -> None:
        stages = [s for s in self.setup.rank_stages[rank] if s and self.arrival(s, self.count(s)) <= now]
        parts = self.next_parts(now) if rank == 0 else []
        chunk = Chunk(tuple(parts))
        group = (self.groups[-1] if self.groups else -1) + self.ended()
        choices = ([0] if parts else []) + stages
        picked = choices[0]
        if self.finish_first:
            for late in choices[1:]:
                if self.may_come_first(late, picked, now, chunk, group):
                    picked = late
                    break
        if picked == 0:
            self.chunks.append(chunk)
            self.groups.append(group)
            for part in parts:
                self.covered[part.request] += part.tokens
        number = self.count(picked)
        seconds = self.seconds(self.chunks[number], picked)
        end = now + seconds
        arrives = end
        ranks = self.setup.stage_ranks
        if picked + 1 < len(ranks) and ranks[picked + 1] != rank:
            busy = max(
                (
                    o.arrives
                    for o in self.ops
                    if o.stage + 1 < len(ranks) and (o.rank, ranks[o.stage + 1]) == (rank, ranks[picked + 1])
                ),
                default=0.0,
            )
            arrives = max(end, busy) + EXACT.transfer_seconds(self.chunks[number].tokens)
        self.ops.append(Ran(number, picked, rank, now, end, arrives))

    def ended(self) -> bool:
        """Whether a prompt ends in the last chunk."""
        return not self.chunks or any(
            part.end == self.requests[part.request].prompt_tokens for part in self.chunks[-1].parts
        )

    def seconds(self, chunk: Chunk, stage: int) -> float:
        return self.costs([chunk]).seconds[stage]

    def may_come_first(self, late: int, early: int, now: float, new: Chunk, group: int) -> bool:
        older, held = self.count(late), self.count(early)
        chunks, groups = [*self.chunks, new], [*self.groups, group]
        if groups[older] >= groups[held]:
            return False
        ranks = self.setup.stage_ranks
        peer = ranks[early + 1] if early + 1 < len(ranks) else ranks[early]
        if peer == ranks[early]:
            return True
        sent = 0.0  # seconds of what the peer was sent and has not started
        for op in self.ops:
            after = op.stage + 1
            if after < len(ranks) and ranks[after] == peer != op.rank:
                while after < len(ranks) and ranks[after] == peer:
                    if not any((o.chunk, o.stage) == (op.chunk, after) for o in self.ops):
                        sent += self.seconds(self.chunks[op.chunk], after)
                    after += 1
        meanwhile = self.seconds(chunks[older], late) + self.seconds(chunks[held], early)
        fed = max(self.free(peer), now) + sent
        return fed >= now + meanwhile + EXACT.transfer_seconds(chunks[held].tokens)


@st.composite
def loads(draw: st.DrawFn) -> list[Request]:
    requests = []
    now = 0.0
    for number in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]))
        tokens = draw(st.integers(1, 30))
        requests.append(Request(f"r{number}", tokens, draw(st.integers(0, tokens - 1)), now))
    return requests


KEYS: dict[str, Callable[[Request, int], float]] = {
    "fcfs": lambda request, left: request.arrival,
    "dual-queue": lambda request, left: request.arrival,
    "srpf": lambda request, left: left,
}


@given(
    loads(),
    st.sampled_from(["vpp-packed", "vpp-async", "cpp"]),
    st.integers(1, 3),
    st.sampled_from(list(KEYS)),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(30, 50),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_the_clock_is_that_of_list_scheduling_by_its_definition(
    requests: list[Request],
    strategy: str,
    pp: int,
    queue: str,
    in_flight: int | None,
    resident: int | None,
    share: bool,
) -> None:
    limits = Limits(chunk_size=8, max_in_flight=in_flight, max_resident_tokens=resident, share=share)
    order = replace(policy(queue, EXACT), patience=inf)
    each = pipeline(strategy, pp, limits, order)
    for request in requests:
        each.submit(request, 0.0)
    slow = Slow(
        header(strategy, pp),
        requests,
        chunk_size=8,
        in_flight=each.in_flight,
        resident=inf if resident is None else resident,
        key=KEYS[queue],
        share=share,
        barrier=strategy == "vpp-async",
        finish_first=queue != "dual-queue",
    )
    assert sorted(ran(each)) == sorted(slow.run())


@given(loads(), st.sampled_from([("v", 2), ("zigzag", 4)]), st.integers(1, 4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_all_there_from_the_start_runs_as_it_is_planned_offline(
    requests: list[Request], shape: tuple[str, int], pp: int, packed: bool
) -> None:
    placement, vp = shape
    strategy = "vpp-packed" if packed else "vpp-async"
    if vp * pp > LAYERS:
        pp = LAYERS // vp
    requests = [replace(request, arrival=0.0) for request in requests]
    setup = header(strategy, pp, placement, vp)
    each = pipeline(strategy, pp, Limits(chunk_size=8, share=False), setup=setup)
    for request in requests:
        each.submit(request, 0.0)
    schedule = FixedChunks(8)(replace(setup, requests=tuple(requests)))
    admission = Admission(default_in_flight(setup.stage_ranks, packed), barrier=not packed)
    order, finish = list_schedule(schedule, OpCosts.of(schedule, EXACT), admission.gates(schedule))
    done = ran(each)
    stages = len(setup.stages)
    assert (
        tuple(tuple(op.chunk * stages + op.stage for op in done if op.rank == rank) for rank in range(pp))
        == order.ranks
    )
    assert max(op.end for op in done) == finish


def test_chunks_are_made_when_rank_0_is_free_and_not_before() -> None:
    each = pipeline(limits=Limits(chunk_size=8, share=False), queue="srpf")
    each.submit(Request("long", 40), 0.0)
    each.run(1 / 64)
    first = each.take_committed()
    assert [chunk.parts for chunk in first.chunks] == [(Part(0, 0, 8),)]
    each.submit(Request("short", 3), 1 / 64)
    each.run()
    rest = each.take_committed()
    assert rest.chunks[0].parts == (Part(1, 0, 3),)
    assert [token.id for token in each.take_finished()] == ["short", "long"]


def test_a_chunk_that_was_weighed_and_passed_over_yields_to_one_that_comes() -> None:
    """Rank 0 weighs a chunk of b and finishes one of a first; meanwhile c comes, which is shorter."""
    each = pipeline(limits=Limits(chunk_size=8, share=False), queue="srpf")
    passed: list[float] = []
    pass_over = each.pass_over
    each.pass_over = lambda now: (passed.append(now), pass_over(now))[1]  # type: ignore[method-assign]
    each.submit(Request("a", 24), 0.0)
    each.submit(Request("b", 40), 0.0)
    while not passed:
        each.run(nextafter(each.next_event(), inf))
    each.submit(Request("c", 1), passed[0])
    each.run()
    committed = each.take_committed()
    assert [request.id for request in committed.requests] == ["a", "c", "b"]
    assert [part.request for chunk in committed.chunks for part in chunk.parts] == [0, 0, 0, 1, 2, 2, 2, 2, 2]
