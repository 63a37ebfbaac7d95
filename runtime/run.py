"""One process of a run, from start to end: meet, agree, open, warm, run, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from runtime.arguments import Arguments
from runtime.channels import World, open_links, tensor_group
from runtime.clock import Clock
from runtime.clock import agree as agree_on_clock
from runtime.devices import find_device
from runtime.devices.protocol import Device, Link
from runtime.faults import Places
from runtime.interpreter import Cancellation, FirstToken, Interpreter
from runtime.journal import Journal, make_folder
from runtime.program import Loaded, agree, load
from runtime.reading import cost_of
from runtime.reference.checkpoint import Checkpoint
from runtime.reference.config import small_model
from runtime.reference.config_json import read_config
from runtime.reference.parallel import ALONE, TensorParallel
from runtime.reference.prompts import Prompts, read_prompts
from runtime.reference.weights import SeededWeights, Weights
from runtime.runners.null import NullRunner
from runtime.runners.protocol import Buffer, Runner
from runtime.runners.reference import ReferenceRunner
from runtime.runners.timed import TimedLink, TimedRunner
from runtime.watchdog import Watchdog
from vppc.errors import InputError, VppcError
from vppc.ir.instruction import SEND
from vppc.ir.schedule import Schedule


def run(arguments: Arguments) -> None:
    """Run this process's part of the schedule and, on process 0, print what came out."""
    try:
        mine: Loaded | VppcError = load(arguments.schedule)
    except VppcError as error:
        mine = error
    device = find_device(arguments.device)
    world = World.join(arguments.timeout)
    loaded = agree(world, mine)
    schedule = loaded.schedule
    _check_world(schedule, world, arguments.tp)
    rank, tp_rank = divmod(world.process, arguments.tp)
    clock = agree_on_clock(world.process, world.size)
    runner = world.together(lambda: _runner(arguments, schedule, world, device))
    links = open_links(schedule, world, arguments.tp, device)
    if isinstance(runner, TimedRunner):
        links = _timed_links(schedule, links, clock, runner.costs.transfer)
    journal = None
    if arguments.journal is not None:
        make_folder(arguments.journal, Path(arguments.schedule))
        journal = Journal(arguments.journal, schedule.programs[rank], rank, tp_rank, loaded.digest, clock)
    interpreter = Interpreter(
        schedule,
        rank,
        runner,
        links,
        _buffers(schedule, rank, runner, device),
        clock,
        journal=journal,
        cancellation=_cancellation(arguments, schedule),
        check_finite=arguments.check_finite,
    )
    watchdog = Watchdog(
        world.connection("watchdog"),
        world.process,
        world.size,
        arguments.tp,
        Places(schedule),
        interpreter.position.read,
        arguments.timeout,
    )
    watchdog.start()
    try:
        if isinstance(runner, ReferenceRunner):
            _warm_prefixes(schedule, rank, runner, interpreter)
        origin = world.gather(clock.now())[0]
        interpreter.run(origin)
        device.synchronize()
        tokens = [token for process in world.gather(interpreter.tokens) for token in process]
    except BaseException as error:  # noqa: BLE001 - whatever it is, all ranks must end and name it
        watchdog.fail(error)
    watchdog.stop()
    world.leave()
    if journal is not None:
        journal.close()
    if world.process == 0:
        sys.stdout.write(_report(schedule, tokens))


def _check_world(schedule: Schedule, world: World, tp: int) -> None:
    planned = schedule.extra.get("tp", tp)
    if planned != tp:
        raise InputError(
            f"the schedule is for {planned} processes a rank, not {tp}",
            file="--tp",
            remedy=f"run it with --tp {planned}",
        )
    if world.size != schedule.pp * tp:
        raise InputError(
            f"{world.size} processes for {schedule.pp} ranks of {tp}",
            file="torchrun",
            remedy=f"start {schedule.pp * tp} in all, with --nproc-per-node and --nnodes",
        )


def _runner(arguments: Arguments, schedule: Schedule, world: World, device: Device) -> Runner:
    if arguments.runner == "null":
        return NullRunner(schedule)
    if arguments.runner == "timed":
        if "cost" not in schedule.extra:
            raise InputError(
                "has no cost, which the timed runner needs", file=arguments.schedule, remedy="compile it with --cost"
            )
        return TimedRunner(schedule, cost_of(schedule.extra["cost"]))
    weights: Weights
    if arguments.model is None:
        config, weights = small_model(schedule.model.layers), SeededWeights(arguments.seed)
    else:
        config, weights = read_config(arguments.model), Checkpoint(arguments.model)
    given = read_prompts(arguments.prompts) if arguments.prompts is not None else None
    prompts = Prompts(
        schedule.requests, config.vocabulary, given=given, seed=arguments.seed, file=arguments.prompts or ""
    )
    return ReferenceRunner(
        schedule,
        world.process // arguments.tp,
        config,
        weights,
        prompts,
        device=device.torch_device,
        dtype=getattr(torch, arguments.dtype),
        tp=_tensor_parallel(schedule, world, arguments.tp, device),
    )


def _tensor_parallel(schedule: Schedule, world: World, tp: int, device: Device) -> TensorParallel:
    group = tensor_group(schedule, world, tp, device)
    return ALONE if group is None else TensorParallel(world.process % tp, tp, partial(dist.all_reduce, group=group))


def _timed_links(
    schedule: Schedule, links: Mapping[int, Link], clock: Clock, transfer: Sequence[float]
) -> dict[int, Link]:
    seconds: dict[int, list[float]] = {channel.id: [] for channel in schedule.channels}
    for program in schedule.programs:
        for op, chunk, _, _, _, channel in program.rows():
            if op == SEND:
                seconds[channel].append(transfer[chunk])
    return {id: TimedLink(link, clock, seconds[id]) for id, link in links.items()}


def _buffers(schedule: Schedule, rank: int, runner: Runner, device: Device) -> list[Buffer]:
    """The buffers that the compiler allocated, as tensors; made once."""
    tokens = max((chunk.tokens for chunk in schedule.chunks), default=0)
    return [
        tuple(torch.zeros(tokens, *spec.row, dtype=spec.dtype, device=device.torch_device) for spec in runner.payload)
        for _ in range(schedule.programs[rank].buffers)
    ]


def _cancellation(arguments: Arguments, schedule: Schedule) -> Cancellation:
    ids = {request.id: index for index, request in enumerate(schedule.requests)}
    at: dict[int, int] = {}
    for name, chunk in arguments.cancel:
        if name not in ids:
            raise InputError(
                f"the schedule has no request {name!r}", file="--cancel", remedy=f"one of {', '.join(list(ids)[:8])}"
            )
        at[ids[name]] = chunk
    return Cancellation(at)


def _warm_prefixes(schedule: Schedule, rank: int, runner: ReferenceRunner, interpreter: Interpreter) -> None:
    """Compute the cached prefixes, before the clock starts: piece by piece through all stages, one at a time."""
    stages = schedule.stages
    channels = {(channel.src, channel.dst): channel.id for channel in schedule.channels}
    room = min((part.tokens for chunk in schedule.chunks for part in chunk.parts), default=1)
    for part in runner.prefix_parts(max(room, schedule.extra.get("buffer_tokens", 1))):
        prepared = runner.prepare_prefix(part)
        held: Buffer | None = None
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if stage.rank != rank:
                continue
            if stage.stage and stages[stage.stage - 1].rank != rank:
                held = interpreter.scratch(part.tokens)
                interpreter.links[channels[stages[stage.stage - 1].rank, rank]].recv(held).wait()
            out = interpreter.scratch(part.tokens) if following is not None else None
            runner.forward(stage.stage, prepared, held, out)
            held = out
            if out is not None and following is not None and following.rank != rank:
                interpreter.links[channels[rank, following.rank]].send(out).wait()


def _report(schedule: Schedule, tokens: Sequence[FirstToken]) -> str:
    lines = [f"{'request':<16} {'token':>8} {'TTFT':>12}"]
    firsts: dict[int, FirstToken] = {}
    for token in tokens:
        firsts.setdefault(token.request, token)
    for index, request in enumerate(schedule.requests):
        first = firsts.get(index)
        what = f"{first.token:>8} {first.ttft:>10.4f} s" if first is not None else f"{'cancelled':>21}"
        lines.append(f"{request.id:<16} {what}")
    return "\n".join(lines) + "\n"
