"""What the compute of each rank is spent on, by the terms of the cost model: the paper's Table 2(b) for a schedule."""

from __future__ import annotations

from vppc.costs.model import CostModel, LayerCost, OpCosts
from vppc.ir.schedule import Schedule

PARTS = {
    "attention": ("per_pair", "indexer_per_pair"),
    "prefix rebuild": ("per_prefix_token",),
    "other layers": ("fixed", "per_token"),
}
"""Which terms of a layer's cost stand for what."""
LAUNCH, ENDS = "launch", "embedding and head"


def compute_parts(schedule: Schedule, cost: CostModel) -> tuple[dict[str, float], ...]:
    """For every rank the seconds of its FORWARDs by part; they add up to its compute, without interference."""
    priced = {
        name: CostModel(
            tuple(
                LayerCost(each.count, topk=each.topk, **{term: getattr(each, term) for term in terms})
                for each in cost.layers
            )
        )
        for name, terms in PARTS.items()
    }
    bare = tuple(LayerCost(each.count) for each in cost.layers)
    priced[LAUNCH] = CostModel(bare, launch=cost.launch)
    priced[ENDS] = CostModel(bare, embed=cost.embed, head=cost.head)
    stages = len(schedule.stages)
    parts: tuple[dict[str, float], ...] = tuple({} for _ in schedule.rank_stages)
    for name, only in priced.items():
        seconds = OpCosts.of(schedule, only).seconds
        for held, mine in zip(parts, schedule.rank_stages, strict=True):
            held[name] = sum(sum(seconds[stage::stages]) for stage in mine)
    return parts
