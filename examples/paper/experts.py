"""Expert parallelism off: which of VPP's steady-state bubbles come back, and why.

The paper expects them where "attention becomes less dominant or EP is disabled". A dearer chunk alone brings none: a
rank's early stage of chunk k + d and late stage of chunk k - d take as long as two stages of chunk k whatever constant
each has. What is uneven are the layers: DeepSeek's first three are dense, and fall behind the more the experts of the
others cost. Costs by roofline, 64 layers instead of 61, so that the ranks have equally many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from examples.paper.deepseek import LENGTHS, length
from vppc.analysis.activity import Activity
from vppc.analysis.bubbles import bubbles, totals
from vppc.analysis.timing import simulate
from vppc.compare import equal_prompts
from vppc.compiler import compile_schedule
from vppc.costs.devices import find_device
from vppc.costs.model import CostModel, OpCosts
from vppc.costs.roofline import roofline_cost
from vppc.ir.schedule import Model
from vppc.models import load_model
from vppc.passes.strategies import Options
from vppc.render.tables import percent, table

LAYERS = 64
SIZE = 8192
SLOWER = 3.0
"""As if products of experts cut in eight reach a third of the rate: a guess, to see where it leads."""


def experts() -> str:
    """The greatest steady-state bubble of a rank under ``vpp``, as a part of the makespan."""
    lines = [
        (f"{ranks}", what, *(percent(steady_bubble(cost, ranks, tokens)) for tokens in LENGTHS))
        for ranks in (2, 4)
        for what, cost in ways()
    ]
    return table(("ranks", "experts", *map(length, LENGTHS)), lines, align="<<")


def steady_bubble(cost: CostModel, ranks: int, tokens: int, size: int = SIZE) -> float:
    """The part of the makespan in which the rank that waits most does so while chunks enter and leave."""
    options = Options(strategy="vpp", pp=ranks, chunk_size=size)
    schedule = compile_schedule(equal_prompts(tokens).requests, Model(cost.name, cost.layer_count), cost, options)
    timing = simulate(schedule, OpCosts.of(schedule, cost))
    activity = Activity.of(schedule, timing)
    waited = max(totals(mine, "phase")["steady"] for mine in bubbles(activity))
    return round(waited / activity.end, 9)  # where ranks keep step, sums differ in their last digits


def ways() -> Iterator[tuple[str, CostModel]]:
    """Experts whole and cut, and what costs they make."""
    cases = (("whole (EP 8)", 8, 1.0), ("cut (EP off)", 1, 1.0), (f"cut, {SLOWER:g} times as long", 1, SLOWER))
    for what, ep, slower in cases:
        spec, device = load_model("deepseek-v3.1"), find_device("910c")
        dense, mixed = roofline_cost(spec, device, tp=8, ep=ep, weight_dtype="w8a8").layers
        mixed = replace(mixed, fixed=slower * mixed.fixed, per_token=slower * mixed.per_token)
        yield what, CostModel((dense, replace(mixed, count=LAYERS - dense.count)))
    yield f"{what}, in all layers", CostModel((replace(mixed, count=LAYERS),))
