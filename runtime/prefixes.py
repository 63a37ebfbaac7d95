"""Cached prefixes: the schedule takes them for granted, so they are computed before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from runtime.devices.protocol import Link
from runtime.runners.protocol import Buffer, PrefixRunner, TensorSpec
from vppc.ir.schedule import Part, Schedule


def warm_prefixes(
    schedule: Schedule, rank: int, runner: PrefixRunner, links: Mapping[int, Link], device: torch.device
) -> None:
    """Run every cached prefix, piece by piece, through all stages, one piece at a time; all ranks together."""
    stages = schedule.stage_ranks
    channels = {(channel.src, channel.dst): channel.id for channel in schedule.channels}
    room = max((chunk.tokens for chunk in schedule.chunks), default=1)
    for part in prefix_parts(schedule, room):
        prepared = runner.prepare_prefix(part)
        held: Buffer | None = None
        for stage, here in enumerate(stages):
            if here != rank:
                continue
            if stage and stages[stage - 1] != rank:
                held = scratch(runner.payload, part.tokens, device)
                links[channels[stages[stage - 1], rank]].recv(held).wait()
            out = scratch(runner.payload, part.tokens, device) if stage + 1 < len(stages) else None
            runner.forward(stage, prepared, held, out)
            held = out
            if out is not None and stages[stage + 1] != rank:
                links[channels[rank, stages[stage + 1]]].send(out).wait()


def prefix_parts(schedule: Schedule, max_tokens: int) -> tuple[Part, ...]:
    """The cached prefixes of all requests in pieces that fit a buffer."""
    return tuple(
        Part(index, start, min(max_tokens, request.cached_tokens - start))
        for index, request in enumerate(schedule.requests)
        for start in range(0, request.cached_tokens, max_tokens)
    )


def scratch(payload: Sequence[TensorSpec], rows: int, device: torch.device) -> Buffer:
    """New tensors for ``rows`` tokens, of the shape of a buffer."""
    return tuple(torch.zeros(rows, *spec.row, dtype=spec.dtype, device=device) for spec in payload)
