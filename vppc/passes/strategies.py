"""Strategies: named lists of passes.

===========  =========  ======================  =====================  ===========
strategy     placement  chunks                  order                  transfers
===========  =========  ======================  =====================  ===========
cpp          straight   fixed                   chunk by chunk         overlapped
dcpp         straight   vLLM-Ascend's dynamic   chunk by chunk         overlapped
dcpp-sglang  straight   SGLang's dynamic        chunk by chunk         overlapped
vpp          v          fixed                   by step, a barrier     blocking
vpp-async    v          fixed                   listed, a barrier      overlapped
vpp-packed   v          fixed                   listed, packed         overlapped
===========  =========  ======================  =====================  ===========

The barrier: of several requests, rank 0 finishes one before it starts the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, get_args

from vppc.costs.model import CostModel
from vppc.errors import InputError
from vppc.ir.partition import SPLITS, Ranges
from vppc.ir.placement import DEFAULT_VP, stage_ranks
from vppc.ir.schedule import Schedule
from vppc.passes.admission import Admission, default_in_flight
from vppc.passes.allocate_buffers import AllocateBuffers, run_ahead_pool
from vppc.passes.async_reorder import AsyncReorder
from vppc.passes.balanced_split import BalancedSplit
from vppc.passes.chunking import FixedChunks
from vppc.passes.dynamic_chunking import DcppChunks, SglangChunks
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.layout import Layout
from vppc.passes.online_chunking import Measured, OnlineChunks
from vppc.passes.order import StepOrder
from vppc.passes.prompt_batching import BatchPrompts
from vppc.passes.request_packing import RequestPacking


class Pass(Protocol):
    """A pure function from schedule to schedule, valid before and after."""

    @property
    def name(self) -> str: ...

    def __call__(self, schedule: Schedule) -> Schedule: ...


STRATEGIES = ("cpp", "dcpp", "dcpp-sglang", "vpp", "vpp-async", "vpp-packed")
_KINDS = (
    FixedChunks,
    DcppChunks,
    OnlineChunks,
    SglangChunks,
    BatchPrompts,
    Layout,
    StepOrder,
    AsyncReorder,
    RequestPacking,
    InsertTransfers,
    AllocateBuffers,
)
MEASURED_TIMES = ("offline", *get_args(Measured))
BALANCED = "balanced"
LAYER_SPLITS = (*SPLITS, BALANCED)
"""How layers are shared out: as engines do, or by their costs (:mod:`vppc.passes.balanced_split`)."""
PASS_NAMES = tuple(dict.fromkeys(kind.name for kind in _KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a strategy's passes are told; None means the default of the strategy.

    ``chunk_size`` is the size of fixed chunks and the budget of dynamic ones, in tokens. ``split`` is one of
    LAYER_SPLITS; ``ranges`` gives the layers of every stage, in stage order, instead. ``token_budget`` batches short
    prompts into chunks of at most that many tokens. The others are the dynamic policies': ``measured_time`` is what
    vLLM-Ascend's learns from while it serves, "own" or "wait" of :mod:`vppc.passes.online_chunking`, or "offline"
    for its start-up profile alone; ``warmups`` prompts were served before.
    """

    strategy: str = "vpp-packed"
    pp: int = 2
    placement: str | None = None
    vp: int | None = None
    chunk_size: int = 8192
    split: str | None = None
    ranges: Ranges | None = None
    max_in_flight: int | None = None
    max_resident_tokens: int | None = None
    max_buffers: int | None = None
    token_budget: int | None = None
    page_size: int = 128
    min_chunk: int | None = None
    smooth: float | None = None
    context_length: int | None = None
    measured_time: str = "offline"
    warmups: int = 1

    @property
    def smallest_chunk(self) -> int:
        """Tokens of vLLM-Ascend's dynamic chunks at least: 4,096 unless given, as there, but at most half the
        budget, so that there is something to choose."""
        return min(4096, max(1, self.chunk_size // 2)) if self.min_chunk is None else self.min_chunk

    @property
    def contestant(self) -> str:
        """The strategy, and for dynamic chunks what the engine measures: ``dcpp (wait, 1 warm-up)``."""
        if self.strategy != "dcpp":
            return self.strategy
        if self.measured_time == "offline":
            return "dcpp (offline)"
        return f"dcpp ({self.measured_time}, {self.warmups} warm-up{'s' * (self.warmups != 1)})"


def passes(options: Options, cost: CostModel) -> tuple[Pass, ...]:
    """The passes of a strategy, in order. Raises InputError for options that do not go together."""
    if options.strategy not in STRATEGIES:
        raise InputError(
            f"unknown strategy {options.strategy!r}",
            place="--strategy",
            remedy=f"choose one of {', '.join(STRATEGIES)}",
        )
    placement, vp, ranks = layout_of(options)
    _check(options, placement)
    split = BalancedSplit(cost, options.chunk_size) if options.split == BALANCED else options.split
    layout = Layout(placement, vp, split, options.ranges)
    first: list[Pass] = [chunking(options, cost, layout)]
    if options.token_budget is not None:
        first.append(BatchPrompts(options.token_budget))
    first.append(layout)
    return (*first, *_ordering(options, cost, ranks), InsertTransfers(cost), AllocateBuffers(cost, options.max_buffers))


def layout_of(options: Options) -> tuple[str, int, tuple[int, ...]]:
    """The placement, the stages a rank, and the rank of every stage that a strategy will use.

    Raises InputError for a placement that it cannot use.
    """
    folds = options.strategy.startswith("vpp")
    placement = options.placement or ("v" if folds else "straight")
    if not folds and placement != "straight":
        raise InputError(
            f"strategy {options.strategy} is for the straight placement, not {placement}",
            place="--placement",
            remedy="use vpp, vpp-async or vpp-packed with more than one stage a rank",
        )
    vp = options.vp if options.vp is not None else DEFAULT_VP.get(placement, 1)
    return placement, vp, stage_ranks(placement, options.pp, vp)


def run_ahead(options: Options) -> int:
    """Chunks that a strategy lets in ahead: in flight, or on a straight placement the buffers of a rank."""
    _, _, ranks = layout_of(options)
    if len(ranks) == options.pp:
        return options.max_buffers or run_ahead_pool(options.pp)
    return options.max_in_flight or default_in_flight(ranks, options.strategy == "vpp-packed")


def chunking(
    options: Options, cost: CostModel, layout: Layout
) -> FixedChunks | DcppChunks | OnlineChunks | SglangChunks:
    """The pass that makes a strategy's chunks."""
    if options.strategy == "dcpp":
        smooth = 1.0 if options.smooth is None else options.smooth
        startup = DcppChunks(options.chunk_size, cost, options.page_size, smooth, options.smallest_chunk)
        if options.measured_time == "offline":
            return startup
        return OnlineChunks(startup, layout, options.measured_time, options.warmups)
    if options.strategy == "dcpp-sglang":
        smooth = 0.75 if options.smooth is None else options.smooth
        return SglangChunks(
            options.chunk_size, cost, page=options.page_size, smooth=smooth, context=options.context_length
        )
    return FixedChunks(options.chunk_size)


def _ordering(options: Options, cost: CostModel, ranks: tuple[int, ...]) -> tuple[Pass, ...]:
    def admission(*, packed: bool = False, barrier: bool = False) -> Admission:
        ahead = options.max_in_flight or (None if len(ranks) == options.pp else default_in_flight(ranks, packed))
        return Admission(ahead, options.max_resident_tokens, barrier)

    match options.strategy:
        case "vpp":
            return (StepOrder(admission(barrier=True), blocking=True),)
        case "vpp-async":
            one_by_one = admission(barrier=True)
            return StepOrder(one_by_one), AsyncReorder(cost, one_by_one)
        case "vpp-packed":
            one_by_one = admission(barrier=True)
            return (
                StepOrder(one_by_one),
                AsyncReorder(cost, one_by_one),
                RequestPacking(cost, admission(packed=True)),
            )
        case _:
            return (StepOrder(admission()),)


def _check(options: Options, placement: str) -> None:
    limits = (("--max-in-flight", options.max_in_flight), ("--max-resident-tokens", options.max_resident_tokens))
    for option, limit in limits:
        if limit is not None and placement == "straight" and options.pp > 1:
            raise InputError(
                "on a straight placement rank 0 never sees a chunk finish, so it cannot count those in flight",
                place=option,
                remedy="bound the run-ahead with --max-buffers, or use a placement that returns to rank 0",
            )
