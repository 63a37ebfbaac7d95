"""What would make a plan fit that does not: smaller chunks, fewer buffers, other layer ranges, whole experts, and if
none of them will do, what must change about the plan itself.

Every remedy is computed with the same sums as the refusal and changes nothing else. A plan compiled anew may run
further ahead, so that twice the buffers are reckoned with. Fewer buffers are only an offer: an order that runs far
ahead may deadlock with them. Layer ranges are searched for (first fit, with the largest margin that a bisection
finds), so that "found none" is not a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vppc.analysis.memory import Memory, RankLoad
from vppc.costs.devices import MULTIPLIED
from vppc.errors import InputError
from vppc.ir.partition import Ranges
from vppc.models.payload import payload_bytes, widest_payload
from vppc.models.weights import WEIGHT_BYTES

Loads = tuple[RankLoad, ...]

_ALIGN = 128
_FEWEST_BUFFERS = 2
_MORE_BUFFERS = 2


def remedies(memory: Memory, loads: Loads, stage_ranks: Sequence[int], prompts: Sequence[int]) -> str:
    """The hint of a refusal: every change of one thing that would fit, or what else would have to change."""
    tokens, longest = max(load.chunk_tokens for load in loads), max(prompts, default=0)
    anew = tuple(replace(load, buffers=_MORE_BUFFERS * load.buffers) for load in loads)
    alone = [
        _smaller_chunks(memory, anew, tokens, longest),
        _fewer_buffers(memory, loads),
        _fewer_residents(memory, anew, longest) if len(prompts) > 1 else None,
        _other_ranges(memory, anew, stage_ranks),
        _expert_parallel(memory, anew),
    ]
    found = [remedy for remedy in alone if remedy]
    if found:
        return "; or ".join(found)
    together = _together(memory, loads, stage_ranks, longest)
    if together:
        return f"no one change is enough, but together: {together}"
    bigger = [
        _smaller_weights(memory, anew),
        _more_devices(memory, anew),
        _more_ranks(memory, anew),
        _shorter_prompts(memory, anew),
    ]
    text = "; or ".join(remedy for remedy in bigger if remedy)
    searched = "no chunk size, run-ahead or layer ranges were found that fit, nor all of them together"
    return f"{searched}. Would fit: {text}" if text else f"{searched}; share the model over more devices (--tp, --pp)"


def balanced_ranges(memory: Memory, loads: Loads, stage_ranks: Sequence[int]) -> Ranges | None:
    """Layer ranges with which all ranks fit, with as much left on each as can be found, or None."""
    layers = memory.spec.layers
    room = {}
    cost = {}
    for load in loads:
        cost[load.rank] = memory.layer_bytes(load.kv_tokens)
        used = memory.of(load)
        room[load.rank] = used.free + sum(sum(cost[load.rank][first:last]) for first, last in load.ranges)

    def at(margin: int) -> Ranges | None:
        return _first_fit(cost, {rank: left - margin for rank, left in room.items()}, stage_ranks, layers)

    best = at(0)
    low, high = 0, max(room.values())
    while best is not None and high - low > 2**20:
        middle = (low + high) // 2
        ranges = at(middle)
        if ranges is None:
            high = middle
        else:
            best, low = ranges, middle
    if best is None or not _fits(memory, _with_ranges(loads, best, stage_ranks)):
        return None
    return best


def _first_fit(
    cost: dict[int, list[int]], room: dict[int, int], stage_ranks: Sequence[int], layers: int
) -> Ranges | None:
    """Stages filled in order, each with its share of what its rank has left, a layer kept for each that follows."""
    room = dict(room)
    ranges = []
    start = 0
    for stage, rank in enumerate(stage_ranks):
        later = stage_ranks[stage + 1 :]
        share = room[rank] // (1 + sum(other == rank for other in later))
        end = start + 1
        spent = cost[rank][start]
        while end < layers - len(later) and (not later or spent + cost[rank][end] <= share):
            spent += cost[rank][end]
            end += 1
        room[rank] -= spent
        ranges.append((start, end))
        start = end
    return tuple(ranges) if min(room.values()) >= 0 else None


def _fits(memory: Memory, loads: Loads) -> bool:
    return all(memory.of(load).free >= 0 for load in loads)


def _largest(fits: Callable[[int], bool], below: int) -> int:
    """The largest number under ``below`` that fits, when smaller ones do too; 0 when none from 1 does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _with_chunks(loads: Loads, tokens: int, longest: int) -> Loads:
    """Shorter chunks, the last of which has the more of the ``longest`` prompt behind it."""
    return tuple(
        replace(
            load,
            chunk_tokens=min(load.chunk_tokens, tokens),
            prefix_tokens=max(load.prefix_tokens, longest - tokens),
        )
        for load in loads
    )


def _with_buffers(loads: Loads, buffers: int) -> Loads:
    return tuple(replace(load, buffers=min(load.buffers, buffers)) for load in loads)


def _with_residents(loads: Loads, tokens: int) -> Loads:
    return tuple(
        replace(load, kv_tokens=min(load.kv_tokens, tokens), prefix_tokens=min(load.prefix_tokens, tokens))
        for load in loads
    )


def _with_ranges(loads: Loads, ranges: Ranges, stage_ranks: Sequence[int]) -> Loads:
    held = {load.rank: [r for r, rank in zip(ranges, stage_ranks, strict=True) if rank == load.rank] for load in loads}
    return tuple(replace(load, ranges=tuple(held[load.rank])) for load in loads)


def _smaller_chunks(memory: Memory, loads: Loads, tokens: int, longest: int) -> str | None:
    units = _largest(lambda units: _fits(memory, _with_chunks(loads, units * _ALIGN, longest)), -(-tokens // _ALIGN))
    return f"chunks of at most {units * _ALIGN} tokens (--chunk-size)" if units else None


def _fewer_buffers(memory: Memory, loads: Loads) -> str | None:
    most = max(load.buffers for load in loads)
    buffers = _largest(lambda buffers: _fits(memory, _with_buffers(loads, buffers)), most)
    offer = f"at most {buffers} buffers a rank (--max-buffers), where less run-ahead allows it (--max-in-flight)"
    return offer if buffers >= _FEWEST_BUFFERS else None


def _fewer_residents(memory: Memory, loads: Loads, longest: int) -> str | None:
    most = max(load.kv_tokens for load in loads)
    tokens = _largest(lambda tokens: _fits(memory, _with_residents(loads, tokens)), most)
    return f"at most {tokens} resident tokens (--max-resident-tokens)" if tokens >= longest else None


def _other_ranges(memory: Memory, loads: Loads, stage_ranks: Sequence[int]) -> str | None:
    ranges = balanced_ranges(memory, loads, stage_ranks)
    return f"layer ranges {_json(ranges)} (--layer-ranges)" if ranges else None


def _expert_parallel(memory: Memory, loads: Loads) -> str | None:
    sharding = replace(memory.sharding, ep=memory.sharding.tp)
    try:
        sharding.check(memory.spec)
    except InputError:
        return None
    fits = memory.sharding.ep < sharding.ep and _fits(replace(memory, sharding=sharding), loads)
    return f"experts whole on {sharding.ep} devices (--ep {sharding.ep})" if fits else None


def _together(memory: Memory, loads: Loads, stage_ranks: Sequence[int], longest: int) -> str | None:
    """The least that can be asked for, then the largest chunks that still fit."""
    least = _with_residents(_with_buffers(loads, _FEWEST_BUFFERS), longest)
    ranges = balanced_ranges(memory, _with_chunks(least, _ALIGN, longest), stage_ranks)
    if ranges is None:
        return None
    changed = _with_ranges(least, ranges, stage_ranks)
    most = max(load.chunk_tokens for load in loads) // _ALIGN + 1
    units = _largest(lambda units: _fits(memory, _with_chunks(changed, units * _ALIGN, longest)), most)
    return (
        f"layer ranges {_json(ranges)} (--layer-ranges), chunks of at most {units * _ALIGN} tokens (--chunk-size), "
        f"one prompt at a time (--max-resident-tokens {longest}), and {_FEWEST_BUFFERS} buffers a rank "
        "(--max-buffers), where less run-ahead allows it (--max-in-flight)"
    )


def _smaller_weights(memory: Memory, loads: Loads) -> str | None:
    for dtype, size in WEIGHT_BYTES.items():
        usable = size < WEIGHT_BYTES[memory.weight_dtype] and MULTIPLIED[dtype] in memory.device.flops
        if usable and _fits(replace(memory, weight_dtype=dtype), loads):
            return f"weights in {dtype} (--weight-dtype)"
    return None


def _more_devices(memory: Memory, loads: Loads) -> str | None:
    """The fewest devices a rank, a power of two as many as now; experts are shared by as large a part of them."""
    spec, now = memory.spec, memory.sharding
    for factor in (2, 4, 8, 16):
        sharding = replace(now, tp=factor * now.tp, ep=factor * now.ep if now.ep > 1 else 1)
        try:
            sharding.check(spec)
        except InputError:
            continue
        payload = payload_bytes(widest_payload(spec, tp=sharding.tp), sharding.tp)
        if _fits(replace(memory, sharding=sharding, payload=payload), loads):
            experts = f" --ep {sharding.ep}" if sharding.ep > 1 else ""
            return f"{sharding.tp} devices a rank (--tp {sharding.tp}{experts})"
    return None


def _more_ranks(memory: Memory, loads: Loads) -> str | None:
    """The fewest pipeline ranks of as many devices each, with the hungriest rank's buffers and residents on all."""
    hungriest = max(loads, key=lambda load: load.buffers)
    residents, channels = max(load.kv_tokens for load in loads), max(load.channels for load in loads)
    whole = ((0, memory.spec.layers),)
    each = replace(hungriest, ranges=whole, modules=frozenset(), channels=channels, kv_tokens=residents)
    first = replace(each, rank=0, modules=frozenset({"embed", "head"}))
    for pp in range(len(loads) + 1, memory.spec.layers + 1):
        more = (first, *(replace(each, rank=rank) for rank in range(1, pp)))
        if balanced_ranges(memory, more, range(pp)):
            return f"{pp} pipeline ranks (--pp)"
    return None


def _shorter_prompts(memory: Memory, loads: Loads) -> str | None:
    most = max(load.kv_tokens for load in loads)
    tokens = _largest(lambda tokens: _fits(memory, _with_residents(loads, tokens)), most)
    return f"prompts of at most {tokens} tokens" if tokens else None


def _json(ranges: Ranges) -> str:
    return "[" + ",".join(f"[{first},{last}]" for first, last in ranges) + "]"
