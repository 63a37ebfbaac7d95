"""The costs that a command prices a schedule with."""

from __future__ import annotations

from vppc.costs.document import check_layers, parse_cost, read_cost
from vppc.costs.model import CostModel
from vppc.files import check_one_stdin, source_name
from vppc.ir.schedule import Schedule


def chosen_cost(schedule: Schedule, file: str, cost_file: str | None) -> CostModel | None:
    """The costs in ``cost_file`` if the user gave one, else those that ``schedule``, read from ``file``, embeds.

    None when there are neither. Raises InputError when they are not for as many layers as the model has.
    """
    check_one_stdin((file, cost_file))
    if cost_file is not None:
        cost = read_cost(cost_file)
        check_layers(cost, schedule.model.layers, file=source_name(cost_file))
        return cost
    if "cost" not in schedule.extra:
        return None
    cost = parse_cost(schedule.extra["cost"], source_name(file), "cost")
    check_layers(cost, schedule.model.layers, file=source_name(file), place="cost.layers")
    return cost
