"""Just enough SVG: elements as text, numbers short, and nothing that XML forbids."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(tag: str, *children: str, **attributes: str | float) -> str:
    """An element around ``children``, which are SVG already.

    Underscores in attributes' names become hyphens, one at the end is dropped (``class_``). Numbers are rounded to
    hundredths.
    """
    pieces = [tag]
    for name, value in attributes.items():
        text = value if isinstance(value, str) else number(value)
        pieces.append(f"{name.rstrip('_').replace('_', '-')}={quoteattr(clean(text))}")
    head = " ".join(pieces)
    return f"<{head}>{''.join(children)}</{tag}>" if children else f"<{head}/>"


def text(content: str, x: float, y: float, **attributes: str | float) -> str:
    """A line of text."""
    return element("text", escape(clean(content)), x=x, y=y, **attributes)


def title(content: str) -> str:
    """What a browser shows when the pointer rests on the element that holds it."""
    return element("title", escape(clean(content)))


def number(value: float) -> str:
    """A number as short as it can be written to hundredths."""
    return f"{value:.2f}".rstrip("0").rstrip(".").replace("-0", "0", 1 if abs(value) < 0.005 else 0)


def clean(content: str) -> str:
    """The text with every character that XML cannot hold replaced."""
    return _FORBIDDEN.sub("\ufffd", content)
