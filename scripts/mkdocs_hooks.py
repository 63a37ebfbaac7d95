"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import re

_ROLE = re.compile(r":(?:func|class|meth|mod|data):<code>[~.]?(.*?)</code>")


def on_page_content(html: str, **_: object) -> str:
    """Docstrings name other objects as Sphinx has it; the page shows the names alone."""
    return _ROLE.sub(r"<code>\1</code>", html)
