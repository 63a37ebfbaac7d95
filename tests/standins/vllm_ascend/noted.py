"""What happened, for tests: the forwards of each process, in order, in a file of the folder ``STANDIN_NOTES``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def note(**what: Any) -> None:
    with (Path(os.environ["STANDIN_NOTES"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")
