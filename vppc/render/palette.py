"""The colours of pictures: safe for the colour-blind and in grey, on white and on dark.

A hue stands for a request, and of a hue there is a light and a dark shade for even and odd sweeps. The hues follow
Okabe and Ito (https://jfly.uni-koeln.de/color/); all light shades are about as light as each other, and all dark ones
as dark, so that the sweeps can be told apart in grey. Neighbouring requests take hues that remain apart to readers
who see no red or no green.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Hue(NamedTuple):
    """The shades of even sweeps, with dark letters, and of odd ones, with light letters."""

    light: str
    dark: str


HUES = (
    Hue("#9fcbef", "#0f5a96"),  # blue
    Hue("#f7c873", "#8a5300"),  # orange
    Hue("#cfd4da", "#4d555f"),  # grey
    Hue("#f4dc5c", "#6b5d00"),  # yellow
    Hue("#8fd8c0", "#00644a"),  # green
)
ON_LIGHT, ON_DARK = "#14202b", "#ffffff"


class Theme(NamedTuple):
    """What is not a block: the background, letters, what is of less weight, bubbles, and exposed transfers.

    And the series of a chart: hues far apart, in the shade that is clear of the background.
    """

    paper: str
    ink: str
    faint: str
    hatch: str
    exposed: str
    series: tuple[str, ...]


SERIES = (4, 1, 0)
"""The hues of charts: green, orange, blue. Any two of them remain apart to readers who see no red or no green."""

LIGHT = Theme("#ffffff", "#1b2430", "#5d6875", "#b4bcc6", "#c8430d", tuple(HUES[hue].dark for hue in SERIES))
DARK = Theme("#0d1117", "#e8edf3", "#98a4b1", "#4a5563", "#ff9a62", tuple(HUES[hue].light for hue in SERIES))


def stylesheet(theme: str) -> str:
    """CSS for a timeline in a theme: ``light``, ``dark``, or ``auto``, the reader's choice, light in print.

    What is too thin for a light shade on white, or a dark one on dark, has the class ``c0`` of hue 0.
    """
    return _BASE + _themed(theme, lambda each: _rules(each) + _carried(each))


def chart_stylesheet(theme: str) -> str:
    """CSS for a chart in a theme, as :func:`stylesheet`; series 0 has the class ``s0`` if filled, ``l0`` as a line."""
    return _LETTERS + _themed(theme, lambda each: _rules(each) + _series(each))


def _themed(theme: str, rules: Callable[[Theme], str]) -> str:
    if theme == "auto":
        return f"{rules(LIGHT)}@media screen and (prefers-color-scheme:dark){{{rules(DARK)}}}"
    return rules(DARK if theme == "dark" else LIGHT)


def _carried(theme: Theme) -> str:
    return "".join(f".c{number}{{fill:{hue.light if theme is DARK else hue.dark}}}" for number, hue in enumerate(HUES))


def _series(theme: Theme) -> str:
    return "".join(
        f".s{number}{{fill:{shade}}}.l{number}{{stroke:{shade};fill:none}}" for number, shade in enumerate(theme.series)
    )


_LETTERS = (
    "text{font-family:'DejaVu Sans',Verdana,Helvetica,Arial,sans-serif}"
    ".m{text-anchor:middle}.e{text-anchor:end}.b{font-weight:bold}"
)
_BASE = (
    _LETTERS
    + "".join(
        f".r{number}{sweep}{{fill:{shade}}}" for number, each in enumerate(HUES) for sweep, shade in enumerate(each)
    )
    + f".t0{{fill:{ON_LIGHT}}}.t1{{fill:{ON_DARK}}}.g:hover rect{{opacity:.75}}"
)


def _rules(theme: Theme) -> str:
    return (
        f".paper{{fill:{theme.paper}}}.ink{{fill:{theme.ink}}}.faint{{fill:{theme.faint}}}"
        f".line{{stroke:{theme.faint};fill:none}}.edge{{stroke:{theme.paper}}}"
        f".arrow{{stroke:{theme.ink};fill:none}}.head{{fill:{theme.ink}}}"
        f".hatch{{stroke:{theme.hatch}}}.hot{{stroke:{theme.exposed}}}.warm{{fill:{theme.exposed}}}"
    )
