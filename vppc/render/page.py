"""What is around every picture: the SVG document with its style and patterns, and an HTML page to hold it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vppc.render.palette import DARK, LIGHT
from vppc.render.svg import element, title


def picture(name: str, body: Iterable[str], width: int, height: float, sheet: str) -> str:
    """The text of an SVG file; ``body`` may use the patterns ``bubble`` and ``exposed``, and ``head`` for arrows."""
    size = {"width": width, "height": math.ceil(height)}
    paper = element("rect", class_="paper", width="100%", height="100%")
    return (
        element(
            "svg",
            "\n".join([title(name), element("style", sheet), _DEFINITIONS, paper, *body]),
            xmlns="http://www.w3.org/2000/svg",
            **size,
            viewBox=f"0 0 {size['width']} {size['height']}",
            role="img",
        )
        + "\n"
    )


def html_page(drawn: str, name: str, theme: str) -> str:
    """A picture in an HTML page that needs nothing else."""
    scheme = "light dark" if theme == "auto" else theme
    paper = f"background:{(DARK if theme == 'dark' else LIGHT).paper}"
    style = f":root{{color-scheme:{scheme}}}body{{margin:0;{paper}}}svg{{display:block;margin:auto;max-width:none}}"
    if theme == "auto":
        style += f"@media screen and (prefers-color-scheme:dark){{body{{background:{DARK.paper}}}}}"
    head = f'<meta charset="utf-8">\n{title(name)}\n{element("style", style)}'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{drawn}</body>\n</html>\n'


_DEFINITIONS = element(
    "defs",
    element(
        "pattern",
        element("path", class_="hatch", d="M-1 1l2-2M0 7l7-7M6 8l2-2", stroke_width=1),
        id="bubble",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
    ),
    element(
        "pattern",
        element("circle", class_="warm", cx=2, cy=2, r=1.1),
        id="exposed",
        width=4,
        height=4,
        patternUnits="userSpaceOnUse",
    ),
    element(
        "marker",
        element("path", class_="head", d="M0 0L6 3L0 6z"),
        id="head",
        viewBox="0 0 6 6",
        refX=5.5,
        refY=3,
        markerWidth=5.5,
        markerHeight=5.5,
        orient="auto",
    ),
)
