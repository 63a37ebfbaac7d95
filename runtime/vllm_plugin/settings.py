"""What vLLM's ``--additional-config`` asks of vppc:

{"vppc": {"mode": "shadow", "journal": "DIR"}}      vLLM as it is, with a journal of its batches for ``vppc shadow``
{"virtual_pipeline_parallel_size": 2}               folded: two virtual stages a rank, of as many layers each
{"virtual_pipeline_parallel_size": 2, "vpp_layer_ranges": [[[0, 16], [46, 61]], [[16, 31], [31, 46]]],
 "vppc": {"strategy": "vpp-async", "max_in_flight": 3, "policy": "srpf", "chunks": "tuned.json", "costs": "cost.json"}}
                                                    the layers of each rank's stages, their order, the batches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.vllm_plugin.chunk_plan import PLACE, ChunkPlan, read_chunk_plan
from vppc.costs.model import CostModel, LayerCost
from vppc.errors import InputError
from vppc.passes.admission import default_in_flight
from vppc.serving.policy import POLICIES

FILE = "--additional-config"
VPP, RANGES, SECTION = "virtual_pipeline_parallel_size", "vpp_layer_ranges", "vppc"
FOLDING = ("vpp", "vpp-async", "vpp-packed")
"""The strategies whose chunks come back to the rank that they started on."""
MOST_IN_FLIGHT = 1024
LEAST, LONGEST = {"patience": 0, "ttft_target": 0, "silence": 1, "stall": 1}, 10**9
"""Seconds that may be asked for."""
BY_TIME = "dcpp"
"""Chunks that take equal time, as vLLM-Ascend cuts them."""
_KEYS = {
    "shadow": ("mode", "journal"),
    "fold": (
        "strategy", "max_in_flight", "policy", "patience", "ttft_target", "whole_prompts", "chunks", "costs", "silence",
        "stall",
    ),
}  # fmt: skip

Ranges = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Shadow:
    """Shadow mode, with the folder of its journal."""

    journal: Path


@dataclass(frozen=True, slots=True)
class Fold:
    """Folded serving. ``ranges`` are the layers of the stages, by rank, None for even ones; ``strategy`` orders them,
    and ``max_in_flight`` is how many batches it may have in flight, None for as many as it needs; ``policy`` says which
    prompt is next, None for vLLM's own, with its bound of ``patience`` and its ``ttft_target``, in seconds; with
    ``whole_prompts`` only whole ones share a batch; ``chunks`` is a schedule file, one prompt's chunk sizes, or
    :data:`BY_TIME`; ``costs`` is a cost file. After ``silence`` seconds without a beat a rank is given up, and after
    ``stall`` at one instruction, None for as many as vLLM's own limit lets it be known."""

    ranges: Ranges | None = None
    strategy: str = "vpp-async"
    max_in_flight: int | None = None
    policy: str | None = None
    patience: float = 60.0
    ttft_target: float = 10.0
    whole_prompts: bool = False
    chunks: str | tuple[int, ...] | None = None
    costs: str | None = None
    silence: float = 30.0
    stall: float | None = None

    def in_flight(self, pp: int) -> int:
        """How many batches are in flight: what the order of the strategy needs, or the paper's policy asks for."""
        if self.max_in_flight is not None:
            return self.max_in_flight
        if self.policy == "dual-queue":
            return pp + 1
        needed = default_in_flight((*range(pp), *reversed(range(pp))), self.strategy == "vpp-packed")
        return needed - (self.strategy == "vpp")  # a step of the blocking scheme has the late stage first

    def chunk_plan(self) -> ChunkPlan | None:
        """The tuned chunks. Raises InputError for a file that has none."""
        return None if self.chunks in (None, BY_TIME) else read_chunk_plan(self.chunks, FILE)

    def cost(self, layers: int) -> CostModel | None:
        """The costs. Raises InputError for a file that has none for a model of so many layers."""
        if self.costs is None:
            return None
        from vppc.costs.document import check_layers, read_cost  # with pydantic: only where something is priced

        cost = read_cost(self.costs)
        check_layers(cost, layers, file=self.costs)
        return cost

    def equal_cost(self, layers: int) -> CostModel:
        """What to go by without costs: all tokens take equally long, in all layers."""
        return CostModel((LayerCost(layers, per_token=1.0),))

    def layers(self, pp: int, layers: int) -> tuple[int, ...]:
        """How many layers each stage has, in the order in which a batch visits them: rank 0 to pp - 1, and back.

        Raises InputError for ranges that are not all layers of the model in that order.
        """
        stages = 2 * pp
        if self.ranges is None:
            return tuple(layers * (stage + 1) // stages - layers * stage // stages for stage in range(stages))
        if len(self.ranges) != pp:
            remedy = f"a pair of ranges for each of {pp} ranks"
            raise InputError(f"has {len(self.ranges)} entries", file=FILE, place=RANGES, remedy=remedy)
        visited = [first for first, _ in self.ranges] + [second for _, second in reversed(self.ranges)]
        ends = [0, *(end for _, end in visited)]
        if [start for start, _ in visited] != ends[:-1] or ends[-1] != layers or any(a >= b for a, b in visited):
            raise InputError(
                f"the stages have layers {', '.join(f'{a} to {b}' for a, b in visited)}, as a batch visits them",
                file=FILE,
                place=RANGES,
                remedy=f"0 to {layers} without gaps; of rank r first stage r, then stage {stages - 1} - r",
            )
        return tuple(end - start for start, end in visited)


def read_settings(additional: Any) -> Shadow | Fold | None:
    """What vLLM's additional config asks for; None for nothing. Raises InputError for what cannot be."""
    if not isinstance(additional, Mapping) or not {VPP, RANGES, SECTION} & additional.keys():
        return None
    section = additional.get(SECTION, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{section!r} is no object", file=FILE, place=SECTION, remedy='{"mode": "shadow", ...}')
    mode = section.get("mode", "fold" if VPP in additional or RANGES in additional else None)
    if (
        not isinstance(mode, str)
        or mode not in _KEYS
        or (mode == "fold") != (VPP in additional)
        or (mode == "fold" and "mode" in section)
    ):
        remedy = f'"shadow", or no mode and "{VPP}": 2'
        raise InputError(f"asks for {section.get('mode')!r}", file=FILE, place=f"{SECTION}.mode", remedy=remedy)
    for key in section:
        if key not in _KEYS[mode]:
            raise InputError("is not known", file=FILE, place=f"{SECTION}.{key}", remedy=", ".join(_KEYS[mode]))
    return _shadow(section) if mode == "shadow" else _fold(additional, section)


def _shadow(section: Mapping[str, Any]) -> Shadow:
    journal = section.get("journal")
    if not isinstance(journal, str) or not journal or "\0" in journal:
        raise InputError(f"{journal!r} is no folder", file=FILE, place="vppc.journal", remedy="a folder to write to")
    return Shadow(Path(journal))


def _fold(additional: Mapping[str, Any], section: Mapping[str, Any]) -> Fold:
    if additional[VPP] != 2:
        raise InputError(f"{additional[VPP]!r} stages a rank", file=FILE, place=VPP, remedy="2: a fold")
    most = section.get("max_in_flight")
    if most is not None and (type(most) is not int or not 1 <= most <= MOST_IN_FLIGHT):
        remedy = f"1 to {MOST_IN_FLIGHT}"
        raise InputError(f"{most!r:.40} is no number of batches", file=FILE, place="vppc.max_in_flight", remedy=remedy)
    strategy = section.get("strategy", "vpp-async")
    if strategy not in FOLDING:
        raise InputError(f"{strategy!r} does not fold", file=FILE, place="vppc.strategy", remedy=", ".join(FOLDING))
    policy = section.get("policy")
    if policy not in (None, *POLICIES):
        raise InputError(f"{policy!r} is none", file=FILE, place="vppc.policy", remedy=f"one of {', '.join(POLICIES)}")
    whole = section.get("whole_prompts", False)
    if type(whole) is not bool:
        raise InputError(f"{whole!r} is no answer", file=FILE, place="vppc.whole_prompts", remedy="true or false")
    chunks = section.get("chunks")
    if not isinstance(chunks, str | list | None) or (isinstance(chunks, str) and "\0" in chunks):
        raise InputError(f"{chunks!r} is no plan", file=FILE, place=PLACE, remedy="a schedule file, or a list of sizes")
    costs = section.get("costs")
    if not isinstance(costs, str | None) or "\0" in (costs or ""):
        raise InputError(f"{costs!r} is no file", file=FILE, place="vppc.costs", remedy="a cost file")
    sizes = tuple(chunks) if isinstance(chunks, list) else chunks
    ranges = _ranges(additional.get(RANGES))
    return Fold(ranges, strategy, most, policy, whole_prompts=whole, chunks=sizes, costs=costs, **_seconds(section))


def _seconds(section: Mapping[str, Any]) -> dict[str, float]:
    given = {key: section[key] for key in LEAST if key in section}
    for key, value in given.items():
        if type(value) not in (int, float) or not LEAST[key] <= value <= LONGEST:
            remedy = f"{LEAST[key]} to {LONGEST}"
            raise InputError(f"{value!r:.40} are no seconds", file=FILE, place=f"vppc.{key}", remedy=remedy)
    return given


def _ranges(given: Any) -> Ranges | None:
    if given is None:
        return None
    try:
        ranges = tuple(tuple((start, end) for start, end in rank) for rank in given)
    except (TypeError, ValueError):
        ranges = ()
    whole = all(type(bound) is int for rank in ranges for pair in rank for bound in pair)
    if not ranges or not whole or any(len(rank) != 2 for rank in ranges):
        remedy = "for each rank two half-open ranges of layers, as [[0, 16], [46, 61]]"
        raise InputError(f"{given!r} are no ranges of two stages a rank", file=FILE, place=RANGES, remedy=remedy)
    return ranges
