"""The order of chunks that an engine makes: closed forms of the steady state, and proven streams whatever it makes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving_streams import COST, LAYERS, header
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import CheckFailed
from vppc.ir.instruction import FORWARD, SAMPLE, SEND, WAIT, Row
from vppc.ir.rules import check, check_stream
from vppc.ir.schedule import Chunk, Part, Request, Schedule
from vppc.ir.segment import Segment
from vppc.ir.stream import extend
from vppc.passes.list_schedule import Ran
from vppc.serving import proven_stream
from vppc.serving.batch_order import BatchCompiler, Entry, Leg
from vppc.serving.proven_stream import ProvenStream

EQUAL = CostModel((LayerCost(LAYERS, per_token=1.0),), transfer=Linear(0.0, 0.01))


@dataclass
class Engine:
    """An engine with a queue of ``depth`` batches, as vLLM has it: it enters one where there is room, else waits for
    the oldest. ``calls`` are what it was told at each: what the legs end with."""

    compiler: BatchCompiler
    depth: int
    queue: deque[int] = field(default_factory=deque)
    gone: int = 0  # chunks that rank 0 is through with
    calls: list[list[int | None]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    entered: int = 0

    def enter(self, entry: Entry) -> None:
        if len(self.queue) == self.depth:
            self.wait()
        self._take(self.compiler.enter(entry))
        self.queue.append(self.entered)
        self.entered += 1

    def wait(self) -> int:
        """The oldest chunk's tokens are there, perhaps already."""
        oldest = self.queue.popleft()
        if self.gone <= oldest:
            self._take([self.compiler.leave()])
        return oldest

    def close(self, cancelled: tuple[int, ...] = ()) -> Schedule:
        while self.queue:
            self.wait()
        last = self.compiler.close(cancelled)
        self.segments += [last] if last is not None else []
        schedule = self.compiler.opening
        for segment in self.segments:
            schedule = extend(schedule, segment)
        return schedule

    def _take(self, legs: list[Leg]) -> None:
        self.calls.append([leg.leaves for leg in legs])
        self.gone += sum(leg.leaves is not None for leg in legs)
        self.segments += [leg.segment for leg in legs]


def engine(pp: int, depth: int, cost: CostModel = EQUAL, *, finish_first: bool = True) -> Engine:
    setup = header("vpp-async", pp)
    compiler = BatchCompiler(setup, cost, finish_first=finish_first, in_flight=depth, chunk_size=4096)
    return Engine(compiler, depth)


def one_prompt(served: Engine, chunks: int) -> Schedule:
    """Equal chunks of one long prompt."""
    prompt = Request("long", chunks)
    for number in range(chunks):
        begins = (prompt,) if number == 0 else ()
        served.enter(Entry(Chunk((Part(0, number, 1),)), begins, {0: prompt}, (), 0))
    return served.close()


def order(schedule: Schedule, rank: int) -> list[str]:
    """``in 3`` for a rank's first stage on chunk 3, ``out 3`` for its second."""
    rows = schedule.programs[rank].rows()
    return [f"{'in' if row[2] < schedule.pp else 'out'} {row[1]}" for row in rows if row[0] == FORWARD]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, "in 0, out 0, in 1, out 1, in 2, out 2, in 3, out 3"),
        (2, "in 0, in 1, out 0, in 2, out 1, in 3, out 2, out 3"),  # the blocking scheme
        (3, "in 0, in 1, in 2, out 0, in 3, out 1, out 2, out 3"),  # and one more
    ],
)
def test_two_ranks(depth: int, expected: str) -> None:
    """Rank 0 in the steady state; at the fold a chunk goes back at once."""
    schedule = one_prompt(engine(2, depth), 4)
    assert ", ".join(order(schedule, 0)) == expected
    assert order(schedule, 1) == [f"{way} {chunk}" for chunk in range(4) for way in ("in", "out")]
    assert check(schedule) == ()


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_how_far_ranks_let_chunks_in(pp: int) -> None:
    """In the steady state of a V with as many in flight as it has stages but one, rank r has let in 2 (pp - 1 - r)
    later chunks when one goes back."""
    chunks = 12 * pp
    schedule = one_prompt(engine(pp, 2 * pp - 1), chunks)
    assert check(schedule) == ()
    for rank in range(pp):
        ran = order(schedule, rank)
        before = ran[: ran.index(f"out {chunks // 2}")]
        assert sum(way.startswith("in") for way in before) - chunks // 2 - 1 == 2 * (pp - 1 - rank)


def test_a_chunk_leaves_before_the_next_enters_where_nobody_runs_dry() -> None:
    """With more in flight than the order needs: the engine gets its tokens sooner. Not by the paper's policy."""
    served = engine(2, 6)
    one_prompt(served, 12)
    assert served.calls[:6] == [[None], [None], [None], [None], [0, None], [1, None]]
    patient = engine(2, 6, finish_first=False)
    one_prompt(patient, 12)
    assert patient.calls[:7] == [[None]] * 6 + [[0]]


def test_a_chunk_at_the_fold_goes_back_in_the_leg_that_brought_it_there() -> None:
    """So rank 1 need not wait for the engine between the two."""
    served = engine(2, 3)
    one_prompt(served, 5)
    ran = []
    for segment in served.segments[:7]:
        code = [number for program in segment.programs if program.rank == 1 for number in program.code]
        rows = zip(*[iter(code)] * 6, strict=True)
        ran.append(" ".join(f"{'in' if row[2] == 1 else 'out'} {row[1]}" for row in rows if row[0] == FORWARD))
    assert ran == ["", "in 0 out 0", "", "in 1 out 1", "in 2 out 2", "", "in 3 out 3"]


def test_what_was_not_entered_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="no chunk is in flight"):
        engine(2, 3).compiler.leave()


def test_a_wrong_part_ends_it_with_the_finding() -> None:
    served, prompt = engine(2, 3), Request("p", 9)
    served.enter(Entry(Chunk((Part(0, 0, 4),)), (prompt,), {0: prompt}, (), 0))
    with pytest.raises(CheckFailed, match="leaves out tokens 4 to 5"):
        served.enter(Entry(Chunk((Part(0, 5, 4),)), (), {0: prompt}, (), 0))


def test_ranks_that_would_wait_for_a_further_segment_are_found() -> None:
    """Rank 1 is to receive what rank 0 is not yet told to send."""
    prompt, part = Request("p", 1), Part(0, 0, 1)
    for alone in (False, True):
        stream = ProvenStream(header("vpp-async", 2), EQUAL, 4, 1, 64, {})
        stream.emitter.commit([Ran(0, 0, 0, 0.0, 1.0, 1.0), Ran(0, 1, 1, 1.0, 2.0, 2.0)], [True])
        stream.emitter._lanes[0].pending.clear()
        stream.emitter.emit(2.0)
        stream.add((prompt,), (Chunk((part,)),), ())
        if not alone:
            assert stream.segment(0) is not None
            continue
        with pytest.raises(CheckFailed, match="waits at instruction 1 for what rank 0 posts in no segment so far"):
            stream.segment(0, alone=True)


COSTS = (EQUAL, COST, CostModel((LayerCost(LAYERS, per_pair=1e-4),)), CostModel((LayerCost(LAYERS),)))


@given(st.data())
def test_whatever_the_engine_makes(data: st.DataObject) -> None:
    """Prompts of several chunks, packed, with decodes, given up at any time: each leg is run by ranks that know no
    further one, and the whole is a proven stream in which the engine's limits are kept."""
    pp, depth = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 9))
    cost, first = data.draw(st.sampled_from(COSTS)), data.draw(st.booleans())
    served = engine(pp, depth, cost, finish_first=first)
    prompts: dict[int, Request] = {}
    covered: dict[int, int] = {}  # of those that are there
    sampled: dict[int, int] = {}  # request -> the chunk in which its last token was made
    ended: list[int] = []
    through = -1
    for _ in range(data.draw(st.integers(1, 25))):
        if served.queue and data.draw(st.integers(0, 3)) == 0:
            through = served.wait()
            continue
        if len(served.queue) == depth:
            through = served.wait()
        begins = []
        for _ in range(data.draw(st.integers(0, 2))):
            cached = data.draw(st.integers(0, 3))
            request = Request(f"r{len(prompts)}", cached + data.draw(st.integers(1, 30)), cached)
            covered[len(prompts)] = cached
            prompts[len(prompts)] = request
            begins.append(request)
        parts, new = [], len(prompts) - len(begins)
        for index in sorted(covered):
            left = prompts[index].prompt_tokens - covered[index]
            if left > 0 and (index >= new or data.draw(st.booleans())):
                parts.append(Part(index, covered[index], data.draw(st.integers(1, left))))
            elif left <= 0 and sampled[index] <= through and data.draw(st.booleans()):
                parts.append(Part(index, covered[index], 1, decode=True))
        if not parts:
            continue
        for part in parts:
            covered[part.request] = part.end
            if part.end >= prompts[part.request].prompt_tokens:
                sampled[part.request] = served.entered
        over = min(covered, default=len(prompts))
        served.enter(Entry(Chunk(tuple(parts)), begins, prompts, ended, over))
        ended = [index for index in sorted(covered) if data.draw(st.integers(0, 9)) == 0]
        for index in ended:
            del covered[index]
    schedule = served.close((*ended, *covered))
    assert check_stream(served.compiler.opening, served.segments, closed=True) == ()
    runs_leg_by_leg(served, pp)
    keeps_the_queue(schedule, depth)


def runs_leg_by_leg(served: Engine, pp: int) -> None:
    """Each rank runs all of a segment before anybody has the next; a transfer needs both its ends."""
    lists: list[list[Row]] = [[] for _ in range(pp)]
    at = [0] * pp
    posted: dict[tuple[int, bool], int] = {}  # how many SENDs and RECVs on a channel
    numbers: dict[tuple[int, int], tuple[int, bool, int]] = {}  # rank, instruction -> channel, is it a SEND, which
    for segment in served.segments:
        for program in segment.programs:
            each = iter(program.code)
            lists[program.rank] += zip(each, each, each, each, each, each, strict=True)
        moved = True
        while moved:
            moved = False
            for rank in range(pp):
                while at[rank] < len(lists[rank]):
                    op, _, _, of, _, channel = lists[rank][at[rank]]
                    if op == WAIT:
                        where, sends, number = numbers[rank, of]
                        if posted.get((where, not sends), 0) <= number:
                            break
                    elif op not in (FORWARD, SAMPLE):
                        end = (channel, op == SEND)
                        numbers[rank, at[rank]] = (*end, posted.get(end, 0))
                        posted[end] = posted.get(end, 0) + 1
                    at[rank] += 1
                    moved = True
        assert at == [len(rows) for rows in lists]


def keeps_the_queue(schedule: Schedule, depth: int) -> None:
    inside = 0
    for op, _, stage, *_ in schedule.programs[0].rows():
        if op == FORWARD:
            inside += 1 if stage == 0 else -1
            assert inside <= depth


def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that decodes while others come and go: what is through is forgotten, and the numbers go on."""
    monkeypatch.setattr(proven_stream, "KEPT", 64)
    served, prompts = engine(2, 3), {0: Request("decodes", 1)}
    served.enter(Entry(Chunk((Part(0, 0, 1),)), (prompts[0],), prompts, (), 0))
    for number in range(1, 400):
        while served.queue:
            served.wait()
        prompts[number] = Request(f"r{number}", 2)
        parts = (Part(0, number, 1, decode=True), Part(number, 0, 2))
        served.enter(Entry(Chunk(parts), (prompts[number],), prompts, (number - 1,) if number > 1 else (), 0))
    tape = served.compiler._stream._verifier.tapes[0]
    assert len(tape) < 200 and len(tape.prompts.chunks) < 50
    assert check(served.close((0, 399))) == ()
