"""vLLM's configuration for a schedule, and how many blocks of KV cache it gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from runtime.plan import Plan
from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, SAMPLE
from vppc.ir.schedule import Schedule

MOST_REQUESTS = 256
"""In a chunk of a schedule that grows."""
GIB = 1 << 30
SPACE = "VLLM_CPU_KVCACHE_SPACE"


@dataclass(frozen=True, slots=True)
class Room:
    """What a rank is to hold: in a chunk at most so many ``tokens``, of so many ``requests``; ``length`` tokens of a
    request, None for as many as the model takes; ``blocks`` of KV cache a stage, by their tokens and their bytes."""

    tokens: int
    requests: int
    length: int | None
    blocks: Callable[[int, int], int]


def room_of(schedule: Schedule, rank: int) -> Room:
    """What a whole schedule needs at ``rank``."""
    tokens = max((chunk.tokens for chunk in schedule.chunks), default=1)
    requests = max((len({part.request for part in chunk.parts}) for chunk in schedule.chunks), default=1)
    ends = [part.end for chunk in schedule.chunks for part in chunk.parts]
    longest = max([*ends, *(request.prompt_tokens for request in schedule.requests)], default=0)
    # with the token that is sampled last
    return Room(tokens, requests, longest + 1, lambda size, _: peak_blocks(schedule, rank, size))


def room_to_grow(plan: Plan, rank: int) -> Room:
    """What there is for a schedule that grows: chunks as large as its buffers, and ``VLLM_CPU_KVCACHE_SPACE`` GiB.

    Raises InputError where that is no number.
    """
    tokens = plan.extra["buffer_tokens"]
    layers = sum(end - start for start, end in (plan.stages[stage].layers for stage in plan.rank_stages[rank]))
    given = os.environ.get(SPACE, "4")
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"{given!r} is no number of GiB", file=SPACE, remedy="a whole number, from 1 on")
    space = int(given) * GIB
    return Room(tokens, min(tokens, MOST_REQUESTS), None, lambda _, layer: space // (layers * layer))


def engine_config(model: str, dtype: str, layers: int, room: Room, tp: int = 1) -> VllmConfig:
    """vLLM's configuration of one of ``tp`` processes of a rank, for a schedule of so many layers.

    Raises InputError when there is no checkpoint, when vLLM refuses it, or when the schedule is for other layers.
    """
    if not (Path(model) / "config.json").is_file():
        raise InputError("is no checkpoint folder", file=model, remedy="name one with config.json and safetensors")
    arguments: dict[str, Any] = {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "enforce_eager": True,
        "use_tqdm_on_load": False,
        "max_model_len": room.length,
        "max_num_batched_tokens": room.tokens,
        "max_num_seqs": room.requests,
        "tensor_parallel_size": tp,
        "distributed_executor_backend": "mp" if tp > 1 else None,  # or vLLM counts this machine's devices
        "enable_chunked_prefill": True,
        # the schedule says what is cached, and its runner computes it before the clock starts
        "enable_prefix_caching": False,
        "async_scheduling": False,
        # one kind of KV cache a stage, so that a block number means the same in all layers
        "disable_hybrid_kv_cache_manager": True,
    }
    try:
        config = EngineArgs(**arguments).create_engine_config()
    except (ValueError, OSError) as error:  # pydantic's are ValueErrors
        raise InputError(
            f"vLLM does not take it: {error}", file=model, remedy="see what vLLM says it can run"
        ) from error
    held = config.model_config.get_total_num_hidden_layers()
    if held != layers:
        raise InputError(
            f"the schedule is for {layers} layers, the model has {held}",
            file=model,
            remedy="compile the schedule for this model",
        )
    return config


def peak_blocks(schedule: Schedule, rank: int, block: int) -> int:
    """The most blocks of ``block`` tokens that the requests at ``rank`` hold at any moment of its program.

    A request holds what its parts have reached so far, its cached prefix from the start, and nothing once its last
    part is through the rank's stages.
    """
    held = {
        index: -(-request.cached_tokens // block)
        for index, request in enumerate(schedule.requests)
        if request.cached_tokens
    }
    first, last = schedule.rank_stages[rank][0], schedule.rank_stages[rank][-1]
    samples = schedule.samples if schedule.stages[-1].rank == rank else [False] * len(schedule.chunks)
    final = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    total = peak = sum(held.values())
    for op, chunk, stage, *_ in schedule.programs[rank].rows():
        parts = schedule.chunks[chunk].parts if op in (FORWARD, SAMPLE) else ()
        if op == FORWARD and stage == first:
            for part in parts:
                reached = max(held.get(part.request, 0), -(-part.end // block))
                total += reached - held.get(part.request, 0)
                held[part.request] = reached
            peak = max(peak, total)
        if op == SAMPLE or (op == FORWARD and stage == last and not samples[chunk]):
            total -= sum([held.pop(request) for request in {p.request for p in parts} if final[request] == chunk])
    return peak
