from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate, pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.errors import InputError
from vppc.ir.partition import (
    Ranges,
    check_ranges,
    read_ranges,
    upstream_split,
    vllm_split,
    write_flat,
    write_partition,
    write_vpp_layer_ranges,
)
from vppc.ir.placement import stage_ranks
from vppc.ir.schedule import Channel, Model, Schedule, Stage
from vppc.passes.layout import Layout

V2 = stage_ranks("v", 2, 2)
CONTRACT = ((0, 16), (16, 31), (31, 46), (46, 61))


def counts(ranges: Ranges) -> list[int]:
    return [last - first for first, last in ranges]


def laid_out(placement: str, pp: int, vp: int, layers: int = 61, **how: Any) -> Schedule:
    return Layout(placement, vp, **how)(Schedule("vpp", Model("m", layers), pp, 1))


@st.composite
def placements(draw: st.DrawFn) -> tuple[int, ...]:
    placement = draw(st.sampled_from(["straight", "v", "zigzag", "loop"]))
    vp = {"straight": 1, "v": 2}.get(placement) or draw(st.integers(2, 5))
    return stage_ranks(placement, draw(st.integers(1, 5)), vp)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Ranges, tuple[int, ...], int]:
    ranks = draw(placements())
    ends = list(accumulate(draw(st.lists(st.integers(1, 9), min_size=len(ranks), max_size=len(ranks)))))
    return tuple(pairwise([0, *ends])), ranks, ends[-1]


class TestSplits:
    @pytest.mark.parametrize(
        ("layers", "stages", "expected"),
        [
            (61, 2, [31, 30]),
            (61, 4, [15, 15, 16, 15]),
            (78, 4, [19, 20, 20, 19]),
            (63, 4, [16, 16, 16, 15]),
            (30, 4, [7, 8, 8, 7]),
            (10, 3, [3, 4, 3]),
            (60, 4, [15, 15, 15, 15]),
            (61, 1, [61]),
            (3, 3, [1, 1, 1]),
        ],
    )
    def test_vllm(self, layers: int, stages: int, expected: list[int]) -> None:
        assert counts(vllm_split(layers, stages)) == expected

    @pytest.mark.parametrize(
        ("layers", "stages", "expected"),
        [
            (61, 4, [16, 15, 15, 15]),
            (61, 8, [8, 8, 8, 8, 8, 7, 7, 7]),
            (30, 4, [8, 8, 7, 7]),
            (10, 3, [4, 3, 3]),
            (8, 4, [2, 2, 2, 2]),
            (1, 1, [1]),
        ],
    )
    def test_upstream(self, layers: int, stages: int, expected: list[int]) -> None:
        assert counts(upstream_split(layers, stages)) == expected

    def test_against_dealing_layers_one_by_one(self) -> None:
        for layers, stages in product(range(1, 40), range(1, 12)):
            if layers < stages:
                continue
            first, before_last = [0] * stages, [0] * stages
            for layer in range(layers):
                first[layer % stages] += 1
                # whole rounds, then what is left from the last but one stage backwards
                before_last[layer % stages if layer < layers // stages * stages else -2 - layer % stages] += 1
            assert counts(upstream_split(layers, stages)) == first
            assert counts(vllm_split(layers, stages)) == before_last

    @pytest.mark.parametrize("split", [vllm_split, upstream_split])
    def test_refuses_more_stages_than_layers(self, split: Callable[[int, int], Ranges]) -> None:
        with pytest.raises(InputError) as error:
            split(5, 8)
        assert str(error.value) == (
            "8 stages cannot share 5 layers: each needs at least one\n"
            "  hint: use fewer ranks or fewer stages a rank (vp)"
        )


class TestNotations:
    def test_the_contracts_example_in_all_of_them(self) -> None:
        by_rank = "[[[0,16],[46,61]],[[16,31],[31,46]]]"
        flat = "[[0,16],[16,31],[31,46],[46,61]]"
        for text in (by_rank, flat, "16,15,15,15", " 16, 15, 15, 15\n", json.dumps(json.loads(by_rank), indent=2)):
            assert read_ranges(text, V2, 61) == CONTRACT
        assert write_vpp_layer_ranges(CONTRACT, V2) == by_rank
        assert write_flat(CONTRACT) == flat

    def test_a_partition_of_engines(self) -> None:
        split = read_ranges("31,30", (0, 1), 61)
        assert split == ((0, 31), (31, 61))
        assert write_partition(split, (0, 1)) == "31,30"
        assert write_vpp_layer_ranges(split, (0, 1)) == "[[[0,31]],[[31,61]]]"
        assert write_partition(((0, 61),), (0,)) == "61"

    @given(splits())
    def test_round_trips(self, split: tuple[Ranges, tuple[int, ...], int]) -> None:
        ranges, ranks, layers = split
        assert read_ranges(write_flat(ranges), ranks, layers) == ranges
        assert read_ranges(",".join(map(str, counts(ranges))), ranks, layers) == ranges
        vp = len(ranks) // len(set(ranks))
        if vp == 1:
            assert read_ranges(write_partition(ranges, ranks), ranks, layers) == ranges
        if vp == 1 or ranks == stage_ranks("zigzag", len(set(ranks)), vp):
            assert read_ranges(write_vpp_layer_ranges(ranges, ranks), ranks, layers) == ranges

    def test_a_partition_cannot_name_stages_of_one_rank(self) -> None:
        with pytest.raises(InputError) as error:
            write_partition(CONTRACT, V2)
        assert str(error.value) == (
            "a layer partition cannot express more than one stage a rank: an engine reads one count a rank, "
            "of consecutive layers\n"
            "  hint: write vpp_layer_ranges or the flat list of ranges, or use placement straight"
        )

    def test_vpp_layer_ranges_cannot_name_a_loop(self) -> None:
        with pytest.raises(InputError) as error:
            write_vpp_layer_ranges(CONTRACT, stage_ranks("loop", 2, 2))
        assert str(error.value) == (
            "vpp_layer_ranges cannot express this placement: an engine reads a rank's ranges as a fold-back, "
            "even ones on the way out and odd ones on the way back\n"
            "  hint: use placement v or zigzag, or write the flat list of ranges"
        )

    def test_ranges_by_rank_are_read_for_a_loop(self) -> None:
        assert read_ranges("[[[0,2],[4,6]],[[2,4],[6,8]]]", stage_ranks("loop", 2, 2), 8) == (
            (0, 2),
            (2, 4),
            (4, 6),
            (6, 8),
        )


FORMS = "give [first, last) ranges as JSON, flat or by rank, or layer counts such as 31,30"
A_RANGE = "a range is [first, last): from its first layer up to, not with, last"
ONE_EACH = "give each stage one [first, last) range, in the order in which a chunk visits the stages"
SPLIT_FOLD = "give each of its stages a [first, last) range; where two stages meet at the fold, split there"

REFUSALS = {
    "nothing": ("  ", "the layer split is empty", FORMS),
    "truncated": (
        "[[0,16],[16",
        "the layer ranges are not JSON: Expecting ',' delimiter: line 1 column 12 (char 11)",
        FORMS,
    ),
    "an object": ('{"0": [0, 61]}', "the layer ranges are not a list of ranges", FORMS),
    "no range": ("[]", "the layer ranges are not a list of ranges", FORMS),
    "a number for a range": (
        "[[0,16],16,[31,46],[46,61]]",
        "[1]: 16 is not a [first, last) pair of layer numbers",
        "for example [0, 16]",
    ),
    "three numbers": (
        "[[0,16,31],[31,40],[40,46],[46,61]]",
        "[0]: [0, 16, 31] is not a [first, last) pair of layer numbers",
        "for example [0, 16]",
    ),
    "a fraction": (
        "[[[0,16.5],[46,61]],[[16,31],[31,46]]]",
        "[0][0]: [0, 16.5] is not a [first, last) pair of layer numbers",
        "for example [0, 16]",
    ),
    "a boolean": (
        "[[[0,16],[46,61]],[[16,31],[31,true]]]",
        "[1][1]: [31, true] is not a [first, last) pair of layer numbers",
        "for example [0, 16]",
    ),
    "NaN": (
        "[[NaN,16],[16,31],[31,46],[46,61]]",
        "[0]: [NaN, 16] is not a [first, last) pair of layer numbers",
        "for example [0, 16]",
    ),
    "text": (
        '[["a very long text that nobody needs to read to its end",16],[16,31],[31,46],[46,61]]',
        '[0]: ["a very long text that nobody needs ... is not a [first, last) pair of layer numbers',
        "for example [0, 16]",
    ),
    "too few ranges": ("[[0,31],[31,61]]", "2 layer ranges for 4 stages", ONE_EACH),
    "too many ranges": ("[[0,9],[9,16],[16,31],[31,46],[46,61]]", "5 layer ranges for 4 stages", ONE_EACH),
    "too few ranks": (
        "[[[0,16],[46,61]]]",
        "layer ranges of 1 rank, but there are 2",
        "give one list of ranges a rank",
    ),
    "too many ranks": (
        "[[[0,16],[46,61]],[[16,31],[31,46]],[[0,1]]]",
        "layer ranges of 3 ranks, but there are 2",
        "give one list of ranges a rank",
    ),
    "merged at the fold": (
        "[[[0,16],[46,61]],[[16,46]]]",
        "[1]: 1 layer range where rank 1 holds 2 stages (1, 2)",
        SPLIT_FOLD,
    ),
    "a rank without a list": (
        "[[[0,16],[46,61]],7]",
        "[1]: 7 where rank 1 holds 2 stages (1, 2)",
        SPLIT_FOLD,
    ),
    "an empty stage": (
        "[[0,16],[16,16],[16,46],[46,61]]",
        "stage 1 (rank 1): layers [16, 16) are none: every stage needs at least one",
        A_RANGE,
    ),
    "backwards": ("[[0,16],[31,16],[31,46],[46,61]]", "stage 1 (rank 1): layers [31, 16) run backwards", A_RANGE),
    "before the model": (
        "[[-1,16],[16,31],[31,46],[46,61]]",
        "stage 0 (rank 0): layers [-1, 16) are not all in the model, which has [0, 61)",
        A_RANGE,
    ),
    "behind the model": (
        "[[0,16],[16,31],[31,46],[46,62]]",
        "stage 3 (rank 0): layers [46, 62) are not all in the model, which has [0, 61)",
        A_RANGE,
    ),
    "a gap": (
        "[[0,16],[17,31],[31,46],[46,61]]",
        "stage 1 (rank 1): begins at layer 17, but stage 0 ends at layer 16: layer 16 left out",
        "begin this stage at layer 16",
    ),
    "an overlap": (
        "[[0,16],[16,31],[29,46],[46,61]]",
        "stage 2 (rank 1): begins at layer 29, but stage 1 ends at layer 31: layers [29, 31) twice",
        "begin this stage at layer 31",
    ),
    "a stage inside another": (
        "[[0,31],[16,20],[20,46],[46,61]]",
        "stage 1 (rank 1): begins at layer 16, but stage 0 ends at layer 31: layers [16, 20) twice",
        "begin this stage at layer 31",
    ),
    "first layers dropped": (
        "[[3,16],[16,31],[31,46],[46,61]]",
        "stage 0 (rank 0): begins at layer 3, but the model begins at layer 0: layers [0, 3) left out",
        "begin this stage at layer 0",
    ),
    "last layer dropped": (
        "[[0,16],[16,31],[31,46],[46,60]]",
        "stage 3 (rank 0): ends at layer 60, but the model has 61 layers: layer 60 left out",
        "end the last stage at 61",
    ),
    "permuted": (
        "[[[0,16],[16,31]],[[31,46],[46,61]]]",
        "stage 1 (rank 1): begins at layer 31 where 16 is expected: the ranges cover the model, but not in the order "
        "in which a chunk visits the stages",
        "in stage order they are [[0,16],[16,31],[31,46],[46,61]]",
    ),
    "the wrong number of counts": (
        "31,30",
        "2 layer counts for 4 stages",
        "give one count a stage, in the order in which a chunk visits the stages",
    ),
    "a count that is no number": ("16,15,,30", 'stage 2: layer count "" is not an integer', FORMS),
    "a count of none": ("31,0,15,15", "stage 1: layer count 0 is not positive", "every stage needs at least one layer"),
    "counts of fewer layers": (
        "15,15,15,15",
        "stage 3 (rank 0): ends at layer 60, but the model has 61 layers: layer 60 left out",
        "end the last stage at 61",
    ),
    "counts of more layers": (
        "16,15,15,16",
        "stage 3 (rank 0): layers [46, 62) are not all in the model, which has [0, 61)",
        A_RANGE,
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("case", REFUSALS)
    def test_says_what_is_wrong_where(self, case: str) -> None:
        text, problem, remedy = REFUSALS[case]
        with pytest.raises(InputError) as error:
            read_ranges(text, V2, 61)
        assert str(error.value) == f"{problem}\n  hint: {remedy}"

    @pytest.mark.parametrize("text", ["[" * 100_000, "[[0," + "9" * 5000 + "]]", "9" * 5000, "\x00", "[[0,61]]]"])
    def test_hostile_text_is_one_message(self, text: str) -> None:
        with pytest.raises(InputError):
            read_ranges(text, V2, 61)

    @settings(max_examples=300)
    @given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), min_size=1, max_size=3), st.integers(1, 4))
    def test_accepts_just_what_runs_every_layer_once_in_order(self, pairs: list[tuple[int, int]], layers: int) -> None:
        run = [layer for first, last in pairs for layer in range(first, last)]
        right = run == list(range(layers)) and all(first < last for first, last in pairs)
        ranges, ranks = tuple(pairs), tuple(range(len(pairs)))
        if right:
            assert check_ranges(ranges, ranks, layers) == ranges
        else:
            with pytest.raises(InputError):
                check_ranges(ranges, ranks, layers)


class TestLayout:
    def test_the_contracts_example(self) -> None:
        schedule = laid_out("v", 2, 2)
        assert schedule.vp == 2
        assert schedule.stages == tuple(Stage(s, rank, CONTRACT[s]) for s, rank in enumerate((0, 1, 1, 0)))
        assert schedule.channels == (Channel(0, 0, 1), Channel(1, 1, 0))

    def test_straight(self) -> None:
        schedule = laid_out("straight", 4, 1)
        assert [stage.rank for stage in schedule.stages] == [0, 1, 2, 3]
        assert counts(tuple(stage.layers for stage in schedule.stages)) == [15, 15, 16, 15]
        assert schedule.channels == (Channel(0, 0, 1), Channel(1, 1, 2), Channel(2, 2, 3))

    def test_the_v_of_three_ranks_has_both_directions_of_both_pairs(self) -> None:
        schedule = laid_out("v", 3, 2)
        assert schedule.stage_ranks == (0, 1, 2, 2, 1, 0)
        assert [(c.src, c.dst) for c in schedule.channels] == [(0, 1), (1, 2), (2, 1), (1, 0)]

    def test_a_loop_goes_on_from_the_last_rank_to_the_first(self) -> None:
        assert [(c.src, c.dst) for c in laid_out("loop", 3, 2).channels] == [(0, 1), (1, 2), (2, 0)]

    @pytest.mark.parametrize(("placement", "vp"), [("straight", 1), ("v", 2), ("zigzag", 4), ("loop", 3)])
    def test_one_rank_needs_no_channel(self, placement: str, vp: int) -> None:
        schedule = laid_out(placement, 1, vp)
        assert schedule.channels == ()
        assert schedule.stage_ranks == (0,) * vp

    def test_own_ranges_and_named_splits(self) -> None:
        own = ((0, 10), (10, 31), (31, 52), (52, 61))
        assert tuple(stage.layers for stage in laid_out("v", 2, 2, ranges=own).stages) == own
        assert counts(tuple(s.layers for s in laid_out("v", 2, 2, split="vllm").stages)) == [15, 15, 16, 15]
        assert counts(tuple(s.layers for s in laid_out("straight", 4, 1, split="upstream").stages)) == [16, 15, 15, 15]

    @given(
        st.sampled_from(["straight", "v", "zigzag", "loop"]), st.integers(1, 16), st.integers(2, 6), st.integers(1, 99)
    )
    def test_any_size(self, placement: str, pp: int, vp: int, layers: int) -> None:
        vp = {"straight": 1, "v": 2}.get(placement, vp)
        if layers < pp * vp:
            with pytest.raises(InputError, match="cannot share"):
                laid_out(placement, pp, vp, layers)
            return
        schedule = laid_out(placement, pp, vp, layers)
        assert [layer for s in schedule.stages for layer in range(*s.layers)] == list(range(layers))
        assert [len(stages) for stages in schedule.rank_stages] == [vp] * pp
        ranks = schedule.stage_ranks
        passed = {(a, b) for a, b in pairwise(ranks) if a != b}
        assert {(c.src, c.dst) for c in schedule.channels} == passed
        assert [c.id for c in schedule.channels] == list(range(len(passed)))

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            (
                {"split": "even"},
                "unknown layer split 'even'\n  hint: choose one of vllm, upstream, or give layer ranges",
            ),
            (
                {"split": "vllm", "ranges": CONTRACT},
                "both layer ranges and the layer split vllm\n  hint: give one of the two",
            ),
            ({"ranges": CONTRACT[:3]}, f"3 layer ranges for 4 stages\n  hint: {ONE_EACH}"),
        ],
    )
    def test_refuses(self, how: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            laid_out("v", 2, 2, **how)
        assert str(error.value) == message

    def test_refuses_no_ranks(self) -> None:
        with pytest.raises(InputError, match="0 pipeline ranks"):
            laid_out("v", 0, 2)
