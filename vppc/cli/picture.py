"""Pictures that a command writes: which files are such, and a picture as an SVG file, a page or a PNG file."""

from __future__ import annotations

from vppc.cli.output import PAGES, PICTURES, suffix_of
from vppc.files import write_bytes, write_text
from vppc.render.page import html_page
from vppc.render.png import needs_resvg, png

THEMES = ("auto", "light", "dark")
_PNG = ".png"


def is_picture(output: str | None) -> bool:
    """Whether an output file is a picture by its name. Raises InputError for one that cannot be drawn here."""
    if output is not None and suffix_of(output) == _PNG:
        needs_resvg(output)
    return suffix_of(output) in PICTURES


def write_picture(drawn: str, output: str | None, name: str, theme: str) -> None:
    """Write a picture as its file's name says: SVG, a page around it, or PNG; to stdout as SVG."""
    if output is not None and suffix_of(output) == _PNG:
        write_bytes(output, png(drawn, output))
    else:
        write_text(output, html_page(drawn, name, theme) if suffix_of(output) in PAGES else drawn)
