"""Which rank holds which stage: a box a stage, ranks side by side, a row a sweep, and the way of a chunk."""

from __future__ import annotations

from collections.abc import Iterator

from vppc.ir.placement import stage_ranks
from vppc.render.page import picture
from vppc.render.palette import stylesheet
from vppc.render.svg import element, text

RANKS = 3
SHOWN = (("straight", 1), ("v", 2), ("zigzag", 4), ("loop", 2))
BOX, ROW, APART = 46.0, 26.0, 18.0
"""Width and height of a box, and pixels between boxes."""
PANEL = RANKS * (BOX + APART) + 34


def pictures() -> Iterator[tuple[str, str]]:
    """The placements side by side, by file name."""
    body: list[str] = []
    for number, (placement, vp) in enumerate(SHOWN):
        body += _panel(placement, vp, 24 + number * PANEL)
    sweeps = max(vp for _, vp in SHOWN)
    height = 52 + sweeps * (ROW + APART)
    yield "pass-layout.svg", picture("layout", body, round(24 + len(SHOWN) * PANEL), height, stylesheet("auto"))


def _panel(placement: str, vp: int, left: float) -> Iterator[str]:
    yield text(placement if vp < 3 else f"{placement}, {vp} a rank", left, 20, class_="ink b", font_size=12)
    for rank in range(RANKS):
        yield text(f"rank {rank}", left + rank * (BOX + APART) + BOX / 2, 38, class_="faint m", font_size=10)
    before: tuple[float, float] | None = None
    for stage, rank in enumerate(stage_ranks(placement, RANKS, vp)):
        sweep = stage // RANKS
        x, y = left + rank * (BOX + APART), 46 + sweep * (ROW + APART)
        yield element("rect", class_=f"r0{sweep % 2}", x=x, y=y, width=BOX, height=ROW, rx=3)
        yield text(f"s{stage}", x + BOX / 2, y + 17, class_=f"t{sweep % 2} m", font_size=11)
        if before is not None:
            yield _arrow(before, (x, y))
        before = x, y


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From box to box: along a row, down where a chunk stays, or from one end of a row to the other's."""
    (x1, y1), (x2, y2) = start, end
    middle = ROW / 2
    if y1 == y2:
        towards = x2 > x1
        ends = (x1 + BOX if towards else x1, y1 + middle, x2 if towards else x2 + BOX, y2 + middle)
    else:
        ends = (x1 + BOX / 2, y1 + ROW, x2 + BOX / 2, y2)
    names = dict(zip(("x1", "y1", "x2", "y2"), ends, strict=True))
    return element("line", class_="arrow", marker_end="url(#head)", **names)
