"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vppc.cli.schema import SCHEMAS

_ROLE = re.compile(r":(?:func|class|meth|mod|data):<code>[~.]?(.*?)</code>")
_SCHEMA = re.compile(rf"<code>vppc schema ({'|'.join(SCHEMAS)})</code>")


def on_page_content(html: str, **_: object) -> str:
    """Docstrings name other objects as Sphinx has it; the page shows the names alone. Schemas lead to their files."""
    return _SCHEMA.sub(r'<a href="schemas/\1.json">\g<0></a>', _ROLE.sub(r"<code>\1</code>", html))


def on_post_build(config: Any) -> None:
    """Write the schemas of file formats beside the pages."""
    folder = Path(config["site_dir"]) / "schemas"
    folder.mkdir(exist_ok=True)
    for name, schema in SCHEMAS.items():
        (folder / f"{name}.json").write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
