"""What vLLM's ``--additional-config`` asks of vppc:

{"vppc": {"mode": "shadow", "journal": "DIR"}}      vLLM as it is, with a journal of its batches for ``vppc shadow``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vppc.errors import InputError

FILE = "--additional-config"
MODES = ("shadow",)
_KEYS = ("mode", "journal")


@dataclass(frozen=True, slots=True)
class Settings:
    """The mode, and the folder of the journal."""

    mode: str
    journal: Path

    @classmethod
    def read(cls, additional: Any) -> Settings | None:
        """The settings in vLLM's additional config; None where there are none. Raises InputError for wrong ones."""
        section = additional.get("vppc") if isinstance(additional, Mapping) else None
        if section is None:
            return None
        if not isinstance(section, Mapping):
            raise InputError(f"{section!r} is no object", file=FILE, place="vppc", remedy='{"mode": "shadow", ...}')
        for key in section:
            if key not in _KEYS:
                raise InputError("is not known", file=FILE, place=f"vppc.{key}", remedy=", ".join(_KEYS))
        if section.get("mode") not in MODES:
            remedy = " or ".join(f'"{mode}"' for mode in MODES)
            raise InputError(f"{section.get('mode')!r} is no mode", file=FILE, place="vppc.mode", remedy=remedy)
        journal = section.get("journal")
        if not isinstance(journal, str) or not journal:
            raise InputError(
                f"{journal!r} is no folder", file=FILE, place="vppc.journal", remedy="a folder to write to"
            )
        return cls(section["mode"], Path(journal))

    def make_folder(self) -> None:
        """Make the journal's folder. Raises InputError."""
        try:
            self.journal.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", file=str(self.journal)) from None
