"""What the parts of a picture mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vppc.render.lanes import Run
from vppc.render.palette import HUES
from vppc.render.svg import element, text
from vppc.render.tables import count

LEFT, LINE, SWATCH = 70.0, 18.0, 18.0
_LISTED = 8
"""So many requests are named."""


class _Key(NamedTuple):
    swatch: str
    name: str


def legend(runs: Sequence[Run], view: str, blurred: bool, width: float, y: float) -> tuple[list[str], float]:
    """The legend from ``y`` on, as wide as the picture, and where it ends."""
    pieces: list[str] = []
    for keys in (list(_keys(runs, view, blurred)), list(_requests(runs))):
        x = LEFT
        for key in keys:
            needed = (SWATCH + 6 if key.swatch else 0) + 6.4 * len(key.name) + 16
            if x > LEFT and x + needed > width:
                x, y = LEFT, y + LINE
            if key.swatch:
                pieces.append(element("g", key.swatch, transform=f"translate({x:.2f} {y:.2f})"))
            pieces.append(text(key.name, x + (SWATCH + 6 if key.swatch else 0), y + 10, class_="ink", font_size=10))
            x += needed
        y += LINE if keys else 0
    return pieces, y + 4


def _keys(runs: Sequence[Run], view: str, blurred: bool) -> Iterator[_Key]:
    sweeps: list[list[str]] = [[], []]
    for schedule in (run.schedule for run in runs):
        for first in range(0, len(schedule.stages), schedule.pp):
            last = first + schedule.pp - 1
            name = f"s{first}" if first == last else f"s{first}-s{last}"
            if name not in sweeps[first // schedule.pp % 2]:
                sweeps[first // schedule.pp % 2].append(name)
    for sweep, names in enumerate(sweeps):
        if names:
            yield _Key(_box(class_=f"r0{sweep}"), f"chunk and stage, {', '.join(names)}")
    yield _Key(_box(fill="url(#bubble)"), "bubble")
    transfers = [each for run in runs for each in run.timing.transfers]
    if any(each.starts != each.ends for each in transfers):
        yield _Key(_box(fill="url(#exposed)"), "exposed transfer")
    if view == "logic" and any(each.starts for each in transfers):
        line = element("line", class_="arrow", x1=0, y1=6, x2=SWATCH, y2=6, marker_end="url(#head)")
        yield _Key(line, "transfer, where there is room for arrows" if blurred else "transfer")


def _requests(runs: Sequence[Run]) -> Iterator[_Key]:
    """The requests by hue, when there are several."""
    names = list(dict.fromkeys((number, each.id) for run in runs for number, each in enumerate(run.schedule.requests)))
    if len(names) < 2:
        return
    for number, name in names[:_LISTED]:
        yield _Key(_split(number), name if len(name) <= 24 else f"{name[:21]}...")
    if len(names) > _LISTED:
        yield _Key("", f"and {count(len(names) - _LISTED)} more")


def _split(request: int) -> str:
    hue = request % len(HUES)
    light = element("rect", class_=f"r{hue}0", width=SWATCH / 2, height=12)
    return light + element("rect", class_=f"r{hue}1", x=SWATCH / 2, width=SWATCH / 2, height=12)


def _box(**attributes: str | float) -> str:
    return element("rect", width=SWATCH, height=12, **attributes)
