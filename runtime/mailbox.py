"""Mailboxes: numbered messages in the store that a coordinator and its processes share.

A message is there until whoever may, deletes it, so that a store does not fill up. Waiting for one is the store's
own blocking wait, which answers within a tenth of a millisecond; torch complains on stderr when it runs out, so
both sides send something at least every :data:`INTERVAL`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

INTERVAL = 0.5
"""Seconds between two messages, at most, of whoever is alive."""


class Outbox:
    """Where to put messages; of several writers each message gets a number of its own."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def send(self, text: str) -> int:
        """Put a message; its number, the first being 1. Raises RuntimeError when the store is lost."""
        number = int(self._store.add(self._name, 1))
        self._store.set(f"{self._name}/{number}", text)
        return number

    def delete(self, number: int) -> None:
        """Delete a message that everybody has read."""
        self._store.delete_key(f"{self._name}/{number}")


class Inbox:
    """Where to read messages, in order. ``count`` have been read."""

    def __init__(self, store: Any, name: str, *, only: bool = False) -> None:
        """``only``: nobody else reads them, so they are deleted."""
        self._store, self._name, self._only = store, name, only
        self.count = 0

    def receive(self, seconds: float) -> bytes:
        """The next message; blocks. Raises RuntimeError when none comes, or the store is lost."""
        key = f"{self._name}/{self.count + 1}"
        self._store.wait([key], timedelta(seconds=seconds))
        text = bytes(self._store.get(key))
        if self._only:
            self._store.delete_key(key)
        self.count += 1
        return text
