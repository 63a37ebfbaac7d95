"""Pictures that a command writes: which files are such, and a picture as an SVG file, a page or a PNG file."""

from __future__ import annotations

from pathlib import PurePath

from vppc.errors import InputError
from vppc.files import write_bytes, write_text
from vppc.render.page import html_page
from vppc.render.png import needs_resvg, png

THEMES = ("auto", "light", "dark")
_PAGES = (".html", ".htm")
_PNG = ".png"
_OTHERS = (".jpg", ".jpeg", ".pdf")


def is_picture(output: str | None) -> bool:
    """Whether an output file is a picture by its name. Raises InputError for one that cannot be drawn."""
    if _suffix(output) in _OTHERS:
        raise not_drawn(output or "")
    if output is not None and _suffix(output) == _PNG:
        needs_resvg(output)
    return _suffix(output) in (".svg", _PNG, *_PAGES)


def not_drawn(output: str) -> InputError:
    """The error of a file that is no picture by its name."""
    suffix = _suffix(output)
    problem = f"{suffix or 'a file without a suffix'} is no format that can be drawn"
    return InputError(problem, file=output, place="-o", remedy="a name ending in .svg, .html or .png")


def write_picture(drawn: str, output: str | None, name: str, theme: str) -> None:
    """Write a picture as its file's name says: SVG, a page around it, or PNG; to stdout as SVG."""
    if output is not None and _suffix(output) == _PNG:
        write_bytes(output, png(drawn, output))
    else:
        write_text(output, html_page(drawn, name, theme) if _suffix(output) in _PAGES else drawn)


def _suffix(output: str | None) -> str:
    return PurePath(output).suffix.lower() if output is not None else ""
