"""What the programs need of a rank's memory, and the rules of the limits that a file gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vppc.ir.instruction import FORWARD, WIDTH
from vppc.ir.rules.program import Tape
from vppc.ir.rules.prompts import Prompts
from vppc.ir.rules.registry import Report
from vppc.ir.schedule import Schedule


def check_capacity(schedule: Schedule, prompts: Prompts, first: int, report: Report) -> None:
    """Judge the chunks from number ``first`` on by the size of the buffers they pass through (rule M2)."""
    capacity = schedule.extra.get("buffer_tokens")
    if capacity is None:
        return
    for index, chunk in enumerate(prompts.chunks[first:], first):
        if chunk.tokens > capacity and (len(schedule.stages) > 1 or prompts.samples[index]):
            report.add(
                "M2",
                f"chunks[{index}]",
                f"has {chunk.tokens} tokens, but a buffer holds {capacity} (buffer_tokens)",
                f"raise buffer_tokens to {chunk.tokens}, or cut the chunk",
            )


def check_limits(tapes: Sequence[Tape], prompts: Prompts, report: Report) -> None:
    """Judge a closed stream by the memory limits of the ranks that have one (rule M1)."""
    schedule = tapes[0].schedule
    limits = [program.extra.get("memory", {}) for program in schedule.programs]
    if any("limit" in memory for memory in limits):
        buffer = buffer_bytes(schedule) or 0.0
        for tape, memory, tokens in zip(tapes, limits, peak_kv_tokens(tapes, prompts), strict=True):
            _check_limit(tape, memory, tokens, buffer, report)


def _check_limit(tape: Tape, memory: Mapping[str, Any], tokens: int, buffer: float, report: Report) -> None:
    needs = {
        "weights": memory.get("weights", 0),
        f"KV of {tokens} tokens": tokens * memory.get("kv_per_token", 0),
        f"{tape.buffers} buffers": tape.buffers * buffer,
    }
    if sum(needs.values()) > memory.get("limit", math.inf):
        report.add(
            "M1",
            f"programs[{tape.rank}].memory.limit (rank {tape.rank})",
            f"{memory['limit']:,.0f} bytes do not hold the {sum(needs.values()):,.0f} of "
            + " + ".join(f"{what} ({size:,.0f})" for what, size in needs.items() if size),
            "let fewer requests or chunks be in flight, give the rank fewer layers, or use fewer buffers",
        )


def peak_kv_tokens(tapes: Sequence[Tape], prompts: Prompts) -> list[int]:
    """For every rank, the most tokens whose KV is resident at once.

    A chunk's tokens are from its first stage on the rank on; those of a request, with its cached ones, up to
    its last chunk's last stage there.
    """
    grows, shrinks = _kv_by_chunk(prompts)
    return [_peak_kv(tape, grows, shrinks) for tape in tapes]


def _kv_by_chunk(prompts: Prompts) -> tuple[list[int], list[int]]:
    """For every chunk, the tokens that become resident with it, and those that are released after it."""
    grows, shrinks = [0] * len(prompts.chunks), [0] * len(prompts.chunks)
    resident: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, chunk in enumerate(prompts.chunks):
        for part in chunk.parts:
            before = resident.get(part.request, 0)
            resident[part.request] = part.end
            grows[index] += part.end - before
            last[part.request] = index
    for request, index in last.items():
        if resident[request] >= prompts.requests[request].prompt_tokens or request in prompts.cancelled:
            shrinks[index] += resident[request]
    return grows, shrinks


def _peak_kv(tape: Tape, grows: list[int], shrinks: list[int]) -> int:
    first, last = min(tape.todo), max(tape.todo)
    now = peak = 0
    code = tape.code
    for op, chunk, stage in zip(code[::WIDTH], code[1::WIDTH], code[2::WIDTH], strict=True):
        if op == FORWARD:
            if stage == first:
                now += grows[chunk]
                peak = max(peak, now)
            if stage == last:
                now -= shrinks[chunk]
    return peak


def peak_buffers(tape: Tape) -> int:
    """The most buffers of a rank that hold a value, or wait for one, at once."""
    frees = bytearray(len(tape))
    for end in tape.ends:
        frees[end] = 1
    if frees:
        frees[0] = 0  # no instruction frees what an earlier one wrote before there is one
    live = {since for buffer, since in enumerate(tape.since[: tape.buffers]) if tape.holds[buffer] != -1}
    now = peak = 0
    for index, end in enumerate(tape.ends):
        if end or index in live:
            now += 1
            peak = max(peak, now)
        now -= frees[index]
    return peak


def buffer_bytes(schedule: Schedule) -> float | None:
    """Bytes of one buffer on a device; None where the schedule does not say what crosses a cut, or how much.

    A sharded tensor is spread over the ``tp`` devices of a rank. A stage may override the payload.
    """
    tokens, tp = schedule.extra.get("buffer_tokens"), schedule.extra.get("tp", 1)
    extras = [schedule.extra, *(stage.extra for stage in schedule.stages)]
    payloads = [extra["payload"] for extra in extras if "payload" in extra]
    if tokens is None or not payloads:
        return None
    largest = 0.0
    for payload in payloads:
        sizes = [_tensor_bytes(tensor, tokens, tp) for tensor in payload]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        largest = max(largest, sum(known))
    return largest


def _tensor_bytes(tensor: Mapping[str, Any], tokens: int, tp: int) -> float | None:
    """Bytes of a tensor; None where its shape or type means nothing here."""
    bits = re.search(r"\d+", tensor["dtype"])
    sizes = [tokens if size == "tokens" else size for size in tensor["shape"]]
    if bits is None or any(isinstance(size, str) for size in sizes):
        return None
    size = math.prod(sizes) * int(bits[0]) / 8
    return size / tp if tensor["layout"] == "sharded" else size
