"""Why ranks wait: pieces of bubbles that add up exactly, worked cases, the critical path, and what would help."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.journals import write_journal
from tests.oracles import random_costs, random_programs, random_shape
from tests.plans import compiled as made
from tests.plans import deepseek, paper, plans, price
from tests.serving_streams import stream
from vppc.analysis.activity import Activity, Doing
from vppc.analysis.breakdown import breakdown, makespan
from vppc.analysis.bubbles import CAUSES, PHASES, Bubble, bubbles, totals
from vppc.analysis.critical import critical_path
from vppc.analysis.timing import simulate
from vppc.cli import main, vppc
from vppc.compiler import paper_cost
from vppc.costs.document import parse_cost
from vppc.costs.model import CostModel, OpCosts
from vppc.errors import InputError
from vppc.explain import changes, outcome, steps, sweep_cases, trials, with_free_transfers
from vppc.ir.document import schedule_text
from vppc.ir.instruction import FORWARD, SEND, WAIT
from vppc.ir.rules import check
from vppc.ir.schedule import Channel, Chunk, Order, Part, Request, Schedule
from vppc.lowering import lower
from vppc.passes.planned import PlannedChunks
from vppc.passes.strategies import STRATEGIES, Options, passes
from vppc.render.explain import bubbles_text, instruction_text, moment_text, path_text, steps_text, waits_text
from vppc.serving.batching import Limits

NOT_THE_PASSES = (
    "passes: these programs are not what the strategy's passes make of these chunks and stages by default; they were "
    "tuned, edited, or compiled with limits\n"
)
GOLDEN = Path(__file__).parent / "golden"
RANDOMS = st.randoms(use_true_random=False)


def activity_of(schedule: Schedule) -> Activity:
    cost = parse_cost(schedule.extra["cost"])
    return Activity.of(schedule, simulate(schedule, OpCosts.of(schedule, cost), cost.interference))


def dyadic(costs: OpCosts) -> OpCosts:
    """The costs to 1/64 s: sums of such times are exact in floating point."""
    each = (
        [round(64 * value) / 64 for value in values] for values in (costs.seconds, costs.collective, costs.transfer)
    )
    return OpCosts(*each)


def causes(pieces: list[Bubble]) -> dict[str, float]:
    return {cause: seconds for cause, seconds in totals(pieces, "cause").items() if seconds}


@settings(max_examples=40, deadline=None)
@given(plans())
def test_causes_and_phases_add_up_to_the_bubble_exactly(schedule: Schedule | InputError) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    costs = dyadic(OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))
    timing = simulate(schedule, costs)
    activity = Activity.of(schedule, timing)
    for pieces, rank in zip(bubbles(activity), breakdown(schedule, timing, costs), strict=True):
        bubble = rank.launch_stall + rank.free
        assert sum(totals(pieces, "cause").values()) == sum(totals(pieces, "phase").values()) == bubble
        assert all(piece.end > piece.start for piece in pieces)
        assert all(before.end <= after.start for before, after in pairwise(pieces))
        assert {piece.cause for piece in pieces} <= set(CAUSES) - {"overhead"}
        assert {piece.phase for piece in pieces} <= set(PHASES)


@settings(max_examples=40, deadline=None)
@given(RANDOMS, st.integers(1, 4))
def test_the_critical_path_fills_the_makespan_without_a_gap(random, pp) -> None:  # type: ignore[no-untyped-def]
    schedule = random_programs(random, random_shape(random, pp))
    costs = dyadic(random_costs(random, schedule))
    timing = simulate(schedule, costs)
    activity = Activity.of(schedule, timing)
    links = critical_path(activity).links
    total = makespan(schedule, timing)
    assert sum(link.seconds for link in links) == total
    assert all(before.end == after.start for before, after in pairwise(links))


@settings(max_examples=40, deadline=None)
@given(RANDOMS, st.integers(2, 4))
def test_what_is_longer_on_the_critical_path_makes_the_run_as_much_longer(random, pp) -> None:  # type: ignore[no-untyped-def]
    schedule = random_programs(random, random_shape(random, pp))
    costs = random_costs(random, schedule)
    timing = simulate(schedule, costs)
    path = critical_path(Activity.of(schedule, timing))
    for link in path.links:
        if link.doing is Doing.RUN:
            _, chunk, stage, *_ = schedule.programs[link.rank].row(link.instruction)
            slower = list(costs.seconds)
            slower[chunk * len(schedule.stages) + stage] += 0.125
            longer = simulate(schedule, replace(costs, seconds=slower))
            assert makespan(schedule, longer) == makespan(schedule, timing) + 0.125


@settings(max_examples=40, deadline=None)
@given(RANDOMS, st.integers(1, 4))
def test_roots_are_found_by_asking_at_every_moment(random, pp) -> None:  # type: ignore[no-untyped-def]
    schedule = random_programs(random, random_shape(random, pp))
    timing = simulate(schedule, random_costs(random, schedule))
    activity = Activity.of(schedule, timing)
    for rank, pieces in enumerate(bubbles(activity)):
        for piece in pieces:
            moment = (piece.start + piece.end) / 2
            assert root_at(activity, rank, moment) == (piece.root.rank, piece.root.span.doing)


def root_at(activity: Activity, rank: int, moment: float) -> tuple[int, Doing]:
    """What a rank's wait is because of, by looking at the instructions alone."""
    schedule, timing = activity.schedule, activity.timing
    for index, (start, end) in enumerate(zip(timing.starts[rank], timing.ends[rank], strict=True)):
        if not start <= moment < end:
            continue
        op, _, _, of, *_ = schedule.programs[rank].row(index)
        if op == FORWARD:
            return rank, Doing.RUN
        assert op == WAIT
        _, _, _, _, peer, channel = schedule.programs[rank].row(of)
        transfers = timing.transfers[[each.id for each in schedule.channels].index(channel)]
        mine = transfers.sends if schedule.programs[rank].row(of)[0] == SEND else transfers.recvs
        number = mine.index(of)
        if max(transfers.send_posted[number], transfers.recv_posted[number]) <= moment:
            return rank, Doing.TRANSFER
        return root_at(activity, peer, moment)
    return rank, Doing.DONE if moment >= timing.ends[rank][-1] else Doing.ARRIVAL


def test_a_prompt_that_is_given_up_has_no_drain_of_its_own() -> None:
    """Its last chunk would have been followed by another; only the last rank to compute it leaves others idle."""
    each = stream("vpp-packed", 2, Limits(chunk_size=8))
    each.compiler.add(Request("a", 8), 0.0)
    each.compiler.add(Request("b", 80), 0.0)
    each.advance(0.0)
    each.compiler.cancel("b", 0.1)
    activity = activity_of(each.close())
    first, second = bubbles(activity)
    assert causes(first) == pytest.approx({"fill": 0.1086, "imbalance": 0.0102})
    assert causes(second) == pytest.approx({"fill": 0.0648, "drain": 0.084})


def test_a_straight_pipeline_fills_waits_for_larger_chunks_and_drains() -> None:
    """Two ranks, two layers each, chunk k takes 2 (k + 1): rank 1 starts at 2 and waits 2 for each next chunk.

    Rank 0 ends at 12, and is idle while rank 1 runs the last chunk. Rank 1 waits from 2 + 2 = 4 to 6, 10 to 12.
    """
    activity = activity_of(paper("cpp", 3))
    rank0, rank1 = bubbles(activity)
    assert causes(rank0) == {"drain": 6.0}
    assert causes(rank1) == {"fill": 2.0, "imbalance": 4.0}
    assert totals(rank1, "phase") == {"warm-up": 2.0, "steady": 4.0, "drain": 0.0}
    assert totals(rank0, "phase") == {"warm-up": 0.0, "steady": 0.0, "drain": 6.0}


def test_between_prompts_a_barrier_drains_and_fills_and_packing_does_less() -> None:
    apart = bubbles(activity_of(paper("vpp-async", (4, 4))))
    packed = bubbles(activity_of(paper("vpp-packed", (4, 4))))
    assert set(causes(apart[1])) == {"fill", "drain"}
    assert sum(causes(packed[1]).values()) < sum(causes(apart[1]).values())


def test_a_late_request_is_waited_for_by_all_ranks() -> None:
    early = paper("cpp", (2, 2))
    late = replace(early, requests=(early.requests[0], replace(early.requests[1], arrival=50.0)))
    rank0, rank1 = bubbles(activity_of(late))
    assert causes(rank0)["request"] == 50.0 - 6.0
    assert causes(rank1)["request"] == 50.0 - 10.0
    assert causes(rank1)["fill"] == 2.0 + 2.0


def test_a_transfer_between_other_ranks_is_a_cause_of_its_own() -> None:
    """Three ranks, one chunk: rank 2 waits for both stages before it, and for the transfer that it is no end of."""
    rank2 = bubbles(activity_of(paper("cpp", 1, 3, transfer=0.5)))[2]
    assert causes(rank2) == {"fill": 2.0 + 2.0, "transfer": 0.5}


def test_time_between_instructions_is_overhead() -> None:
    schedule = paper("cpp", 2)
    timing = simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))
    starts = tuple([2 * each for each in rank] for rank in timing.starts)  # each begins late
    ends = tuple(
        [start + (end - before) for start, before, end in zip(late, rank, ends, strict=True)]
        for late, rank, ends in zip(starts, timing.starts, timing.ends, strict=True)
    )
    slow = Activity.of(schedule, replace(timing, starts=starts, ends=ends))
    assert causes(bubbles(slow)[0])["overhead"] > 0


def test_the_critical_path_of_a_straight_pipeline() -> None:
    """All of rank 0, then the last chunk over the link and on rank 1."""
    path = critical_path(activity_of(paper("cpp", 3, transfer=0.5)))
    assert [(link.doing, link.rank) for link in path.links] == [
        (Doing.RUN, 0),
        (Doing.RUN, 0),
        (Doing.RUN, 0),
        (Doing.TRANSFER, 1),
        (Doing.RUN, 1),
    ]
    assert (path.seconds(Doing.RUN, 0), path.seconds(Doing.TRANSFER), path.hand_overs) == (12.0, 0.5, 1)


def test_the_critical_path_does_not_turn_to_what_ends_just_as_it_is_needed() -> None:
    """A link that is free again as the next chunk is done, and a request that comes as a rank is done with another."""
    links = critical_path(activity_of(paper("cpp", 2, transfer=4.0))).links
    assert [(link.doing, link.rank) for link in links] == [
        (Doing.RUN, 0),
        (Doing.RUN, 0),
        (Doing.TRANSFER, 1),
        (Doing.RUN, 1),
    ]
    two = paper("cpp", (1, 2))
    punctual = replace(two, requests=(two.requests[0], replace(two.requests[1], arrival=2.0)))
    assert critical_path(activity_of(punctual)) == critical_path(activity_of(two))


def test_the_critical_path_waits_for_a_request() -> None:
    early = paper("cpp", (1, 1))
    late = replace(early, requests=(early.requests[0], replace(early.requests[1], arrival=50.0)))
    links = critical_path(activity_of(late)).links
    assert [(link.doing, link.seconds) for link in links] == [(Doing.ARRIVAL, 50.0), (Doing.RUN, 2.0), (Doing.RUN, 2.0)]


# What would help, and what the passes did


def cost_of(schedule: Schedule) -> CostModel:
    return parse_cost(schedule.extra["cost"])


def test_every_kind_of_change_is_tried_where_it_applies() -> None:
    schedule = deepseek("vpp", (40000, 30000), 8192)
    kinds = list(dict.fromkeys(change.kind for change, _ in changes(schedule, cost_of(schedule))))
    assert kinds == [
        "hiding transfers",
        "packing",
        "thinner stages",
        "less in flight",
        "more in flight",
        "chunk size",
        "taper",
        "layer split",
    ]
    straight = deepseek("cpp", (40000,), 8192)
    kinds = list(dict.fromkeys(change.kind for change, _ in changes(straight, cost_of(straight))))
    assert kinds == ["folding", "thinner stages", "chunk size", "taper", "layer split"]


def test_changed_schedules_are_proven_and_what_their_options_say() -> None:
    schedule = deepseek("vpp-async", (40000, 30000), 8192)
    for change, compiled in changes(schedule, cost_of(schedule)):
        changed = compiled()
        assert not check(changed)
        assert changed.requests == schedule.requests
        if change.how.startswith("--chunk-size"):
            size = int(change.how.split()[1])
            assert max(chunk.tokens for chunk in changed.chunks) == size
        if change.how.startswith("--layer-ranges"):
            counts = [last - first for first, last in (stage.layers for stage in changed.stages)]
            assert change.how.split()[1] == ",".join(map(str, counts))
        if change.kind == "taper":
            assert sum(chunk.tokens for chunk in changed.chunks) == 70000


def test_nothing_that_would_be_other_work_is_tried_of_requests_that_decode() -> None:
    """Chunks cut anew from the prompts would leave the tokens out, and a loop brings none back to rank 0."""
    whole = deepseek("vpp-async", (40000,), 8192)
    tokens = tuple(Chunk((Part(0, 40000 + index, 1, decode=True),)) for index in range(4))
    schedule = PlannedChunks((*whole.chunks, *tokens))(replace(whole, programs=(), certificate=None))
    for step in passes(Options(strategy="vpp-async", pp=2), cost_of(whole))[1:]:
        schedule = step(schedule)
    found = list(changes(schedule, cost_of(whole)))
    assert {change.kind for change, _ in found} == {"thinner stages", "less in flight", "more in flight", "layer split"}
    for _, compiled in found:
        changed = compiled()
        assert not check(changed)
        assert changed.chunks == schedule.chunks
    assert sweep_cases(schedule) == []


def test_the_prompt_of_a_cancelled_request_is_not_cut_anew() -> None:
    schedule = deepseek("vpp-async", (40000, 30000), 8192)
    cancelled = replace(schedule, extra={**schedule.extra, "cancelled": [1]})
    assert "chunk size" not in {change.kind for change, _ in changes(cancelled, cost_of(schedule))}
    assert sweep_cases(cancelled) == []


def test_a_split_by_costs_is_tried_as_compile_makes_it() -> None:
    schedule = deepseek("vpp-packed", (40000, 30000), 8192, pp=4)
    [split] = [
        each() for change, each in changes(schedule, cost_of(schedule)) if change.how == "--layer-split balanced"
    ]
    balanced = deepseek("vpp-packed", (40000, 30000), 8192, pp=4, split="balanced")
    assert (split.stages, split.programs) == (balanced.stages, balanced.programs)
    assert outcome(split, cost_of(schedule)).makespan < price(schedule).makespan


def test_a_trial_comes_to_what_compiling_it_comes_to() -> None:
    schedule = deepseek("vpp-async", (40000, 30000), 8192)
    found, refused = trials(schedule, cost_of(schedule))
    [packed] = [trial for trial in found if trial.change.kind == "packing"]
    assert packed.outcome.makespan == price(deepseek("vpp-packed", (40000, 30000), 8192)).makespan
    before = outcome(schedule, cost_of(schedule))
    assert before.makespan == price(schedule).makespan
    assert packed.gain_over(before) == before.makespan / packed.outcome.makespan - 1 > 0
    assert refused == ()
    assert [trial.outcome.makespan for trial in found] == sorted(trial.outcome.makespan for trial in found)


def test_free_transfers_leave_the_programs_as_they_are() -> None:
    schedule = paper("cpp", 3, transfer=0.5)
    assert outcome(schedule, cost_of(schedule)).makespan == 18.5
    assert with_free_transfers(schedule, cost_of(schedule)).makespan == 18.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_are_the_passes_of_the_compiler(strategy: str) -> None:
    schedule = deepseek(strategy, (40000, 30000), 8192)
    names = [step.name for step in steps(schedule, cost_of(schedule))]
    assert names[:2] == ["chunking", "layout"]
    assert names[-2:] == ["insert_transfers", "allocate_buffers"]
    assert steps(schedule, cost_of(schedule))[-1].makespan == price(schedule).makespan


def test_of_programs_that_the_passes_would_not_make_nothing_is_said_of_passes() -> None:
    schedule = deepseek("vpp-async", (40000,), 8192, max_in_flight=1)
    assert steps(schedule, cost_of(schedule)) == ()
    assert steps_text(()) + "\n" == NOT_THE_PASSES
    foreign = replace(schedule, strategy="mine")
    assert steps(foreign, cost_of(schedule)) == ()
    assert list(changes(foreign, cost_of(schedule)))  # they are compiled around its chunks and stages all the same


# The command


def explain(*arguments: str) -> str:
    shown = CliRunner().invoke(vppc, ["explain", *arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


def saved(folder: Path, schedule: Schedule) -> str:
    file = folder / "plan.json"
    file.write_text("".join(schedule_text(schedule)))
    return str(file)


def test_the_explanation_of_the_paper_s_ablation_reads_well(tmp_path: Path) -> None:
    file = saved(tmp_path, deepseek("vpp-async", (65536, 65536), 16384, 4))
    assert explain(file) == (GOLDEN / "explain.txt").read_text()


def test_what_would_help_is_said_to_be_of_no_known_memory_where_ranks_have_a_limit(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    said = "what these need of the memory that ranks have is not known here; vppc compile with the same --model says\n"
    options = ("--pp", "2", "--tokens", "64K", "--strategy", "cpp", "--model", "qwen3-8b", "--device", "h200")
    assert CliRunner().invoke(vppc, ["compile", *options, "-o", file]).exit_code == 0
    assert said in explain(file)
    assert said not in explain(saved(tmp_path, deepseek("cpp", (65536,), 16384, 2)))


def test_a_moment_follows_waits_from_rank_to_rank(tmp_path: Path) -> None:
    file = saved(tmp_path, paper("cpp", 2, 3, transfer=0.5))
    assert explain(file, "--at", "1s") == explain(file, "--at", "1000ms")
    assert explain(file, "--at", "1") == (
        "at 1 s of 15 s\n"
        "rank 0 runs C0 s0, from 0 s to 2 s\n"
        "rank 1 waits for the input of C0 s1 from rank 0, which runs C0 s0 until 2 s (fill, in the warm-up)\n"
        "rank 2 waits for the input of C0 s2 from rank 1, which waits for the input of C0 s1 from rank 0, which runs "
        "C0 s0 until 2 s (fill, in the warm-up)\n"
    )
    assert "rank 1 waits for the input of C0 s1 from rank 0, under way until 2.500 s" in explain(file, "--at", "2.25")
    assert "rank 0 has no work left" in explain(file, "--at", "12.5")


def test_a_request_that_has_not_come_is_waited_for_by_name(tmp_path: Path) -> None:
    schedule = paper("cpp", (2, 2))
    late = replace(schedule, requests=(schedule.requests[0], replace(schedule.requests[1], arrival=30.0)))
    assert explain(saved(tmp_path, replace(late, certificate=None)), "--at", "20").splitlines()[1:] == [
        "rank 0 waits for r1 to arrive until 30 s (request, in the steady state)",
        "rank 1 waits for the input of C2 s1 from rank 0, which waits for r1 to arrive until 30 s (request, in the "
        "steady state)",
    ]


def test_an_instruction_says_what_it_waited_for(tmp_path: Path) -> None:
    schedule = paper("cpp", 2, 2, transfer=0.5)
    file = saved(tmp_path, schedule)
    [wait] = [i for i, row in enumerate(schedule.programs[1].rows()) if row[0] == WAIT][:1]
    assert explain(file, "--instruction", f"1:{wait}").splitlines()[1:] == [
        "from 0 s to 2.500 s: 2.500 s",
        "the rank waited in it:",
        "  2 s (fill): waits for the input of C0 s1 from rank 0, which runs C0 s0 until 2 s",
        "  500.0 ms (exposed transfer): waits for the input of C0 s1 from rank 0, under way",
        "it is not on the critical path",
    ]
    assert "under way from 2 s to 2.500 s" in explain(file, "--instruction", "0:1")


def test_of_very_many_reasons_to_wait_the_first_are_told(tmp_path: Path) -> None:
    """One chunk out and back over eight ranks: the first waits for 14 stages on the others, one after another."""
    file = saved(tmp_path, paper("vpp-async", 1, 8))
    told = explain(file, "--instruction", "0:3").splitlines()
    assert told[3] == "  1 s (drain): waits for the input of C0 s15 from rank 1, which runs C0 s1 until 2 s"
    assert told[-2:] == ["  and 2 reasons more", "it is not on the critical path"]


def test_a_journal_is_explained_without_trials(tmp_path: Path) -> None:
    schedule = paper("vpp-async", 4)
    timing = simulate(schedule, OpCosts.of(schedule, cost_of(schedule)))
    folder = write_journal(tmp_path / "run", schedule, timing)
    text = explain(str(folder))
    assert "longest waits" in text
    assert "would help" not in text
    with pytest.raises(InputError, match="changes are tried of a schedule, not of a run"):
        vppc.main(["explain", str(folder), "--try"], standalone_mode=False)


def test_where_nothing_can_be_changed_that_is_said(tmp_path: Path) -> None:
    """One chunk in one stage: there is no other schedule. What its passes did is told as ever."""
    file = saved(tmp_path, made("cpp", (1,), 1, paper_cost(1, 1.0, 0.0), chunk_size=1))
    for options in ((), ("--try",)):
        text = explain(file, *options)
        assert "there is nothing to try\n\nwhat each pass did" in text
    assert "nothing to try" not in explain(file, "--no-try")


def test_a_placement_that_is_none_of_ours_is_not_changed(tmp_path: Path) -> None:
    """A straight pipeline from rank 1 to rank 0."""
    schedule = paper("cpp", 2, 2)
    first, second = schedule.stages
    turned = replace(
        schedule,
        stages=(replace(first, rank=1), replace(second, rank=0)),
        channels=(Channel(0, 1, 0),),
        programs=(),
        certificate=None,
        order=Order(((1, 3), (0, 2))),
    )
    assert explain(saved(tmp_path, lower(turned))).endswith(f"\n\nthere is nothing to try\n\n{NOT_THE_PASSES}")


def test_what_cannot_be_changed_is_named(tmp_path: Path) -> None:
    """Four stages need four layers; and no strategy of the name cpp has two stages a rank."""
    thin = made("cpp", (2,), 2, paper_cost(3, 1.0, 0.0), chunk_size=1)
    assert "\nnot possible here: folding\n\nwhat each pass did\n" in explain(saved(tmp_path, thin))
    misnamed = replace(paper("vpp-async", 4), strategy="cpp")
    told = "\nnot possible here: less in flight, more in flight, layer split\n\n"
    assert explain(saved(tmp_path, misnamed)).endswith(told + NOT_THE_PASSES)


@pytest.mark.parametrize(("pp", "moves"), [(33, 64), (34, 0)])
def test_layers_are_not_moved_between_very_many_stages(pp: int, moves: int) -> None:
    schedule = paper("cpp", 1, pp)
    splits = [change.how for change, _ in changes(schedule, cost_of(schedule)) if change.kind == "layer split"]
    assert len(splits) == moves + 1
    assert splits[0] == "--layer-split balanced"


def test_of_very_many_operations_changes_are_tried_only_when_asked_for(tmp_path: Path) -> None:
    file = saved(tmp_path, made("cpp", (10_001,), 1, paper_cost(1, 1.0, 0.0), chunk_size=1))
    text = explain(file)
    assert text.endswith("\n\nchanges are tried of up to 10,000 operations; --try tries them here, too\n")


def test_a_schedule_that_is_called_journal_is_none(tmp_path: Path) -> None:
    file = saved(tmp_path, replace(paper("vpp-async", 4), strategy="journal"))
    assert "would help" in explain(file, "--try")


def test_json_has_the_same_numbers(tmp_path: Path) -> None:
    schedule = deepseek("vpp", (40000,), 8192)
    document = json.loads(explain(saved(tmp_path, schedule), "--json"))
    for rank, priced in zip(document["ranks"], price(schedule).ranks, strict=True):
        bubble = pytest.approx(priced.launch_stall + priced.free)
        assert sum(rank["causes"].values()) == sum(rank["phases"].values()) == bubble
        assert sum(piece["end"] - piece["start"] for piece in rank["bubbles"]) == bubble
    assert sum(link["end"] - link["start"] for link in document["critical_path"]) == pytest.approx(document["makespan"])
    assert document["as_it_is"]["makespan"] == price(schedule).makespan
    assert {change["kind"] for change in document["changes"]} >= {"taper", "chunk size"}
    assert document["passes"][0]["pass"] == "chunking"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "99s"), "the run is over after 18 s"),
        (("--at", "soon"), "'soon' is not a time, such as 1.5 (seconds), 1.5s, 20ms, 300us or 40ns"),
        (("--instruction", "2:0"), "ranks 0 to 1"),
        (("--instruction", "0:999"), "rank 0 has no instruction 999"),
        (("--instruction", "zero"), "a rank and an index: 1:17"),
        (("--at", "1", "--instruction", "0:1"), "give one of --at and --instruction"),
    ],
    ids=["late", "no time", "no rank", "no instruction", "no place", "both"],
)
def test_bad_places_are_refused(
    options: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["explain", saved(tmp_path, paper("cpp", 3)), *options])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_long_chain_of_waits_names_its_ends(tmp_path: Path) -> None:
    told = explain(saved(tmp_path, paper("cpp", 1, 6)), "--at", "1").splitlines()
    assert told[4] == (
        "rank 3 waits for the input of C0 s3 from rank 2, which waits for the input of C0 s2 from rank 1, which waits "
        "for the input of C0 s1 from rank 0, which runs C0 s0 until 2 s (fill, in the warm-up)"
    )
    assert told[6] == (
        "rank 5 waits for the input of C0 s5 from rank 4, which waits through 3 ranks for rank 0, which runs C0 s0 "
        "until 2 s (fill, in the warm-up)"
    )


@settings(max_examples=15, deadline=None)
@given(plans(max_pp=3))
def test_any_plan_can_be_explained(schedule: Schedule | InputError) -> None:
    assume(isinstance(schedule, Schedule))
    assert isinstance(schedule, Schedule)
    activity = activity_of(schedule)
    pieces, path = bubbles(activity), critical_path(activity)
    for rank, program in enumerate(schedule.programs):
        for index in range(len(program)):
            assert instruction_text(activity, pieces, path, rank, index).startswith(f"rank {rank}: {index} ")
    for moment in (0.0, 0.3, 1.0):
        told = moment_text(activity, pieces, moment * (activity.end - activity.start)).splitlines()
        assert len(told) == schedule.pp + 1
    assert bubbles_text(activity, pieces) + waits_text(activity, pieces) + path_text(activity, path, None, None)
