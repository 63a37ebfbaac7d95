"""Pictures as PNG, by resvg, which draws the SVG with the fonts of this machine."""

from __future__ import annotations

import re
from importlib.util import find_spec

from vppc.errors import InputError
from vppc.render.svg import element, text

ZOOM = 2.0
"""Pixels of the file for one of the picture, so that letters are sharp on fine screens and in print."""

MOST_PIXELS = 2**27
"""Of a file: they take half a GiB while it is drawn."""


def needs_resvg(output: str) -> None:
    """Raises InputError where PNG cannot be drawn."""
    if find_spec("resvg_py") is None:
        remedy = "pip install 'vppc[report]', or write .svg"
        raise InputError("PNG needs resvg_py, which is not installed", file=output, place="-o", remedy=remedy)


def png(drawn: str, output: str) -> bytes:
    """The PNG of an SVG picture. Raises InputError where no font is found: letters would be missing;
    and of a picture that is too large.
    """
    import resvg_py

    root = drawn[: drawn.index(">")]
    width, height = (ZOOM * float(re.findall(rf' {side}="([0-9.]+)"', root)[0]) for side in ("width", "height"))
    if width * height > MOST_PIXELS:
        problem = f"{width:,.0f} x {height:,.0f} pixels are too many for a PNG"
        remedy = f"at most {MOST_PIXELS:,}: a smaller picture, or write .svg"
        raise InputError(problem, file=output, place="-o", remedy=remedy)
    letters = _probe(text("C0", 2, 12, font_family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"))
    if resvg_py.svg_to_bytes(svg_string=letters) == resvg_py.svg_to_bytes(svg_string=_probe("")):
        remedy = "install one, such as Debian's fonts-dejavu-core, or write .svg"
        raise InputError("no font is found to draw letters with", file=output, place="-o", remedy=remedy)
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn, zoom=ZOOM))


def _probe(body: str) -> str:
    return element("svg", body or element("g"), xmlns="http://www.w3.org/2000/svg", width=20, height=16)
