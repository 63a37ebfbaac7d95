"""The memory that a plan takes on every rank, on each of its devices, before a device is touched.

=============  ====================================================================================================
weights        of the rank's layers, divided by tensor and expert parallelism; embedding at the first stage, head
               at the last (a tied one once), layers for multi-token prediction where a stage says so
KV             resident tokens x bytes a token of the rank's layers. A token is resident from the first forward of
               its chunk on the rank until the last of its request; latents and indexer keys are not divided by tp
buffers        buffers of the program x tokens of the largest chunk x the payload of a cut
activations    what is alive inside a layer for the largest chunk: three hidden states, and attention's queries, keys,
               values and output, or the feed-forward network's inner values and the copies sorted by expert
workspace      MLA: the latents of a piece of the prefix, and the keys and values rebuilt from them; the piece is as
               long as the longest prefix, but vLLM-Ascend's 128K tokens at most (vLLM: 64K)
communicators  one each for tensor and expert parallelism, and one a channel
reserve        what the device's runtime takes by itself
=============  ====================================================================================================

KV and activations are in 16 bits. Weights, KV and buffers are exact; the others are estimates of the right size
(memory that an allocator loses to fragments is in none of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace

from vppc.costs.devices import Device
from vppc.errors import CheckFailed, Finding
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule
from vppc.models.flops import kv_bytes, topk
from vppc.models.payload import payload_bytes, widest_payload
from vppc.models.spec import Dense, FeedForward, GroupedQuery, Latent, LayerKind, ModelSpec
from vppc.models.weights import (
    Sharding,
    dtype_bytes,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
    weight_bytes,
)
from vppc.render.tables import count, table

WORKSPACE_TOKENS = 128 * 1024
"""Prefix tokens that vLLM-Ascend rebuilds at a time (``ascend_chunked_prefill_workspace_size``)."""

ACTIVATION_BYTES = 2

MEMORY_COLUMNS = (
    "rank",
    "weights",
    "KV",
    "buffers",
    "activations",
    "workspace",
    "communicators",
    "reserve",
    "total",
    "limit",
    "free",
)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes on each device of a rank. ``limit`` is what the device has; ``kv_tokens`` are resident at the peak."""

    rank: int
    limit: int
    weights: int
    kv_per_token: int
    kv_tokens: int
    buffers: int
    activations: int
    workspace: int
    communicators: int
    reserve: int

    @property
    def kv(self) -> int:
        return self.kv_per_token * self.kv_tokens

    @property
    def total(self) -> int:
        fixed = self.workspace + self.communicators + self.reserve
        return self.weights + self.kv + self.buffers + self.activations + fixed

    @property
    def free(self) -> int:
        """What is left, negative when the plan does not fit."""
        return self.limit - self.total

    def json(self) -> dict[str, int]:
        """The ``memory`` of a program in the schedule file."""
        values: dict[str, int] = asdict(self)
        del values["rank"]
        return values


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What a plan asks of a rank: layers (by stage) and other modules, channels, buffers of ``chunk_tokens`` tokens,
    the KV tokens resident at the peak, and the longest prefix that a chunk has behind it."""

    rank: int
    ranges: tuple[tuple[int, int], ...]
    modules: frozenset[str]
    channels: int
    buffers: int
    chunk_tokens: int
    kv_tokens: int
    prefix_tokens: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A model on devices, and how it is shared out: turns a rank's load into bytes.

    ``payload`` is the bytes of a token in a buffer, on one device.
    """

    spec: ModelSpec
    device: Device
    sharding: Sharding
    weight_dtype: str
    payload: float
    workspace_tokens: int = WORKSPACE_TOKENS

    def of(self, load: RankLoad) -> RankMemory:
        """The bytes of a rank."""
        layers = [kind for first, last in load.ranges for kind in self.spec.between(first, last)]
        communicators = (self.sharding.tp > 1) + (self.sharding.ep > 1)
        return RankMemory(
            rank=load.rank,
            limit=self.device.memory,
            weights=sum(count * self._layer_weights(kind) for count, kind in layers) + self._modules(load.modules),
            kv_per_token=sum(count * kv_bytes(self.spec, kind, self.sharding) for count, kind in layers),
            kv_tokens=load.kv_tokens,
            buffers=round(load.buffers * load.chunk_tokens * self.payload),
            activations=load.chunk_tokens * max((self._activations(kind) for _, kind in layers), default=0),
            workspace=max((self._workspace(kind, load.prefix_tokens) for _, kind in layers), default=0),
            communicators=communicators * self.device.communicator + load.channels * self.device.channel,
            reserve=self.device.reserve,
        )

    def layer_bytes(self, kv_tokens: int) -> list[int]:
        """What every layer adds: its weights, and the cache of so many tokens."""
        adds: list[int] = []
        for kind in self.spec.kinds:
            one = self._layer_weights(kind) + kv_tokens * kv_bytes(self.spec, kind, self.sharding)
            adds += [one] * kind.count
        return adds

    def _layer_weights(self, kind: LayerKind) -> int:
        return weight_bytes(self.spec, layer_weights(self.spec, kind), self.sharding, self.weight_dtype)

    def _modules(self, modules: frozenset[str]) -> int:
        head = head_weights(self.spec)
        if self.spec.tied and "embed" in modules:
            head = head[1:]  # the matrix comes first; it is the embedding
        by_name = {"embed": embedding_weights(self.spec), "head": head, "mtp": mtp_weights(self.spec)}
        return sum(
            weight_bytes(self.spec, weights, self.sharding, self.weight_dtype)
            for name, weights in by_name.items()
            if name in modules
        )

    def _activations(self, kind: LayerKind) -> int:
        """Bytes a token inside a layer."""
        inner = max(self._attention_values(kind), self._feed_forward_values(kind.feed_forward))
        return round(ACTIVATION_BYTES * (3 * self.spec.hidden + inner))

    def _attention_values(self, kind: LayerKind) -> float:
        tp = self.sharding.tp
        match self.spec.attention:
            case GroupedQuery(heads=heads, kv_heads=kv_heads, head_dim=width):
                return 2 * width * (heads / tp + kv_heads / self.sharding.ways("kv_heads", self.spec))
            case Latent() as latent if selected := topk(self.spec, kind):
                a_head = latent.qk_dim + latent.cached + latent.kv_rank
                return latent.q_rank + latent.heads / tp * a_head + 2 * selected
            case Latent() as latent:
                return latent.q_rank + latent.cached + 2 * latent.heads / tp * (latent.qk_dim + latent.v_dim)

    def _feed_forward_values(self, feed_forward: FeedForward) -> float:
        """Input, output and inner values (gate, up and their product) of a token's rows."""
        tp = self.sharding.tp
        if isinstance(feed_forward, Dense):
            return 3 * feed_forward.width / tp
        visits = self.sharding.visits(feed_forward)
        cut = tp / min(tp, self.sharding.ep)  # devices that share one expert
        row = 2 * self.spec.hidden + 3 * feed_forward.width / cut
        return visits * row + 3 * feed_forward.shared_width / tp

    def _workspace(self, kind: LayerKind, prefix_tokens: int) -> int:
        latent = self.spec.attention
        if not isinstance(latent, Latent) or topk(self.spec, kind):
            return 0
        heads = latent.heads // self.sharding.tp
        values = latent.cached + heads * (latent.nope_dim + latent.v_dim + latent.qk_dim)
        return ACTIVATION_BYTES * values * min(prefix_tokens, self.workspace_tokens)


def memory_plan(
    schedule: Schedule,
    spec: ModelSpec,
    device: Device,
    *,
    tp: int = 1,
    ep: int = 1,
    weight_dtype: str | None = None,
    workspace_tokens: int = WORKSPACE_TOKENS,
) -> tuple[RankMemory, ...]:
    """The memory of every rank of a compiled schedule; ``weight_dtype`` is the config's unless given.

    Raises InputError when the model cannot be shared out so, or the weight dtype is not known.
    """
    memory = _memory(schedule, spec, device, Sharding(tp, ep), weight_dtype, workspace_tokens)
    return tuple(memory.of(load) for load in loads_of(schedule))


def check_memory(
    schedule: Schedule,
    spec: ModelSpec,
    device: Device,
    *,
    tp: int = 1,
    ep: int = 1,
    weight_dtype: str | None = None,
    workspace_tokens: int = WORKSPACE_TOKENS,
) -> Schedule:
    """A compiled schedule with the memory of every rank written into its programs.

    Raises CheckFailed when it does not fit: by how much, and what would; InputError as :func:`memory_plan`.
    """
    memory = _memory(schedule, spec, device, Sharding(tp, ep), weight_dtype, workspace_tokens)
    loads = loads_of(schedule)
    ranks = tuple(memory.of(load) for load in loads)
    if any(rank.free < 0 for rank in ranks):
        from vppc.analysis.memory_remedies import remedies

        remedy = remedies(memory, loads, schedule.stage_ranks, [r.prompt_tokens for r in schedule.requests])
        raise CheckFailed((_finding(ranks, remedy),))
    programs = tuple(
        replace(program, extra={**program.extra, "memory": rank.json()})
        for program, rank in zip(schedule.programs, ranks, strict=True)
    )
    return replace(schedule, programs=programs)


def memory_of(spec: ModelSpec, device: Device, *, tp: int = 1, ep: int = 1, weight_dtype: str | None = None) -> Memory:
    """A model on devices, with the payload of its widest cut. Raises InputError as :func:`memory_plan`."""
    sharding = Sharding(tp, ep)
    sharding.check(spec)
    dtype = weight_dtype or spec.weight_dtype
    dtype_bytes(dtype)
    return Memory(spec, device, sharding, dtype, payload_bytes(widest_payload(spec, tp=tp), tp))


def loads_of(schedule: Schedule) -> tuple[RankLoad, ...]:
    """What a compiled schedule asks of every rank."""
    kv_tokens = [resident_tokens(schedule, program.rank) for program in schedule.programs]
    return loads_with(schedule, [program.buffers for program in schedule.programs], kv_tokens)


def loads_with(schedule: Schedule, buffers: Sequence[int], kv_tokens: Sequence[int]) -> tuple[RankLoad, ...]:
    """What the stages, channels and chunks of a schedule ask of every rank that has so many buffers and KV tokens."""
    largest = max((chunk.tokens for chunk in schedule.chunks), default=0)
    prefix = max((sum(part.start for part in chunk.parts) for chunk in schedule.chunks), default=0)
    return tuple(
        RankLoad(
            rank=rank,
            ranges=tuple(schedule.stages[stage].layers for stage in schedule.rank_stages[rank]),
            modules=_modules_of(schedule, rank),
            channels=sum(rank in (channel.src, channel.dst) for channel in schedule.channels),
            buffers=buffers[rank],
            chunk_tokens=max(largest, schedule.extra.get("buffer_tokens", 0)),
            kv_tokens=kv_tokens[rank],
            prefix_tokens=prefix,
        )
        for rank in range(schedule.pp)
    )


def resident_tokens(schedule: Schedule, rank: int) -> int:
    """The most KV tokens that a rank holds at once, running its program in order, those found cached included."""
    rows = schedule.programs[rank].rows()
    return most_resident(schedule, rank, ((index, stage) for op, index, stage, _, _, _ in rows if op == FORWARD))


def most_resident(schedule: Schedule, rank: int, forwards: Iterable[tuple[int, int]]) -> int:
    """The most KV tokens that a rank holds at once, running these forwards, (chunk, stage), in order."""
    stages = schedule.rank_stages[rank]
    last_chunk = {part.request: index for index, chunk in enumerate(schedule.chunks) for part in chunk.parts}
    held: dict[int, int] = {}
    total = peak = 0
    for index, stage in forwards:
        parts = schedule.chunks[index].parts
        if stage == stages[0]:
            for part in parts:
                arrived = part.tokens if part.request in held else part.end
                held[part.request] = held.get(part.request, 0) + arrived
                total += arrived
            peak = max(peak, total)
        if stage == stages[-1]:
            gone = {part.request for part in parts if last_chunk[part.request] == index}
            total -= sum(map(held.pop, gone))
    return peak


def known_memory(schedule: Schedule) -> tuple[RankMemory, ...]:
    """The memory that the programs of a schedule say they take, compiled or read; of those that say all of it."""
    names = [field.name for field in fields(RankMemory) if field.name != "rank"]
    said = ((program.rank, program.extra.get("memory", {})) for program in schedule.programs)
    found = ((rank, [memory.get(name) for name in names]) for rank, memory in said)
    return tuple(
        RankMemory(rank, *values)
        for rank, values in found
        if all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def unfit(rank: RankMemory) -> str:
    """In words by how much a rank's plan is too large for a device."""
    total, limit = rank.total / 2**30, rank.limit / 2**30
    return f"rank {rank.rank} needs {total:.2f} GiB a device and has {limit:.2f}: {total - limit:.2f} GiB too much"


def memory_line(ranks: Sequence[RankMemory]) -> str:
    """The fullest rank in one line: what it needs of the device's memory, and for what."""
    fullest = min(ranks, key=lambda rank: rank.free)
    named = (fullest.weights, fullest.kv, fullest.buffers)
    parts = (fullest.total, fullest.limit, *named, fullest.total - sum(named))
    total, limit, weights, kv, buffers, rest = (f"{value / 2**30:.2f}" for value in parts)
    return (
        f"rank {fullest.rank} needs most memory: {total} of {limit} GiB a device: weights {weights}, "
        f"KV {kv} for {count(fullest.kv_tokens, 'token')}, buffers {buffers}, the rest {rest}"
    )


def memory_table(ranks: Iterable[RankMemory]) -> str:
    """The memory of the ranks as text, in GiB."""
    return table(MEMORY_COLUMNS, map(memory_row, ranks))


def memory_row(rank: RankMemory) -> tuple[str, ...]:
    """A rank's number and its parts of the memory in GiB, as in MEMORY_COLUMNS."""
    return (str(rank.rank), *(f"{getattr(rank, part.lower()) / 2**30:.2f}" for part in MEMORY_COLUMNS[1:]))


def _memory(
    schedule: Schedule, spec: ModelSpec, device: Device, sharding: Sharding, dtype: str | None, workspace_tokens: int
) -> Memory:
    memory = memory_of(spec, device, tp=sharding.tp, ep=sharding.ep, weight_dtype=dtype)
    holders = (schedule.extra, *(stage.extra for stage in schedule.stages))
    given = [payload_bytes(holder["payload"], sharding.tp) for holder in holders if "payload" in holder]
    return replace(memory, payload=max(given, default=memory.payload), workspace_tokens=workspace_tokens)


def _modules_of(schedule: Schedule, rank: int) -> frozenset[str]:
    """What a rank's stages hold besides layers: what they say, or embedding and head at the two ends."""
    ends = {schedule.stages[0].stage: ["embed"]}
    ends.setdefault(schedule.stages[-1].stage, []).append("head")
    held = (s.extra.get("modules", ends.get(s.stage, ())) for s in schedule.stages if s.rank == rank)
    return frozenset(module for modules in held for module in modules)


def _finding(ranks: tuple[RankMemory, ...], remedy: str) -> Finding:
    worst = min(ranks, key=lambda rank: rank.free)
    over = [rank for rank in ranks if rank.free < 0]
    also = f" ({len(over)} of {len(ranks)} ranks do not fit)" if len(over) > 1 else ""
    problem = (
        f"needs {worst.total / 2**30:.2f} GiB a device and has {worst.limit / 2**30:.2f}: "
        f"{-worst.free / 2**30:.2f} GiB too much{also}; "
        f"KV: {worst.kv_tokens:,} tokens x {worst.kv_per_token:,} bytes"
    )
    return Finding("M1", f"rank {worst.rank}", problem, remedy, memory_table(ranks))
