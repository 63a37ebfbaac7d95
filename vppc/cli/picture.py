"""Pictures that a command writes: which files are such, and a picture as an SVG file or a page."""

from __future__ import annotations

from pathlib import PurePath

from vppc.errors import InputError
from vppc.render.page import html_page

THEMES = ("auto", "light", "dark")
_PAGES = (".html", ".htm")
_OTHERS = (".png", ".jpg", ".jpeg", ".pdf")


def is_picture(output: str | None) -> bool:
    """Whether an output file is a picture by its name. Raises InputError for one that cannot be drawn."""
    if _suffix(output) in _OTHERS:
        raise not_drawn(output or "")
    return _suffix(output) in (".svg", *_PAGES)


def not_drawn(output: str) -> InputError:
    """The error of a file that is no picture by its name."""
    suffix = _suffix(output)
    remedy = "write plan.svg and convert it: rsvg-convert plan.svg -o plan.png" if suffix in _OTHERS else ""
    problem = f"{suffix or 'a file without a suffix'} is no format that can be drawn"
    return InputError(problem, file=output, place="-o", remedy=remedy or "a name ending in .svg or .html")


def as_file(drawn: str, output: str | None, name: str, theme: str) -> str:
    """The text of the output file for a picture: a page around it, if that is what the file's name says."""
    return html_page(drawn, name, theme) if _suffix(output) in _PAGES else drawn


def _suffix(output: str | None) -> str:
    return PurePath(output).suffix.lower() if output is not None else ""
