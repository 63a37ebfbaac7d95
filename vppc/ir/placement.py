"""Placements: which rank holds which virtual stage.

``straight``  one stage a rank, in order.                       P=3: 0 1 2
``v``         two stages a rank, out and back (fold-back).      P=3: 0 1 2 2 1 0
``zigzag``    the V repeated: odd sweeps run backwards.         P=3, vp=4: 0 1 2 2 1 0 0 1 2 2 1 0
``loop``      every sweep starts again at rank 0 (interleaved). P=3, vp=2: 0 1 2 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vppc.errors import InputError

PLACEMENTS = ("straight", "v", "zigzag", "loop")
DEFAULT_VP = {"straight": 1, "v": 2, "zigzag": 4, "loop": 2}


def stage_ranks(placement: str, pp: int, vp: int) -> tuple[int, ...]:
    """The rank of every stage, in stage order, for ``pp`` ranks with ``vp`` stages each.

    Raises InputError when the placement does not exist or has no such ``vp``.
    """
    if placement not in PLACEMENTS:
        raise InputError(f"unknown placement {placement!r}", remedy=f"choose one of {', '.join(PLACEMENTS)}")
    if placement == "straight" and vp != 1:
        raise InputError(f"placement straight has vp 1, not {vp}", remedy="use v, zigzag or loop for more stages")
    if placement == "v" and vp != 2:
        raise InputError(f"placement v has vp 2, not {vp}", remedy="use zigzag or loop for more stages")
    if placement in ("zigzag", "loop") and vp < 2:
        raise InputError(f"placement {placement} needs vp of at least 2, not {vp}", remedy="use straight for vp 1")
    ranks: list[int] = []
    for sweep in range(vp):
        backwards = sweep % 2 == 1 and placement in ("v", "zigzag")
        ranks.extend(range(pp - 1, -1, -1) if backwards else range(pp))
    return tuple(ranks)


def hops(ranks: Sequence[int]) -> tuple[int, ...]:
    """For every stage, how many transfers a chunk has made before it (folds make none)."""
    counts = [0]
    for here, there in pairwise(ranks):
        counts.append(counts[-1] + (here != there))
    return tuple(counts)


def edges(ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The (src, dst) rank pairs between which consecutive stages pass, in order of first use."""
    return tuple(dict.fromkeys((src, dst) for src, dst in pairwise(ranks) if src != dst))
