"""Lines of JSON to somebody who reads them, or does not: whoever serves must not wait for that."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from vppc.errors import InputError


class Writer:
    """Writes a line a document to a file descriptor, from a thread of its own.

    ``name`` is what messages call it. Where nobody reads for ``seconds`` with something to read, or nothing can be
    written, the next call, or :meth:`close`, raises InputError.
    """

    def __init__(self, descriptor: int, name: str, seconds: float) -> None:
        self._descriptor, self._name, self._seconds = descriptor, name, seconds
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._problem = ""
        self._began: float | None = None  # when the line that is being written was begun
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    def __call__(self, document: Mapping[str, Any]) -> None:
        self._check()
        self._lines.put(json.dumps(document).encode() + b"\n")

    def close(self) -> None:
        """Wait until all is written."""
        self._lines.put(None)
        while self._thread.is_alive():
            self._check()
            self._thread.join(self._seconds / 4)
        self._check()

    def _check(self) -> None:
        began = self._began
        if began is not None and time.monotonic() - began > self._seconds:
            self._problem = f"nobody has read it for {self._seconds:g} s"
        if self._problem:
            raise InputError(f"cannot be written: {self._problem}", file=self._name)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._began = time.monotonic()
                while line:
                    line = line[os.write(self._descriptor, line) :]
                self._began = None
        except OSError as error:
            self._problem, self._began = error.strerror or str(error), None
