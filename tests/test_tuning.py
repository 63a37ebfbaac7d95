"""Tuned schedules as a user gets them: better than any fixed chunk, ordinary, within what was asked, and bounded."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime.vllm_plugin.settings import Fold, read_settings
from vppc.analysis.memory import Memory, known_memory, loads_of, memory_line
from vppc.analysis.report import predict
from vppc.cli import vppc
from vppc.compiler import compile_schedule
from vppc.costs.devices import GIB, find_device
from vppc.costs.document import read_cost
from vppc.costs.model import CostModel, LayerCost, Linear, OpCosts, ideal_seconds
from vppc.costs.roofline import roofline_cost
from vppc.errors import CheckFailed, InputError
from vppc.ir.document import parse_schedule, schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.partition import write_vpp_layer_ranges
from vppc.ir.rules import check
from vppc.ir.schedule import Model, Request, Schedule
from vppc.models import ModelSpec, load_model
from vppc.models.payload import payload_bytes, widest_payload
from vppc.models.weights import Sharding
from vppc.passes.strategies import Options
from vppc.render.tuning import tuning_text
from vppc.tuning.beside import beside
from vppc.tuning.bounds import best_possible
from vppc.tuning.engines import Setting, engine_settings
from vppc.tuning.exact import best_order
from vppc.tuning.prices import Prices
from vppc.tuning.robust import World
from vppc.tuning.room import Room
from vppc.tuning.search import Search
from vppc.tuning.tune import Task, Tuned, advice, finished, placements, proven, steps, tune
from vppc.tuning.workload import Limits, Workload

COST_FILE = str(Path(__file__).resolve().parents[1] / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")
MODEL = Model("m", 61)
SIZES = (4096, 8192, 12288, 16384, 24576, 32768)


@pytest.fixture(scope="module")
def cost() -> CostModel:
    return read_cost(COST_FILE)


@pytest.fixture(scope="module")
def long_prompt(cost: CostModel) -> Tuned:
    return tune(Task(requests=(Request("r", 131072),), cost=cost, model=MODEL, pp=2, placement="v"))[0]


def best_fixed(cost: CostModel, tokens: int, pp: int, sizes: Sequence[int] = SIZES) -> float:
    """The makespan of vpp-async at its best fixed chunk."""
    return min(
        predict(
            compile_schedule(
                (Request("r", tokens),), MODEL, cost, Options(strategy="vpp-async", pp=pp, chunk_size=size)
            ),
            cost,
        ).makespan
        for size in sizes
    )


def test_a_long_prompt_beats_annealing_and_every_fixed_chunk(cost: CostModel, long_prompt: Tuned) -> None:
    assert long_prompt.report.efficiency > 0.905
    assert best_fixed(cost, 131072, 2) / long_prompt.report.makespan > 1.035


def test_four_ranks_beat_annealing(cost: CostModel) -> None:
    [tuned] = tune(Task(requests=(Request("r", 131072),), cost=cost, model=MODEL, pp=4, placement="v"))
    assert tuned.report.efficiency > 0.804


def test_sixteen_ranks_are_tuned_like_two(cost: CostModel) -> None:
    [tuned] = tune(Task(requests=(Request("r", 65536),), cost=cost, model=MODEL, pp=16, placement="v", effort=0.1))
    assert check(tuned.schedule) == ()
    assert best_fixed(cost, 65536, 16, sizes=(2048, 4096)) / tuned.report.makespan > 1.06


def test_all_placements_of_sixteen_ranks_are_tuned(cost: CostModel) -> None:
    results = tune(Task(requests=(Request("r", 16384),), cost=cost, model=MODEL, pp=16, effort=0.1))
    assert {(tuned.placement, tuned.vp) for tuned in results} >= {("straight", 1), ("v", 2), ("zigzag", 3)}
    assert all(check(tuned.schedule) == () for tuned in results)
    assert results[0].report.makespan < 0.9 * next(t for t in results if t.placement == "straight").report.makespan


def test_thinner_stages_are_better_for_short_prompts(cost: CostModel) -> None:
    [tuned] = tune(Task(requests=(Request("r", 65536),), cost=cost, model=MODEL, pp=2, placement="loop", vp=6))
    assert tuned.report.efficiency > 0.87
    assert tuned.bound <= tuned.report.makespan


def test_a_tuned_schedule_is_an_ordinary_one_and_keeps_the_search_s_time(long_prompt: Tuned) -> None:
    schedule = parse_schedule("".join(schedule_text(long_prompt.schedule)))
    assert check(schedule) == ()
    assert schedule.strategy == "tuned"
    assert long_prompt.found.point.value == pytest.approx(long_prompt.report.makespan, rel=1e-9)
    assert schedule.extra["prediction"]["makespan"] == long_prompt.report.makespan
    assert long_prompt.bound <= long_prompt.report.bound.seconds <= long_prompt.report.makespan * (1 + 1e-9)


def test_a_prompt_that_fits_into_one_chunk_is_cut_where_that_helps(cost: CostModel) -> None:
    """One chunk of 32K keeps one rank busy at a time: half the ideal at most, and less with what a chunk costs."""
    [tuned] = tune(Task(requests=(Request("r", 32768),), cost=cost, model=MODEL, pp=2, placement="v", effort=0.1))
    assert len(tuned.schedule.chunks) > 2
    assert tuned.report.efficiency > 0.7


def test_what_engines_can_be_told_and_why_not_the_rest(cost: CostModel, long_prompt: Tuned) -> None:
    told = {(each.engine, each.name): each for each in engine_settings(long_prompt.schedule)}
    ranges = write_vpp_layer_ranges(long_prompt.ranges, (0, 1, 1, 0))
    assert told["vLLM-Ascend", "vpp_layer_ranges"] == Setting("vLLM-Ascend", "vpp_layer_ranges", ranges)
    assert told["vLLM", "VLLM_PP_LAYER_PARTITION"].refusal.startswith("a layer partition cannot express more than one")
    assert "an engine knows one size" in told["SGLang", "--chunked-prefill-size"].refusal
    options = Options(strategy="cpp", pp=2, chunk_size=8192)
    filled = compile_schedule((Request("a", 20000), Request("b", 8193)), MODEL, cost, options)
    assert engine_settings(filled)[1].refusal == (
        "a prompt ends in a chunk of 3616 tokens, which an engine fills up with the next prompt"
    )
    equal = compile_schedule((Request("a", 16384), Request("b", 8193)), MODEL, cost, options)
    told = {(each.engine, each.name): each for each in engine_settings(equal)}
    assert told["vLLM", "VLLM_PP_LAYER_PARTITION"].value == told["SGLang", "SGLANG_PP_LAYER_PARTITION"].value
    assert told["vLLM", "--max-num-batched-tokens"].value == "8192"
    assert told["vLLM-Ascend", "vpp_layer_ranges"].refusal.endswith("into two stages, and these are 1")
    batched = compile_schedule((Request("a", 200), Request("b", 300)), MODEL, cost, replace(options, token_budget=4096))
    assert "hold several prompts" in engine_settings(batched)[1].refusal


def test_vllm_with_the_plugin_is_told_layers_and_chunks(long_prompt: Tuned, cost: CostModel) -> None:
    """The value goes through a shell, and through what the plugin reads it with."""
    told = engine_settings(long_prompt.schedule, "it's.json")[-1]
    config, *rest = shlex.split(told.value)
    assert rest == ["-pp", "2", "--max-num-batched-tokens", str(max(c.tokens for c in long_prompt.schedule.chunks))]
    fold = read_settings(json.loads(config))
    assert isinstance(fold, Fold)
    assert (fold.strategy, fold.chunks) == ("vpp-async", "it's.json")
    assert fold.ranges == tuple(
        tuple(long_prompt.ranges[stage] for stage in mine) for mine in long_prompt.schedule.rank_stages
    )
    straight = compile_schedule((Request("a", 9),), MODEL, cost, Options(strategy="cpp", pp=2))
    assert engine_settings(straight)[-1].refusal.endswith("these are 1 on 2: tune with --placement v")


def test_a_plan_is_held_against_strategies_with_one_chunk_size(cost: CostModel, long_prompt: Tuned) -> None:
    task = Task(requests=(Request("r", 131072),), cost=cost, model=MODEL, pp=2, placement="v")
    plain, folded, own = beside(task, long_prompt)
    assert [each.name for each in (plain, folded, own)] == ["cpp", "vpp-async", "vpp-async, these stages"]
    assert folded.outcome.makespan <= best_fixed(cost, 131072, 2)
    assert own.outcome.case.options.ranges == long_prompt.ranges
    told = folded.json(long_prompt.report)
    assert told["gain"] == told["makespan"] / long_prompt.report.makespan - 1
    assert long_prompt.report.makespan < own.outcome.makespan < plain.outcome.makespan


def test_where_chunks_cost_little_there_are_many_and_one_size_is_no_quicker() -> None:
    """The finest cutting that is looked at first has 10 chunks here; the best has about 60."""
    cheap = CostModel((LayerCost(16, fixed=5e-4, per_token=1e-5, per_pair=1e-10),), name="cheap")
    task = Task(requests=(Request("r", 65536),), cost=cheap, model=Model("m", 16), pp=4, placement="straight")
    [tuned] = tune(replace(task, effort=0.1))
    others = beside(task, tuned)
    assert len(tuned.schedule.chunks) > 30
    assert all(tuned.report.makespan < other.outcome.makespan for other in others if other.outcome.case.options.vp == 1)
    assert "is quicker than what was found" not in tuning_text([tuned], others[:1], [])
    slow = replace(tuned, report=replace(tuned.report, makespan=1e3))
    assert "cpp is quicker than what was found: use it, or search longer (--effort)" in tuning_text([slow], others, [])


def test_a_longer_time_to_first_token_is_named(cost: CostModel) -> None:
    task = Task(requests=(Request("a", 32768), Request("b", 2048)), cost=cost, model=MODEL, pp=2, effort=0.1)
    [tuned] = tune(replace(task, placement="straight"))
    others = beside(task, tuned)
    for ttft, named in ((99.0, True), (0.1, False)):
        shown = tuning_text([replace(tuned, report=replace(tuned.report, ttft=(ttft, ttft)))], others, [])
        assert ("longer than of cpp: see --objective both, or ttft" in shown) == named


@pytest.mark.parametrize(
    ("world", "meaning"),
    [
        (World("", noise=0.03), "chunks take 3% more or less, at random"),
        (World("", slow=1, slowdown=0.05), "rank 1 is 5% slower"),
        (World("", slope=0.8), "attention grows 20% less steeply with the prefix"),
        (World("", slope=1.2), "attention grows 20% more steeply with the prefix"),
        (World("", interference=0.1), "compute is slowed down by 10% beside transfers"),
    ],
)
def test_worlds_are_said_in_words(world: World, meaning: str) -> None:
    assert world.meaning == meaning


def test_short_prompts_share_chunks_where_that_helps(cost: CostModel) -> None:
    """A chunk costs 143 ms in 61 layers whatever it holds, so that forty short prompts apart take 3 s a rank."""
    requests = tuple(Request(f"r{index}", 100 + index) for index in range(40))
    task = Task(requests=requests, cost=cost, model=MODEL, pp=2, placement="v", share=0.02, effort=0.1)
    [apart], [together] = tune(replace(task, token_budget=0)), tune(task)
    assert len(apart.schedule.chunks) == 40
    assert len(together.schedule.chunks) < 20
    assert together.report.makespan < 0.5 * apart.report.makespan
    with pytest.raises(InputError, match="40000 tokens are more than a chunk may have"):
        replace(task, token_budget=40000)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("deepseek-v3.1")


def on_devices(model: ModelSpec, gib: float) -> Task:
    """A quarter of a million tokens of DeepSeek-V3.1 on two ranks of eight NPUs with so much memory."""
    device = replace(find_device("910c"), memory=round(gib * GIB))
    memory = Memory(model, device, Sharding(8, 8), "w8a8", payload_bytes(widest_payload(model, tp=8), 8))
    cost = roofline_cost(model, find_device("910c"), tp=8, ep=8, weight_dtype="w8a8")
    prompts = (Request("r", 262144),)
    return Task(requests=prompts, cost=cost, model=MODEL, pp=2, placement="v", memory=memory, effort=0.1)


def test_tuned_schedules_keep_to_the_memory(model: ModelSpec) -> None:
    """With less memory chunks have to be shorter, and every rank still fits."""
    needs = []
    for gib in (64.0, 55.0):
        task = on_devices(model, gib)
        assert task.memory is not None
        [tuned] = tune(task)
        needs.append([task.memory.of(load).free for load in loads_of(tuned.schedule)])
        assert min(needs[-1]) >= 0
    [free] = tune(replace(on_devices(model, 55.0), memory=None))
    tight = on_devices(model, 55.0).memory
    assert tight is not None
    assert min(tight.of(load).free for load in loads_of(free.schedule)) < 0  # the limit did matter


def test_more_memory_is_no_slower(model: ModelSpec) -> None:
    """Whatever fits into less memory fits into more. Searches are local ones, which leaves them a thousandth."""
    seconds = [tune(on_devices(model, gib))[0].report.makespan for gib in (54.5, 55.0, 57.0, 64.0)]
    assert all(more <= 1.001 * less for less, more in pairwise(seconds))


def test_shorter_chunks_than_fit_leave_room_for_better_layers(model: ModelSpec) -> None:
    """Chunks as long as fit at all allow one split only; with shorter ones layers lie better."""
    task = on_devices(model, 54.5)
    assert task.memory is not None
    [tuned] = tune(task)
    assert min(task.memory.of(load).free for load in loads_of(tuned.schedule)) >= 0
    ranks = tuned.schedule.stage_ranks
    room = Room.at_best(task.memory, Workload.of(task.requests, task.limits), ranks)
    longest = room.longest_chunk(task.limits, ranks, None)
    assert max(chunk.tokens for chunk in tuned.schedule.chunks) <= 0.75 * longest
    [as_long_as_fit] = tune(replace(task, vp=2, ranges=room.shorter(longest).split(ranks)))
    assert max(chunk.tokens for chunk in as_long_as_fit.schedule.chunks) > 0.8 * longest
    assert tuned.report.makespan < 0.99 * as_long_as_fit.report.makespan


def test_too_little_memory_is_refused_with_what_would_fit(model: ModelSpec) -> None:
    with pytest.raises(CheckFailed, match=r"into 30\.00 GiB a device") as refused:
        tune(on_devices(model, 30.0))
    [finding] = refused.value.findings
    assert "GiB (--memory)" in finding.remedy
    assert "ranks (--pp)" in finding.remedy


def test_a_plan_that_turns_out_not_to_fit_is_refused_with_what_would(model: ModelSpec) -> None:
    """Two buffers do fit, but prompts of several chunks need more; and on 61 ranks no more ranks can help."""
    prompts = tuple(Request(f"r{index}", 8192) for index in range(3))
    tight = replace(on_devices(model, 29.56), pp=3, requests=prompts, limits=Limits(4096, 4096))
    with pytest.raises(CheckFailed) as refused:
        tune(tight)
    [finding] = refused.value.findings
    assert finding.problem == "no chunks and layers were found with which 3 ranks fit into 29.56 GiB a device"
    assert finding.remedy == (
        "fewer chunks in flight (--max-in-flight), or shorter ones (--max-chunk); or 4 ranks (--pp)"
    )
    assert len(tune(replace(tight, limits=Limits(2048)))) == 1
    none = replace(tight, memory=on_devices(model, 0.5).memory, pp=61, placement="straight")
    with pytest.raises(CheckFailed, match=r"a plan with two buffers and chunks of 4096 tokens needs 3\.81 GiB \(--mem"):
        tune(none)


def test_placements_that_so_few_buffers_do_not_run_are_left_out() -> None:
    cost = CostModel((LayerCost(8, 1e-4, 1e-6),), transfer=Linear(1e-4, 1e-8))
    prompts = (Request("a", 1000), Request("b", 1000))
    task = Task(requests=prompts, cost=cost, model=Model("m", 8), pp=2, effort=0.1, max_buffers=2)
    results = tune(task)
    assert {"straight", "v"} <= {tuned.placement for tuned in results} < {"straight", "v", "zigzag", "loop"}
    assert all(program.buffers <= 2 for tuned in results for program in tuned.schedule.programs)
    with pytest.raises(InputError, match="no way found to run this order with 2 buffers a rank without a deadlock"):
        tune(replace(task, placement="zigzag"))


@pytest.mark.parametrize(("placement", "vp", "least"), [("v", 2, 0.6895), ("loop", 6, 0.813)])
def test_quick_searches_find_good_basins(cost: CostModel, placement: str, vp: int, least: float) -> None:
    """From even layers, behind at first and ahead once layers were moved; from stages that are thin at both ends."""
    workload = Workload.of([Request("r", 65536)], Limits())
    search = Search(Prices.of(cost), workload, placement, 4, vp)
    [found] = search.run(quick=True)
    assert ideal_seconds(cost, workload.requests, 4) / found.point.value > least


def test_a_glance_is_enough_for_very_many_chunks(cost: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for millions of tokens: filling and draining hardly count, so that hardly anything is left to search for."""
    monkeypatch.setattr("vppc.tuning.search._TOO_MANY", 1000)
    task = Task(requests=(Request("r", 262144),), cost=cost, model=MODEL, pp=2, placement="v", limits=Limits(1024))
    best: list[str] = []
    [tuned] = tune(task, best.append)
    assert len(tuned.schedule.chunks) >= 256
    assert tuned.gap < 0.01
    assert best[0].startswith("best ")


def test_searches_repeat_themselves(cost: CostModel) -> None:
    def found() -> object:
        workload = Workload.of([Request("r", 40000)], Limits())
        return Search(Prices.of(cost), workload, "v", 2, 2, effort=0.3).run()

    assert found() == found()


def test_chunks_and_layers_keep_to_what_was_asked(cost: CostModel) -> None:
    ranges = ((0, 20), (20, 30), (30, 40), (40, 61))
    task = Task(
        requests=(Request("r", 50001, 1000),),
        cost=cost,
        model=MODEL,
        pp=2,
        placement="v",
        ranges=ranges,
        limits=Limits(8000, 1000, 128),
        max_in_flight=2,
        max_buffers=3,
        effort=0.3,
    )
    [tuned] = tune(task)
    assert tuned.ranges == ranges
    sizes = [chunk.tokens for chunk in tuned.schedule.chunks]
    assert sum(sizes) == 49001
    assert max(sizes) <= 8000
    assert min(sizes) >= 1000
    assert all(size % 128 == 0 for size in sizes[:-1])
    assert max(program.buffers for program in tuned.schedule.programs) <= 3
    assert check(tuned.schedule) == ()


def test_a_queue_of_mixed_prompts_comes_near_its_bound(cost: CostModel) -> None:
    lengths = (7, 122710, 905, 42870, 13604, 90112, 1763, 30001)
    requests = tuple(Request(f"r{index}", tokens) for index, tokens in enumerate(lengths))
    [tuned] = tune(Task(requests=requests, cost=cost, model=MODEL, pp=2, placement="v", share=0.02))
    assert tuned.report.gap < 0.02
    assert tuned.report.ttft[0] is not None
    assert tuned.report.ttft[0] < 0.5 * tuned.report.makespan  # throughput is not bought with the first tokens


def test_ttft_is_better_when_it_is_the_goal(cost: CostModel) -> None:
    requests = (Request("a", 40000), Request("b", 20000, 0, 0.5), Request("c", 50000))

    def mean_ttft(share: float) -> float:
        task = Task(requests=requests, cost=cost, model=MODEL, pp=2, placement="v", share=share, effort=0.3)
        ttft = tune(task)[0].report.ttft
        return sum(seconds for seconds in ttft if seconds is not None) / 3

    assert mean_ttft(1.0) < mean_ttft(0.0)


def test_robust_choices_lose_no_more(cost: CostModel) -> None:
    task = Task(requests=(Request("r", 60000),), cost=cost, model=MODEL, pp=2, placement="v", effort=0.3)
    [plain], [robust] = tune(task), tune(replace(task, robust=True))
    assert robust.robustness.score <= plain.robustness.score
    assert robust.value == robust.robustness.score


def test_the_solver_s_bound_is_kept(cost: CostModel) -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    task = Task(requests=(Request("r", 30000),), cost=cost, model=MODEL, pp=2, placement="v", effort=0.3)
    tuned = proven(task, tune(task)[0], 5.0)
    assert tuned.exact is not None
    assert tuned.exact <= tuned.report.makespan * (1 + 1e-9)


@pytest.mark.parametrize(("vp", "buffers"), [(4, None), (6, 3)])
def test_a_solver_s_order_is_taken_where_it_is_better_with_the_buffers_that_there_are(
    cost: CostModel, vp: int, buffers: int | None
) -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    prompts = tuple(Request(f"r{index}", 6666 + 64 * index) for index in range(3))
    quick = Task(requests=prompts, cost=cost, model=MODEL, pp=2, placement="zigzag", effort=0.1, max_buffers=buffers)
    [tuned] = tune(replace(quick, vp=vp))
    better = proven(quick, tuned, 20.0)
    assert better.exact is not None
    if buffers is None:
        assert better.report.makespan < 0.9995 * tuned.report.makespan
        assert better.report.makespan == pytest.approx(better.exact, rel=1e-4)
    else:
        assert better == replace(tuned, exact=better.exact)


def test_the_solver_may_find_nothing_or_not_be_there(long_prompt: Tuned) -> None:
    schedule, costs = long_prompt.schedule, OpCosts.of(long_prompt.schedule, read_cost(COST_FILE))
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "ortools.sat.python", None)
        with pytest.raises(InputError, match=r"needs OR-Tools, which is not installed\n.*pip install 'vppc\[exact\]'"):
            best_order(schedule, costs, 1.0)
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    with pytest.raises(InputError, match=r"--exact: no order was found in 1e-09 s\n  hint: allow more seconds"):
        best_order(schedule, costs, long_prompt.report.makespan, 1e-9)


def in_flight(schedule: Schedule) -> int:
    """The most chunks that rank 0 has let in and not seen leave."""
    leaves = schedule.rank_stages[0][-1]
    now = most = 0
    for op, _, stage, *_ in schedule.programs[0].rows():
        if op == FORWARD:
            now += stage == 0
            most = max(most, now)
            now -= stage == leaves
    return most


def test_the_solver_lets_no_more_chunks_in_than_was_asked(cost: CostModel) -> None:
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    task = Task(
        requests=(Request("r", 30000),), cost=cost, model=MODEL, pp=2, placement="v", effort=0.1, max_in_flight=2
    )
    tuned = proven(task, tune(task)[0], 10.0)
    assert in_flight(tuned.schedule) == 2
    assert "no order of these chunks with 2 in flight is quicker than" in tuning_text([tuned], [], [])


def test_an_order_of_the_solver_s_has_to_fit(cost: CostModel, model: ModelSpec) -> None:
    """That of three prompts is quicker, and here there is memory for none."""
    pytest.importorskip("ortools", reason="the extra exact is not installed")
    prompts = tuple(Request(f"r{index}", 6666 + 64 * index) for index in range(3))
    task = Task(requests=prompts, cost=cost, model=MODEL, pp=2, placement="zigzag", vp=4, effort=0.1)
    [tuned] = tune(task)
    free = proven(task, tuned, 20.0)
    assert free.report.makespan < tuned.report.makespan
    memory = on_devices(model, 64.0).memory
    assert memory is not None
    tight = replace(task, memory=replace(memory, device=replace(memory.device, memory=1)))
    assert proven(tight, tuned, 20.0) == replace(tuned, exact=free.exact)


def test_all_costs_together_are_compiled(cost: CostModel) -> None:
    busy = replace(cost, launch=0.01, interference=0.2, embed=Linear(0.01, 1e-7), head=Linear(0.02, 0.0))
    [tuned] = tune(Task(requests=(Request("r", 30000),), cost=busy, model=MODEL, pp=2, placement="v", effort=0.3))
    assert tuned.found.point.value == pytest.approx(tuned.report.makespan, rel=0.05)  # interference is estimated


def test_it_says_when_not_to_pipeline(cost: CostModel) -> None:
    task = Task(requests=(Request("r", 100),), cost=cost, model=MODEL, pp=2, effort=0.1)
    done: list[str] = []
    results = tune(task, done.append)
    assert len(done) == steps(task)
    assert all(words.startswith("best ") for words in done)  # a plan from the first, short search on
    assert {tuned.placement for tuned in results} == {"straight", "v", "zigzag", "loop"}
    sentences = list(advice(task, results))
    assert sentences[0].startswith("Do not use pipeline parallelism for this: one rank alone")


def test_one_rank_is_no_advice_where_it_cannot_hold_the_model(model: ModelSpec) -> None:
    task = replace(on_devices(model, 60.0), requests=(Request("r", 100),), placement="straight")
    results = tune(task)
    assert not list(advice(task, results))
    sentences = list(advice(replace(task, memory=None), results))
    assert sentences[0].startswith("Do not use pipeline parallelism for this: one rank alone")


def test_late_prompts_say_nothing_for_one_rank_or_against_it(cost: CostModel) -> None:
    """The second one comes after 100 s, on whichever ranks; on two it is done sooner, if it is long."""
    task = Task(requests=(Request("a", 65536), Request("b", 65536, 0, 100.0)), cost=cost, model=MODEL, pp=2)
    quick = replace(task, placement="v", effort=0.1)
    assert not list(advice(quick, tune(quick)))
    short = replace(quick, requests=(Request("a", 100), Request("b", 100, 0, 100.0)))
    [sentence] = advice(short, tune(short))
    assert "one rank alone with all layers would need 100.1 s, 2 ranks need 100.1 s" in sentence


def test_limits_that_leave_no_way_are_refused(cost: CostModel) -> None:
    task = Task(requests=(Request("r", 110),), cost=cost, model=MODEL, pp=2)
    with pytest.raises(InputError, match="no chunks of 90 to 100 tokens add up to a prompt of 110"):
        replace(task, limits=Limits(100, 90, 1))
    endless = replace(task, requests=(Request("r", 2**31 - 1),))
    assert ("v", 2) in placements(replace(endless, limits=Limits(2048)))
    assert placements(replace(endless, limits=Limits(1024))) == [("straight", 1)]
    with pytest.raises(InputError, match=r"the prompts make 4,194,304 chunks at least, and 2 ranks run 2,097,152 at"):
        placements(replace(endless, limits=Limits(512)))


def test_the_bound_is_of_all_chunks_that_were_allowed(cost: CostModel) -> None:
    """Also where a search had shorter ones, as within a memory."""
    task = Task(requests=(Request("r", 30000),), cost=cost, model=MODEL, pp=2)
    prices = Prices.of(cost)
    [found] = Search(prices, Workload.of(task.requests, Limits(2048)), "v", 2, 2).run(quick=True)
    tuned = finished(task, prices, found)
    every = Workload.of(task.requests, task.limits)
    assert tuned.bound == best_possible(prices, every, tuned.schedule.stage_ranks, tuned.ranges)


def test_a_second_best_straight_placement_is_named() -> None:
    cost = CostModel((LayerCost(4, 1e-3, 1e-6),), transfer=Linear(2e-4, 1e-8))
    task = Task(requests=(Request("r", 1000),), cost=cost, model=Model("m", 4), pp=2, effort=0.1)
    assert [*advice(task, tune(task))][-1] == (
        "One stage a rank (straight) is within 1% of the best here: more stages a rank are not worth their transfers "
        "and buffers."
    )


def test_placements_that_do_not_fit_are_left_out(cost: CostModel) -> None:
    task = Task(requests=(Request("r", 1),), cost=cost, model=MODEL, pp=20)
    assert placements(task) == [("straight", 1), ("v", 2), ("zigzag", 3), ("loop", 2), ("loop", 3)]
    assert steps(task) == 5 + 4  # each looked at shortly, and the best of each placement in full
    assert placements(replace(task, pp=16)) == placements(task)
    assert placements(replace(task, pp=1)) == [("straight", 1)]
    with pytest.raises(InputError, match="61 layers on 62 ranks"):
        placements(replace(task, pp=62))
    with pytest.raises(InputError, match="layer ranges are of one placement"):
        replace(task, ranges=((0, 61),))
    with pytest.raises(InputError, match="there is nothing to prefill"):
        replace(task, requests=())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(vppc, ["tune", *arguments])


def test_the_command_writes_a_schedule_and_prints_the_gaps(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    quick = ("--pp", "2", "--tokens", "20000", "--cost", COST_FILE, "--placement", "v", "--effort", "0.1")
    shown = run(*quick, "-o", str(plan))
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("placement  vp  chunks  makespan  efficiency  to any order  to any chunking")
    assert "no chunking on these stages is quicker than" in shown.output
    assert f'"chunks": "{plan}"' in shown.output
    assert "where attention grows 20% more steeply with the prefix" in shown.output
    verified = CliRunner().invoke(vppc, ["verify", str(plan)])
    assert "proven" in verified.output
    told = json.loads(run(*quick, "--json").output)
    assert told["placements"][0]["makespan"] == parse_schedule(plan.read_text()).extra["prediction"]["makespan"]
    assert {"chunks", "layers", "gap_to_any_chunking", "robustness", "lower_bound"} <= told["placements"][0].keys()


def test_the_command_lets_short_prompts_share_a_chunk_unless_it_is_told_not_to() -> None:
    quick = ("--pp", "2", "--tokens", "100", "--tokens", "100", "--cost", COST_FILE, "--placement", "v", "--json")
    [together], [apart] = (
        json.loads(run(*quick, "--effort", "0.1", *more).output)["placements"] for more in ((), ("--token-budget", "0"))
    )
    assert (together["chunks"], apart["chunks"]) == ([200], [100, 100])


@pytest.mark.parametrize(
    ("layers", "refused"),
    [({}, True), ({"per_prefix_token": 1e-3}, True), ({"collective_fixed": 1e-6}, False)],
    ids=["nothing", "a prefix", "a collective"],
)
def test_costs_of_nothing_leave_nothing_to_tune(tmp_path: Path, layers: dict[str, float], refused: bool) -> None:
    document = {"format": "vppc.cost", "version": 1, "layers": [{"count": 8, **layers}], "transfer": {"latency": 0.1}}
    (tmp_path / "cost.json").write_text(json.dumps(document))
    quick = ("--pp", "2", "--tokens", "200", "--placement", "v", "--effort", "0.1")
    shown = run(*quick, "--cost", str(tmp_path / "cost.json"))
    if refused:
        assert isinstance(shown.exception, InputError)
        assert (
            shown.exception.problem
            == "by these costs a prompt's first chunk takes no time, so there is nothing to tune"
        )
    else:
        assert shown.exit_code == 0, shown.output


def test_strategies_that_are_refused_are_named_beside_the_plan(tmp_path: Path) -> None:
    """Four layers fill three ranks once, not twice."""
    document = {"format": "vppc.cost", "version": 1, "layers": [{"count": 4, "per_token": 1e-5}]}
    (tmp_path / "cost.json").write_text(json.dumps(document))
    quick = ("--pp", "3", "--tokens", "300", "--cost", str(tmp_path / "cost.json"), "--effort", "0.1")
    refusal = (
        "6 stages cannot share 4 layers: each needs at least one\n  hint: use fewer ranks or fewer stages a rank (vp)"
    )
    assert f"\nvpp-async is refused: {refusal}\n" in run(*quick).output
    told = json.loads(run(*quick, "--json").output)
    assert {"strategy": "vpp-async", "refused": refusal} in told["beside"]


def test_the_command_keeps_to_a_memory_and_writes_what_ranks_take(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    model = ("--model", "deepseek-v3.1", "--tp", "8", "--ep", "8", "--weight-dtype", "w8a8", "--placement", "v")
    shown = run("--pp", "2", "--tokens", "4096", *model, "--memory", "60", "--effort", "0.1", "-o", str(plan))
    assert shown.exit_code == 0, shown.output
    memories = [program.extra["memory"] for program in parse_schedule(plan.read_text()).programs]
    assert [memory["limit"] for memory in memories] == [60 * GIB, 60 * GIB]
    [line] = [line for line in shown.output.splitlines() if "needs most memory" in line]
    assert line == memory_line(known_memory(parse_schedule(plan.read_text())))
    assert line in CliRunner().invoke(vppc, ["simulate", str(plan)]).output
    refused = run("--pp", "2", "--tokens", "4096", *model, "--memory", "20")
    assert isinstance(refused.exception, CheckFailed)
    assert "2 ranks fit into 20.00 GiB a device" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--pp", "2", "--cost", COST_FILE), "--tokens"),
        (("--pp", "2", "--tokens", "9"), "--cost"),
        (("--pp", "2", "--tokens", "9", "--cost", COST_FILE, "--layer-ranges", "31,30"), "--placement"),
        (("--pp", "2", "--tokens", "9", "--cost", COST_FILE, "--placement", "v", "--layer-ranges", "31"), "4 stages"),
        (("--pp", "2", "--tokens", "9", "--cost", COST_FILE, "--placement", "v", "--vp", "3"), "vp 2"),
        (("--pp", "2", "--tokens", "9", "--cost", COST_FILE, "--max-chunk", "10"), "--max-chunk"),
        (("--pp", "2", "--tokens", "9", "--cost", COST_FILE, "--memory", "40"), "--model"),
    ],
)
def test_bad_usage_names_what_is_wrong(arguments: tuple[str, ...], named: str) -> None:
    shown = run(*arguments)
    assert isinstance(shown.exception, InputError)
    assert named in str(shown.exception)
