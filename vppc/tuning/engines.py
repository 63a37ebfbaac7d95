"""What of a tuned schedule can be told to today's engines, setting by setting, and why not the rest.

=============  ====================================  ==============================================================
engine         setting                               what it can say
=============  ====================================  ==============================================================
vLLM           ``VLLM_PP_LAYER_PARTITION``           layers of each rank, one stage a rank
vLLM           ``--max-num-batched-tokens``          one chunk size
vLLM-Ascend    ``vpp_layer_ranges``                  layers of both stages of each rank, folded back
vLLM, plugin   ``--additional-config``               layers as vLLM-Ascend's, and the chunks, from the schedule's file
SGLang         ``SGLANG_PP_LAYER_PARTITION``         layers of each rank, one stage a rank
SGLang         ``--chunked-prefill-size``            one chunk size
=============  ====================================  ==============================================================

Orders are the engines' own: none of them takes one. vppc's plugin for vLLM compiles its own, batch by batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from shlex import quote

from vppc.errors import InputError
from vppc.ir.partition import write_partition, write_vpp_layer_ranges
from vppc.ir.schedule import Schedule

PLAN = "plan.json"
"""The name of a schedule's file where none is given."""

PLUGIN = "vLLM with vppc's plugin"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of an engine: its value, or why it has none that says what the schedule does."""

    engine: str
    name: str
    value: str = ""
    refusal: str = ""


def engine_settings(schedule: Schedule, plan: str = PLAN) -> tuple[Setting, ...]:
    """The settings of all engines for a schedule with stages and chunks, which is in the file ``plan``."""
    plugin = _setting(schedule, PLUGIN, "--additional-config", partial(_additional_config, plan=plan))
    return (*(_setting(schedule, *each) for each in _SETTINGS), plugin)


def _setting(schedule: Schedule, engine: str, name: str, write: Callable[[Schedule], str]) -> Setting:
    try:
        return Setting(engine, name, write(schedule))
    except InputError as error:
        return Setting(engine, name, refusal=error.problem)


def _partition(schedule: Schedule) -> str:
    return write_partition(tuple(stage.layers for stage in schedule.stages), schedule.stage_ranks)


def _vpp_layer_ranges(schedule: Schedule) -> str:
    if schedule.vp != 2:
        raise InputError(f"vLLM-Ascend folds a rank's layers into two stages, and these are {schedule.vp}")
    return write_vpp_layer_ranges(tuple(stage.layers for stage in schedule.stages), schedule.stage_ranks)


def _additional_config(schedule: Schedule, plan: str) -> str:
    """What goes onto the command line of vLLM, quoted for a shell: the plugin's section, and what it needs beside."""
    if schedule.vp != 2 or schedule.pp == 1:
        raise InputError(
            f"it folds a rank's layers into two stages on several ranks, and these are {schedule.vp} on {schedule.pp}: "
            "tune with --placement v"
        )
    config = {
        "virtual_pipeline_parallel_size": 2,
        "vpp_layer_ranges": json.loads(_vpp_layer_ranges(schedule)),
        "vppc": {"strategy": "vpp-async" if len(schedule.requests) == 1 else "vpp-packed", "chunks": plan},
    }
    largest = max(chunk.tokens for chunk in schedule.chunks)
    return f"{quote(json.dumps(config))} -pp {schedule.pp} --max-num-batched-tokens {largest}"


def _chunk_size(schedule: Schedule) -> str:
    """The size with which an engine cuts prompts as here: it fills up every chunk, with the next prompt if need be, so
    that only the last of all is short."""
    chunks = schedule.chunks
    if any(len(chunk.parts) > 1 for chunk in chunks):
        raise InputError("some chunks hold several prompts, chosen ahead: an engine packs those that wait")
    last = {chunk.parts[0].request: index for index, chunk in enumerate(chunks)}
    full = {chunk.tokens for index, chunk in enumerate(chunks) if last[chunk.parts[0].request] != index}
    size = max(chunk.tokens for chunk in chunks)
    if full - {size}:
        raise InputError(f"chunks differ, from {min(full)} to {size} tokens: an engine knows one size")
    short = min(chunk.tokens for chunk in chunks[:-1]) if len(chunks) > 1 else size
    if short < size:
        raise InputError(f"a prompt ends in a chunk of {short} tokens, which an engine fills up with the next prompt")
    return str(size)


_SETTINGS: tuple[tuple[str, str, Callable[[Schedule], str]], ...] = (
    ("vLLM", "VLLM_PP_LAYER_PARTITION", _partition),
    ("vLLM", "--max-num-batched-tokens", _chunk_size),
    ("vLLM-Ascend", "vpp_layer_ranges", _vpp_layer_ranges),
    ("SGLang", "SGLANG_PP_LAYER_PARTITION", _partition),
    ("SGLang", "--chunked-prefill-size", _chunk_size),
)
