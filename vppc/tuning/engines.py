"""What of a tuned schedule can be told to today's engines, setting by setting, and why not the rest.

=============  ====================================  ==============================================================
engine         setting                               what it can say
=============  ====================================  ==============================================================
vLLM           ``VLLM_PP_LAYER_PARTITION``           layers of each rank, one stage a rank
vLLM           ``--max-num-batched-tokens``          one chunk size
vLLM-Ascend    ``vpp_layer_ranges``                  layers of both stages of each rank, folded back
SGLang         ``SGLANG_PP_LAYER_PARTITION``         layers of each rank, one stage a rank
SGLang         ``--chunked-prefill-size``            one chunk size
=============  ====================================  ==============================================================

Orders are the engines' own: none of them takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vppc.errors import InputError
from vppc.ir.partition import write_partition, write_vpp_layer_ranges
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of an engine: its value, or why it has none that says what the schedule does."""

    engine: str
    name: str
    value: str = ""
    refusal: str = ""


def engine_settings(schedule: Schedule) -> tuple[Setting, ...]:
    """The settings of all engines for a schedule with stages and chunks."""
    return tuple(_setting(schedule, *each) for each in _SETTINGS)


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


def _chunk_size(schedule: Schedule) -> str:
    """The size with which an engine that fills chunks up cuts prompts as here: the last of each has the rest."""
    chunks = schedule.chunks
    if any(len(chunk.parts) > 1 for chunk in chunks):
        raise InputError("some chunks hold several prompts, chosen ahead: an engine packs those that wait")
    last = {chunk.parts[0].request: index for index, chunk in enumerate(chunks)}
    full = {chunk.tokens for index, chunk in enumerate(chunks) if last[chunk.parts[0].request] != index}
    size = max(chunk.tokens for chunk in chunks)
    if full - {size}:
        raise InputError(f"chunks differ, from {min(full)} to {size} tokens: an engine knows one size")
    return str(size)


_SETTINGS: tuple[tuple[str, str, Callable[[Schedule], str]], ...] = (
    ("vLLM", "VLLM_PP_LAYER_PARTITION", _partition),
    ("vLLM", "--max-num-batched-tokens", _chunk_size),
    ("vLLM-Ascend", "vpp_layer_ranges", _vpp_layer_ranges),
    ("SGLang", "SGLANG_PP_LAYER_PARTITION", _partition),
    ("SGLang", "--chunked-prefill-size", _chunk_size),
)
