"""Layer splits: which layers each stage holds, and the notations in which engines are told.

A split is the half-open layer range of every stage, in the order in which a chunk visits the stages:

=============================  ==========================================================================
notation                       example, 61 layers
=============================  ==========================================================================
flat list (JSON)               ``[[0,16],[16,31],[31,46],[46,61]]``: a range a stage, in stage order
``vpp_layer_ranges`` (JSON)    ``[[[0,16],[46,61]],[[16,31],[31,46]]]``: for each rank, its stages' ranges
``VLLM_PP_LAYER_PARTITION``,   ``31,30``: how many layers each stage has, in stage order
``SGLANG_PP_LAYER_PARTITION``
=============================  ==========================================================================

What a user gives is checked: every stage has layers, each begins where the one before ends, and together they
are the model. A cover of the model in another order would run, and compute something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from vppc.errors import InputError
from vppc.ir.placement import stage_ranks

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""The layers of every stage as [first, last), in stage order."""

_FORMS = "give [first, last) ranges as JSON, flat or by rank, or layer counts such as 31,30"


def upstream_split(layers: int, stages: int) -> Ranges:
    """The split of vLLM-Ascend's virtual pipeline: the first stages get one layer more.

    Raises InputError when there are more stages than layers.
    """
    base, more = _share(layers, stages)
    return _ranges(base + (stage < more) for stage in range(stages))


def vllm_split(layers: int, stages: int) -> Ranges:
    """vLLM's own split: the stages just before the last get one layer more (the last one has the head).

    Raises InputError when there are more stages than layers.
    """
    base, more = _share(layers, stages)
    return _ranges(base + (stages - 1 - more <= stage < stages - 1) for stage in range(stages))


SPLITS: Mapping[str, Callable[[int, int], Ranges]] = {"vllm": vllm_split, "upstream": upstream_split}
"""The splits by name; each takes (layers, stages)."""


def read_ranges(text: str, ranks: Sequence[int], layers: int) -> Ranges:
    """The split that a user wrote, in any of the notations, for stages on ``ranks`` (the rank of every stage).

    Raises InputError that says which stage or place is wrong and what is expected there.
    """
    text = text.strip()
    if not text:
        raise InputError("the layer split is empty", remedy=_FORMS)
    ranges = _read_json(text, ranks) if text.startswith(("[", "{")) else _read_counts(text, ranks)
    return check_ranges(ranges, ranks, layers)


def check_ranges(ranges: Ranges, ranks: Sequence[int], layers: int) -> Ranges:
    """The same ranges, when stage after stage they are layers 0 to ``layers`` of the model.

    Raises InputError for a wrong number of ranges, for one that is empty, backwards or outside the model, for
    a gap or an overlap, and for a cover in another order than the stages'.
    """
    if len(ranges) != len(ranks):
        raise InputError(
            f"{_count(len(ranges), 'layer range')} for {_count(len(ranks), 'stage')}",
            remedy="give each stage one [first, last) range, in the order in which a chunk visits the stages",
        )
    for stage, (first, last) in enumerate(ranges):
        _check_alone(first, last, layers, _stage(stage, ranks))
    expected = 0
    for stage, (first, last) in enumerate(ranges):
        if first != expected:
            raise _misplaced(ranges, ranks, layers, stage)
        expected = last
    if expected != layers:
        missing = _span(expected, layers)
        raise InputError(
            f"ends at layer {expected}, but the model has {_count(layers, 'layer')}: {missing} left out",
            place=_stage(len(ranges) - 1, ranks),
            remedy=f"end the last stage at {layers}",
        )
    return ranges


def write_flat(ranges: Ranges) -> str:
    """The ranges in stage order as JSON. Says nothing of ranks, so it suits every placement."""
    return _json(ranges)


def write_vpp_layer_ranges(ranges: Ranges, ranks: Sequence[int]) -> str:
    """vLLM-Ascend's ``vpp_layer_ranges``: for each rank the ranges of its stages, in visiting order, as JSON.

    Raises InputError for stages that do not fold back: an engine that reads it takes them to.
    """
    pp = len(set(ranks))
    vp = len(ranks) // pp
    if tuple(ranks) != stage_ranks("zigzag" if vp > 1 else "straight", pp, vp):
        raise InputError(
            "vpp_layer_ranges cannot express this placement: an engine reads a rank's ranges as a fold-back, "
            "even ones on the way out and odd ones on the way back",
            remedy="use placement v or zigzag, or write the flat list of ranges",
        )
    return _json([r for r, rank in zip(ranges, ranks, strict=True) if rank == mine] for mine in range(pp))


def write_partition(ranges: Ranges, ranks: Sequence[int]) -> str:
    """The layer counts for ``VLLM_PP_LAYER_PARTITION`` or ``SGLANG_PP_LAYER_PARTITION``.

    Raises InputError for more than one stage a rank, which a count a rank cannot name.
    """
    if tuple(ranks) != tuple(range(len(ranks))):
        raise InputError(
            "a layer partition cannot express more than one stage a rank: an engine reads one count a rank, "
            "of consecutive layers",
            remedy="write vpp_layer_ranges or the flat list of ranges, or use placement straight",
        )
    return ",".join(str(last - first) for first, last in ranges)


def _share(layers: int, stages: int) -> tuple[int, int]:
    """How many layers every stage gets, and how many stages get one more."""
    if layers < stages:
        raise InputError(
            f"{_count(stages, 'stage')} cannot share {_count(layers, 'layer')}: each needs at least one",
            remedy="use fewer ranks or fewer stages a rank (vp)",
        )
    return divmod(layers, stages)


def _ranges(counts: Iterable[int]) -> Ranges:
    return tuple(pairwise([0, *accumulate(counts)]))


def _check_alone(first: int, last: int, layers: int, place: str) -> None:
    problem = ""
    if first == last:
        problem = f"layers [{first}, {last}) are none: every stage needs at least one"
    elif first > last:
        problem = f"layers [{first}, {last}) run backwards"
    elif first < 0 or last > layers:
        problem = f"layers [{first}, {last}) are not all in the model, which has [0, {layers})"
    if problem:
        raise InputError(
            problem, place=place, remedy="a range is [first, last): from its first layer up to, not with, last"
        )


def _misplaced(ranges: Ranges, ranks: Sequence[int], layers: int, stage: int) -> InputError:
    """The error for a stage that does not begin where the one before it ends (the first: at layer 0)."""
    first, last = ranges[stage]
    expected = ranges[stage - 1][1] if stage else 0
    place = _stage(stage, ranks)
    cover = [(0, 0), *sorted(ranges)]
    if cover[-1][1] == layers and all(before[1] == after[0] for before, after in pairwise(cover)):
        return InputError(
            f"begins at layer {first} where {expected} is expected: the ranges cover the model, but not in the order "
            "in which a chunk visits the stages",
            place=place,
            remedy=f"in stage order they are {write_flat(tuple(cover[1:]))}",
        )
    before = f"stage {stage - 1} ends at layer {expected}" if stage else "the model begins at layer 0"
    wrong = f"{_span(expected, first)} left out" if first > expected else f"{_span(first, min(last, expected))} twice"
    return InputError(
        f"begins at layer {first}, but {before}: {wrong}", place=place, remedy=f"begin this stage at layer {expected}"
    )


def _read_counts(text: str, ranks: Sequence[int]) -> Ranges:
    counts = [_layer_count(item.strip(), stage) for stage, item in enumerate(text.split(","))]
    if len(counts) != len(ranks):
        raise InputError(
            f"{_count(len(counts), 'layer count')} for {_count(len(ranks), 'stage')}",
            remedy="give one count a stage, in the order in which a chunk visits the stages",
        )
    return _ranges(counts)


def _layer_count(item: str, stage: int) -> int:
    try:
        count = int(item)
    except ValueError:
        raise InputError(
            f"layer count {_short(item)} is not an integer", place=f"stage {stage}", remedy=_FORMS
        ) from None
    if count < 1:
        raise InputError(
            f"layer count {count} is not positive",
            place=f"stage {stage}",
            remedy="every stage needs at least one layer",
        )
    return count


def _read_json(text: str, ranks: Sequence[int]) -> Ranges:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the layer ranges are not JSON: {error}", remedy=_FORMS) from None
    if not isinstance(rows, list) or not rows:
        raise InputError("the layer ranges are not a list of ranges", remedy=_FORMS)
    if any(isinstance(item, list) for row in rows if isinstance(row, list) for item in row):
        return _by_rank(rows, ranks)
    return tuple(_pair(row, f"[{i}]") for i, row in enumerate(rows))


def _by_rank(rows: list[Any], ranks: Sequence[int]) -> Ranges:
    """The ranges in stage order, from a list of ranges for each rank."""
    pp = len(set(ranks))
    if len(rows) != pp:
        raise InputError(
            f"layer ranges of {_count(len(rows), 'rank')}, but there are {pp}", remedy="give one list of ranges a rank"
        )
    unread = []
    for rank, row in enumerate(rows):
        stages = [stage for stage, its_rank in enumerate(ranks) if its_rank == rank]
        if not isinstance(row, list) or len(row) != len(stages):
            found = _count(len(row), "layer range") if isinstance(row, list) else _short(row)
            raise InputError(
                f"{found} where rank {rank} holds {_count(len(stages), 'stage')} ({', '.join(map(str, stages))})",
                place=f"[{rank}]",
                remedy="give each of its stages a [first, last) range; where two stages meet at the fold, split there",
            )
        unread.append(iter([_pair(pair, f"[{rank}][{i}]") for i, pair in enumerate(row)]))
    return tuple(next(unread[rank]) for rank in ranks)


def _pair(value: Any, place: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(item) is int for item in value):
        raise InputError(
            f"{_short(value)} is not a [first, last) pair of layer numbers", place=place, remedy="for example [0, 16]"
        )
    return value[0], value[1]


def _json(value: Iterable[Any]) -> str:
    return json.dumps(list(value), separators=(",", ":"))


def _stage(stage: int, ranks: Sequence[int]) -> str:
    return f"stage {stage} (rank {ranks[stage]})"


def _span(first: int, last: int) -> str:
    return f"layer {first}" if last == first + 1 else f"layers [{first}, {last})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(value: Any) -> str:
    """A value as it is shown in a message: its beginning, when it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
