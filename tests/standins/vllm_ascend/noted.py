"""What happened, for tests: each process's forwards, in order, in a file of the folder ``STANDIN_NOTES``, if any."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def note(**what: Any) -> None:
    folder = os.environ.get("STANDIN_NOTES")
    if folder is not None:
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")
