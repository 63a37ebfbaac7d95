"""Rules of the header: stages, layer ranges, programs and channels, before any instruction is read."""

from __future__ import annotations

from collections import Counter

from vppc.ir.placement import edges
from vppc.ir.rules.registry import Report
from vppc.ir.schedule import Schedule


def check_header(schedule: Schedule, report: Report) -> None:
    """Judge what the instructions stand on (rules S1 to S6, C1 to C3)."""
    _check_stages(schedule, report)
    _check_layers(schedule, report)
    _check_cost(schedule, report)
    _check_programs(schedule, report)
    _check_channels(schedule, report)


def _check_stages(schedule: Schedule, report: Report) -> None:
    stages, pp, vp = schedule.stages, schedule.pp, schedule.vp
    if len(stages) != pp * vp or not stages:
        report.add(
            "S1",
            "stages",
            f"{len(stages)} stages, but pp {pp} x vp {vp} make {pp * vp}",
            "list every stage of every rank once",
        )
    for index, stage in enumerate(stages):
        if stage.stage != index:
            report.add(
                "S1",
                f"stages[{index}]",
                f"is numbered {stage.stage}",
                f"list the stages in the order a chunk visits them; this one is number {index}",
            )
        if not 0 <= stage.rank < pp:
            place = f"stages[{index}].rank"
            report.add("S2", place, f"rank {stage.rank} does not exist", f"name a rank below pp {pp}")
    for rank, count in sorted(Counter(stage.rank for stage in stages).items()):
        if 0 <= rank < pp and count != vp:
            report.add("S2", "stages", f"rank {rank} holds {count} stages, not vp {vp}", f"give each rank {vp}")


def _check_layers(schedule: Schedule, report: Report) -> None:
    expected = 0
    for index, stage in enumerate(schedule.stages):
        first, last = stage.layers
        place = f"stages[{index}].layers"
        if last <= first:
            report.add("S4", place, f"[{first}, {last}] holds no layer", "give every stage at least one layer")
        if first != expected:
            before = "the stage before it ends there" if index else "the model starts there"
            report.add(
                "S3", place, f"starts at layer {first}, not {expected}", f"start it at {expected}: {before}, in order"
            )
        expected = last
    if schedule.stages and expected != schedule.model.layers:
        report.add(
            "S3",
            f"stages[{len(schedule.stages) - 1}].layers",
            f"ends at layer {expected}, but the model has {schedule.model.layers} layers",
            f"end the last stage at {schedule.model.layers}, so that every layer runs once",
        )


def _check_cost(schedule: Schedule, report: Report) -> None:
    if "cost" not in schedule.extra:
        return
    try:
        count = sum(kind["count"] for kind in schedule.extra["cost"]["layers"])
    except (KeyError, TypeError):  # a document that no reader has looked at
        report.add("S6", "cost", "is no cost document", "embed one, or leave the key out")
        return
    if count != schedule.model.layers:
        problem = f"the counts add up to {count} layers, but the model has {schedule.model.layers}"
        report.add("S6", "cost.layers", problem, "embed the costs of this model")


def _check_programs(schedule: Schedule, report: Report) -> None:
    ranks = [program.rank for program in schedule.programs]
    if len(ranks) != schedule.pp:
        problem = f"{len(ranks)} programs for {schedule.pp} ranks"
        report.add("S5", "programs", problem, "give every rank one program, in rank order")
    for index, rank in enumerate(ranks):
        if rank != index:
            place = f"programs[{index}].rank"
            report.add("S5", place, f"is {rank}, not {index}", "give every rank one program, in rank order")


def _check_channels(schedule: Schedule, report: Report) -> None:
    first: dict[int, int] = {}
    for index, channel in enumerate(schedule.channels):
        place = f"channels[{index}]"
        if first.setdefault(channel.id, index) != index:
            report.add(
                "C1", place, f"has id {channel.id}, as has channels[{first[channel.id]}]", "number the channels apart"
            )
        for end in (channel.src, channel.dst):
            if not 0 <= end < schedule.pp:
                report.add("C2", place, f"rank {end} does not exist", f"name ranks below pp {schedule.pp}")
        if channel.src == channel.dst:
            problem = f"leads from rank {channel.src} to itself"
            report.add("C2", place, problem, "stages of one rank pass activations in a buffer; remove the channel")
    have = {(channel.src, channel.dst) for channel in schedule.channels}
    for src, dst in edges(schedule.stage_ranks):
        if (src, dst) not in have:
            back = ", apart from the one back" if (dst, src) in have else ""
            report.add(
                "C3",
                "channels",
                f"no channel leads from rank {src} to rank {dst}, where a stage of one hands to a stage of the other",
                f"add a channel with src {src} and dst {dst}{back}",
            )
