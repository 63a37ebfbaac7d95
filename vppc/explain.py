"""Why a schedule is as long as it is, what each pass did for that, and what would make it shorter.

What would help is not guessed: each change is compiled by the ordinary passes and simulated. Changes are tried one at a
time, around the schedule as it is; :mod:`vppc.tuning` searches them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from vppc.analysis.breakdown import first_tokens, makespan
from vppc.analysis.order_timeline import timeline
from vppc.analysis.timing import simulate
from vppc.costs.model import CostModel, Linear, OpCosts
from vppc.errors import VppcError
from vppc.ir.partition import Ranges
from vppc.ir.placement import PLACEMENTS, stage_ranks
from vppc.ir.schedule import Chunk, Part, Schedule
from vppc.passes.admission import default_in_flight
from vppc.passes.layout import Layout
from vppc.passes.planned import PlannedChunks
from vppc.passes.strategies import BALANCED, STRATEGIES, Options, Pass, passes
from vppc.sums import plain_sum

MOST_OPERATIONS = 10_000
"""(chunk, stage) pairs of a schedule up to which changes are tried: beyond, that takes minutes."""
MOST_MOVES = 64
"""Moves of one layer across a boundary between stages that are tried."""
_SIZES = (0.5, 0.75, 1.25, 1.5, 2.0)
_SWEPT = ("cpp", "dcpp", "vpp-async", "vpp-packed")
_TAPERS = ((0.6, 0.4), (0.5, 0.3, 0.2), (0.4, 0.3, 0.2, 0.1))
"""Shares into which a prompt's last chunk is cut."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule comes to: seconds, the mean TTFT among them, and the most activation buffers of a rank.

    ``limited``: its file says what memory its ranks have.
    """

    makespan: float
    ttft: float
    buffers: int
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Something to do differently: a ``kind`` of change, what it is, and how ``vppc compile`` (or tune) is told."""

    kind: str
    what: str
    how: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A change, and what came of it."""

    change: Change
    outcome: Outcome

    def gain_over(self, before: Outcome) -> float:
        """How much more throughput the changed schedule has, as a part of that before."""
        return before.makespan / self.outcome.makespan - 1.0 if self.outcome.makespan else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A pass, and the schedule after it; ``makespan`` in seconds, None before there is an order to run.

    Before there are programs, transfers run freely beside compute.
    """

    name: str
    schedule: Schedule
    makespan: float | None


def outcome(schedule: Schedule, cost: CostModel) -> Outcome:
    """Simulate a schedule."""
    timing = simulate(schedule, OpCosts.of(schedule, cost), cost.interference)
    known = [ttft for ttft in first_tokens(schedule, timing) if ttft is not None]
    buffers = max((program.buffers for program in schedule.programs), default=0)
    limited = any("limit" in program.extra.get("memory", ()) for program in schedule.programs)
    return Outcome(makespan(schedule, timing), plain_sum(known) / len(known) if known else 0.0, buffers, limited)


def with_free_transfers(schedule: Schedule, cost: CostModel) -> Outcome:
    """The same programs, were transfers to take no time and to slow nothing down."""
    return outcome(schedule, replace(cost, transfer=Linear(), interference=0.0))


def placement_of(schedule: Schedule) -> str | None:
    """The placement that a schedule's stages have; None where it is none of ours."""
    for placement in PLACEMENTS:
        try:
            if stage_ranks(placement, schedule.pp, schedule.vp) == schedule.stage_ranks:
                return placement
        except VppcError:
            continue
    return None


def steps(schedule: Schedule, cost: CostModel) -> tuple[Step, ...]:
    """What the passes of the schedule's strategy make of its chunks and stages, one after another.

    Empty where that is another program than the schedule's: it was tuned, edited, or compiled with limits.
    """
    options = _options(schedule)
    if options is None:
        return ()
    costs = OpCosts.of(schedule, cost)
    found: list[Step] = []
    try:
        for step, after in _compile(schedule, _planned(options, cost, schedule.chunks)):
            found.append(Step(step.name, after, _seconds(after, costs, cost)))
    except VppcError:
        return ()
    same = [program.code for program in found[-1].schedule.programs] == [each.code for each in schedule.programs]
    return tuple(found) if same else ()


def changes(schedule: Schedule, cost: CostModel) -> Iterator[tuple[Change, Callable[[], Schedule]]]:
    """Everything that is tried of a schedule, and how to compile it; nothing, where its placement is not ours or there
    are no chunks."""
    options = _options(schedule) or _options(replace(schedule, strategy="vpp-packed" if schedule.vp > 1 else "cpp"))
    if options is None or not schedule.chunks:
        return

    def planned(options: Options, chunks: Sequence[Chunk] = schedule.chunks) -> Callable[[], Schedule]:
        return lambda: _compiled(schedule, _planned(options, cost, chunks))

    folded = schedule.vp > 1
    if options.strategy == "vpp":
        how = "--strategy vpp-async"
        yield Change("hiding transfers", "transfers beside compute", how), planned(replace(options, strategy=how[11:]))
    if folded and options.strategy != "vpp-packed" and len(schedule.requests) > 1:
        how = "--strategy vpp-packed"
        yield Change("packing", "the next prompt in the drain", how), planned(replace(options, strategy=how[11:]))
    if not folded and schedule.pp > 1:
        v = replace(options, strategy="vpp-packed", placement="v", vp=2, ranges=None)
        yield Change("folding", "V placement", "--strategy vpp-packed"), planned(v)
    decodes = _decodes(schedule)
    for placement, vp in (("zigzag", 4),) if decodes else (("loop", 2), ("zigzag", 4), ("loop", 4)):
        if schedule.pp > 1 and schedule.model.layers >= schedule.pp * vp > len(schedule.stages):
            how = f"--strategy vpp-packed --placement {placement} --vp {vp}"
            thin = replace(options, strategy="vpp-packed", placement=placement, vp=vp, ranges=None)
            yield Change("thinner stages", f"{placement}, {vp} stages a rank", how), planned(thin)
    if folded:
        usual = default_in_flight(schedule.stage_ranks, options.strategy == "vpp-packed")
        for ahead in dict.fromkeys((usual - 1, usual + 1, usual + 2, 2 * usual)):
            if ahead > 0:
                how = f"--max-in-flight {ahead}"
                kind = "more in flight" if ahead > usual else "less in flight"
                yield (
                    Change(kind, f"{ahead} chunks instead of {usual}", how),
                    planned(replace(options, max_in_flight=ahead)),
                )
    largest = max((chunk.tokens for chunk in schedule.chunks), default=1)
    sizes = (max(64, round(largest * factor / 64) * 64) for factor in _SIZES)
    for size in dict.fromkeys(sizes) if largest >= 128 and _holds_prompts(schedule) else ():
        fixed = replace(options, chunk_size=size)
        yield Change("chunk size", f"{size:,} tokens", f"--chunk-size {size}"), _chunked(schedule, fixed, cost)
    for shares in _TAPERS:
        if chunks := _tapered(schedule, shares):
            what = f"the last chunk in {len(shares)}: {', '.join(str(each.tokens) for each in chunks[-len(shares) :])}"
            yield Change("taper", what, "vppc tune"), planned(options, chunks)
    if schedule.pp > 1:
        by_costs = replace(options, ranges=None, split=BALANCED, chunk_size=largest)
        yield Change("layer split", "balanced by costs", f"--layer-split {BALANCED}"), planned(by_costs)
    for ranges in _moved_layers([stage.layers for stage in schedule.stages]):
        counts = ",".join(str(last - first) for first, last in ranges)
        change = Change("layer split", f"{counts} layers a stage", f"--layer-ranges {counts}")
        yield change, planned(replace(options, ranges=ranges))


def trials(
    schedule: Schedule, cost: CostModel, tried: Callable[[], object] = lambda: None
) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """The best trial of each kind of change, the best first; and the kinds that cannot be compiled.

    ``tried`` is called after each change.
    """
    found: list[Trial] = []
    refused: dict[str, None] = {}
    for change, compiled in changes(schedule, cost):
        try:
            found.append(Trial(change, outcome(compiled(), cost)))
        except VppcError:
            refused[change.kind] = None
        tried()
    best = [
        min(group, key=lambda trial: trial.outcome.makespan)
        for _, group in groupby(sorted(found, key=lambda trial: trial.change.kind), key=lambda trial: trial.change.kind)
    ]
    kinds = {trial.change.kind for trial in best}
    best.sort(key=lambda trial: trial.outcome.makespan)
    return tuple(best), tuple(kind for kind in refused if kind not in kinds)


def _options(schedule: Schedule) -> Options | None:
    """The options of a compilation to these stages, as far as a schedule tells them; None for foreign ones."""
    placement = placement_of(schedule)
    if placement is None or schedule.strategy not in STRATEGIES:
        return None
    return Options(
        strategy=schedule.strategy,
        pp=schedule.pp,
        placement=placement,
        vp=schedule.vp,
        ranges=tuple(stage.layers for stage in schedule.stages),
    )


def _planned(options: Options, cost: CostModel, chunks: Sequence[Chunk]) -> tuple[Pass, ...]:
    """The strategy's passes, with chunks that are given instead of those that would choose them."""
    found = passes(options, cost)
    layout = next(place for place, step in enumerate(found) if isinstance(step, Layout))
    return (PlannedChunks(tuple(chunks)), *found[layout:])


def _chunked(schedule: Schedule, options: Options, cost: CostModel) -> Callable[[], Schedule]:
    return lambda: _compiled(schedule, passes(options, cost))


def _compile(schedule: Schedule, found: Sequence[Pass]) -> Iterator[tuple[Pass, Schedule]]:
    after = Schedule(schedule.strategy, schedule.model, schedule.pp, 1, requests=schedule.requests)
    for step in found:
        after = step(after)
        yield step, after


def _compiled(schedule: Schedule, found: Sequence[Pass]) -> Schedule:
    *_, (_, last) = _compile(schedule, found)
    return last


def _seconds(schedule: Schedule, costs: OpCosts, cost: CostModel) -> float | None:
    if schedule.programs:
        return makespan(schedule, simulate(schedule, costs, cost.interference))
    return None if schedule.order is None else timeline(schedule, costs, schedule.order).makespan


def _decodes(schedule: Schedule) -> bool:
    """Whether a request decodes, which takes a placement that brings the last stage back to rank 0."""
    return any(part.decode for chunk in schedule.chunks for part in chunk.parts)


def _holds_prompts(schedule: Schedule) -> bool:
    """Whether the chunks are the prompts, whole ones, and nothing else: only then may they be cut anew."""
    return not (schedule.extra.get("cancelled") or _decodes(schedule))


def _tapered(schedule: Schedule, shares: Sequence[float]) -> tuple[Chunk, ...]:
    """The chunks, the last one cut into shares; empty where it holds several parts or is too small."""
    *before, last = schedule.chunks
    if len(last.parts) > 1 or last.parts[0].decode or last.tokens < 64 * len(shares):
        return ()
    [part] = last.parts
    sizes = [round(part.tokens * share / 64) * 64 for share in shares[:-1]]
    sizes.append(part.tokens - sum(sizes))
    pieces, start = [], part.start
    for size in sizes:
        pieces.append(Chunk((Part(part.request, start, size),)))
        start += size
    return (*before, *pieces) if min(sizes) > 0 else ()


def _moved_layers(ranges: Sequence[tuple[int, int]]) -> Iterator[Ranges]:
    """All layer ranges that differ by one layer across one boundary, if those are not too many."""
    if 2 * (len(ranges) - 1) > MOST_MOVES:
        return
    for stage, (first, last) in enumerate(ranges[:-1]):
        following = ranges[stage + 1]
        for cut in (last - 1, last + 1):
            if first < cut < following[1]:
                yield (*ranges[:stage], (first, cut), (cut, following[1]), *ranges[stage + 2 :])


@dataclass(frozen=True, slots=True)
class Priced:
    """A strategy at a chunk size, and what it comes to; None where it was refused."""

    strategy: str
    chunk_size: int
    outcome: Outcome | None


def sweep(schedule: Schedule, cost: CostModel, tried: Callable[[], object] = lambda: None) -> tuple[Priced, ...]:
    """The same prompts under other strategies, at chunk sizes around the schedule's largest; ``tried`` after each.

    Empty for chunks too small to be cut, and for those of a stream that decodes or was cut short.
    """
    found = []
    for strategy, size in sweep_cases(schedule):
        try:
            compiled = _compiled(schedule, passes(Options(strategy=strategy, pp=schedule.pp, chunk_size=size), cost))
            found.append(Priced(strategy, size, outcome(compiled, cost)))
        except VppcError:
            found.append(Priced(strategy, size, None))
        tried()
    return tuple(found)


def sweep_cases(schedule: Schedule) -> list[tuple[str, int]]:
    """The strategies and chunk sizes that are swept."""
    largest = max((chunk.tokens for chunk in schedule.chunks), default=1)
    if largest < 256 or not _holds_prompts(schedule):
        return []
    sizes = sorted({max(64, round(largest * factor / 64) * 64) for factor in (0.25, *_SIZES, 1.0)})
    apart = _SWEPT if len(schedule.requests) > 1 else _SWEPT[:-1]  # of one prompt, packing changes nothing
    return [(strategy, size) for strategy in apart for size in sizes]
