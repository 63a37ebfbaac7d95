"""Makes the runner that the command line asks for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from runtime.arguments import Arguments
from runtime.clock import Clock
from runtime.plan import Plan
from runtime.reading import cost_of
from runtime.reference.checkpoint import Checkpoint
from runtime.reference.config import small_model
from runtime.reference.config_json import read_config
from runtime.reference.parallel import TensorParallel
from runtime.reference.prompts import Prompts, read_prompts
from runtime.reference.weights import SeededWeights, Weights
from runtime.runners.null import NullRunner
from runtime.runners.protocol import Runner
from runtime.runners.reference import ReferenceRunner, long_attention
from runtime.runners.timed import TimedRunner
from runtime.runners.vllm import make_vllm_runner
from vppc.errors import InputError
from vppc.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Place:
    """Where a runner is to run: the rank, its share of the rank's stages, the device, and the common clock."""

    rank: int
    tensor: TensorParallel
    device: torch.device
    clock: Clock


RunnerFactory: TypeAlias = Callable[[Arguments, Schedule, Place], Runner]
"""Makes a process's runner of a whole schedule. Raises InputError."""
GrowingRunnerFactory: TypeAlias = Callable[[Arguments, Plan, Place], Runner]
"""Makes a process's runner of a schedule that may grow. Raises InputError."""


def make_runner(arguments: Arguments, plan: Plan, place: Place) -> Runner:
    """The runner that ``--runner`` names. It looks at requests and chunks of a growing plan only when it needs them."""
    if arguments.runner == "null":
        return NullRunner(plan)
    if arguments.runner == "timed":
        return timed_runner(arguments, plan, place)
    if arguments.runner == "vllm":
        return make_vllm_runner(arguments, plan, place)
    return reference_runner(arguments, plan, place)


def timed_runner(arguments: Arguments, schedule: Plan, place: Place) -> TimedRunner:
    """A runner that takes the time that the schedule's own cost document says."""
    if "cost" not in schedule.extra:
        raise InputError(
            "has no cost, which the timed runner needs", file=arguments.schedule, remedy="compile it with --cost"
        )
    return TimedRunner(schedule, cost_of(schedule.extra["cost"]), place.clock)


def reference_runner(arguments: Arguments, schedule: Plan, place: Place) -> ReferenceRunner:
    """The decoder of ``--model``, or a small seeded one."""
    weights: Weights
    if arguments.model is None:
        config, weights = small_model(schedule.model.layers), SeededWeights(arguments.seed)
    else:
        config, weights = read_config(arguments.model), Checkpoint(arguments.model)
    if isinstance(schedule, Schedule) and place.device.type == "cpu" and place.rank == place.tensor.rank == 0:
        sys.stderr.writelines(f"vppc-run: note: {line}\n" for line in long_attention(schedule))
    given = read_prompts(arguments.prompts) if arguments.prompts is not None else None
    prompts = Prompts(
        schedule.requests, config.vocabulary, given=given, seed=arguments.seed, file=arguments.prompts or ""
    )
    return ReferenceRunner(
        schedule,
        place.rank,
        config,
        weights,
        prompts,
        device=place.device,
        dtype=getattr(torch, arguments.dtype),
        tp=place.tensor,
    )
