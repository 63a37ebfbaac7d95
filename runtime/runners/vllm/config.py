"""vLLM's configuration for a schedule, and how many blocks of KV cache it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from vppc.errors import InputError
from vppc.ir.instruction import FORWARD, SAMPLE
from vppc.ir.schedule import Schedule


def engine_config(model: str, dtype: str, schedule: Schedule, **more: Any) -> VllmConfig:
    """vLLM's configuration of one process; ``more`` are further engine arguments.

    Raises InputError when there is no checkpoint, when vLLM refuses it, or when the schedule is for other layers.
    """
    if not (Path(model) / "config.json").is_file():
        raise InputError("is no checkpoint folder", file=model, remedy="name one with config.json and safetensors")
    tokens = max((chunk.tokens for chunk in schedule.chunks), default=1)
    requests = max((len({part.request for part in chunk.parts}) for chunk in schedule.chunks), default=1)
    arguments = {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "enforce_eager": True,
        "use_tqdm_on_load": False,
        "max_model_len": longest(schedule) + 1,  # with the token that is sampled last
        "max_num_batched_tokens": max(tokens, requests),
        "max_num_seqs": requests,
        "enable_chunked_prefill": True,
        # the schedule says what is cached, and its runner computes it before the clock starts
        "enable_prefix_caching": False,
        "async_scheduling": False,
        # one kind of KV cache a stage, so that a block number means the same in all layers
        "disable_hybrid_kv_cache_manager": True,
        **more,
    }
    try:
        config = EngineArgs(**arguments).create_engine_config()
    except (ValueError, OSError) as error:  # pydantic's are ValueErrors
        raise InputError(
            f"vLLM does not take it: {error}", file=model, remedy="see what vLLM says it can run"
        ) from error
    layers = config.model_config.get_total_num_hidden_layers()
    if layers != schedule.model.layers:
        raise InputError(
            f"the schedule is for {schedule.model.layers} layers, the model has {layers}",
            file=model,
            remedy="compile the schedule for this model",
        )
    return config


def longest(schedule: Schedule) -> int:
    """The most tokens that a request has: its prompt and what is decoded in the schedule."""
    ends = [part.end for chunk in schedule.chunks for part in chunk.parts]
    return max([*ends, *(request.prompt_tokens for request in schedule.requests)], default=0)


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
