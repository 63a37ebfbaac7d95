"""Rules of segments: each goes on where the file before it ended."""

from __future__ import annotations

from collections.abc import Sequence

from vppc.ir.rules.registry import Report
from vppc.ir.segment import Segment


def check_chain(segment: Segment, sequence: int, digest: str, lengths: Sequence[int], report: Report) -> None:
    """Judge that a segment fits behind what was read (rules G1 to G5).

    It must be number ``sequence``, behind the file with this ``digest`` (empty: not known), and each rank's
    list has this length.
    """
    here = f"segment {segment.sequence}"
    if segment.sequence != sequence:
        report.add("G1", f"{here}: sequence", f"segment {sequence} comes next", "give the segments in order, every one")
    if digest and segment.previous != digest:
        report.add(
            "G2",
            f"{here}: previous",
            f"is {segment.previous}, but the file before it has the digest {digest}",
            "give the very file that the segment was made for",
        )
    for key in ("stages", "channels"):
        if key in segment.extra:
            report.add("G5", f"{here}: {key}", f"adds {key}", f"start a new schedule to change its {key}")
    seen: set[int] = set()
    for index, program in enumerate(segment.programs):
        place = f"{here}: programs[{index}]"
        if not 0 <= program.rank < len(lengths):
            problem = f"rank {program.rank} does not exist"
            report.add("G4", f"{place}.rank", problem, f"name one of the {len(lengths)} ranks of the schedule")
        elif program.rank in seen:
            report.add("G4", f"{place}.rank", f"rank {program.rank} has a program already", "join the two")
        elif program.start != lengths[program.rank]:
            problem = (
                f"is {program.start}, but the list of rank {program.rank} has {lengths[program.rank]} instructions"
            )
            report.add("G3", f"{place}.from", problem, "give every segment once, in order, behind its schedule")
        if "buffers" in program.extra:
            remedy = "start a new schedule, with buffers for all that is to come"
            report.add("G5", f"{place}.buffers", "sets the number of buffers, which is the schedule's", remedy)
        seen.add(program.rank)
