"""What is not poured into a terminal."""

from __future__ import annotations

import sys

from vppc.errors import InputError


def refuse_terminal(output: str | None, what: str) -> None:
    """Raises InputError when ``what``, which nobody reads as text, would go to a terminal that was not asked for."""
    if output is None and sys.stdout is not None and sys.stdout.isatty():
        raise InputError(f"{what} is not for a terminal", place="-o", remedy="-o FILE, a pipe, or -o - to see it here")
