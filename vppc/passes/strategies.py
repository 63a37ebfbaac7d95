"""Strategies: named lists of passes.

===========  =========  ======================  =========================  ===========
strategy     placement  chunks                  order                      transfers
===========  =========  ======================  =========================  ===========
cpp          straight   fixed                   chunk by chunk             overlapped
dcpp         straight   vLLM-Ascend's dynamic   chunk by chunk             overlapped
dcpp-sglang  straight   SGLang's dynamic        chunk by chunk             overlapped
vpp          v          fixed                   by step                    blocking
vpp-async    v          fixed                   list schedule, a barrier   overlapped
vpp-packed   v          fixed                   list schedule across       overlapped
===========  =========  ======================  =========================  ===========
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from vppc.costs.model import CostModel
from vppc.errors import InputError
from vppc.ir.placement import DEFAULT_VP, stage_ranks
from vppc.ir.schedule import Schedule
from vppc.passes.admission import Admission, default_in_flight
from vppc.passes.allocate_buffers import AllocateBuffers
from vppc.passes.async_reorder import AsyncReorder
from vppc.passes.chunking import FixedChunks
from vppc.passes.dynamic_chunking import DcppChunks, SglangChunks
from vppc.passes.insert_transfers import InsertTransfers
from vppc.passes.layout import Layout
from vppc.passes.order import StepOrder
from vppc.passes.prompt_batching import BatchPrompts
from vppc.passes.request_packing import RequestPacking


class Pass(Protocol):
    """A pure function from schedule to schedule, valid before and after."""

    name: ClassVar[str]

    def __call__(self, schedule: Schedule) -> Schedule: ...


STRATEGIES = ("cpp", "dcpp", "dcpp-sglang", "vpp", "vpp-async", "vpp-packed")
PASSES = (
    "chunking",
    "batch_prompts",
    "layout",
    "order",
    "async_reorder",
    "request_packing",
    "insert_transfers",
    "allocate_buffers",
)
