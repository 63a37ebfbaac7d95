"""A bound on the requests that wait in vLLM's server, which has none: as many as they may be are taken in, and wait for
their turn longer than any client does.

``--middleware runtime.vllm_plugin.waiting.AtMost64`` is for a server where 64 requests may wait beside those that run,
which are ``--max-num-seqs``; any other number goes. Who comes then gets status 503 at once, which OpenAI's clients try
again. vLLM's option for middleware takes a name and nothing else, so the number is in it.
"""

from __future__ import annotations

import json
import re
from typing import Any

GENERATING = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/invocations",
)
"""The end of a path where tokens are asked for."""
RETRY = b"1"
"""Seconds after which who is refused may ask again."""


class AtMost:
    """ASGI middleware that counts the requests for tokens of this process that are open, and refuses those for which
    there is no place, among ``most``, to wait."""

    most = 0

    def __init__(self, app: Any) -> None:
        self._app, self._open = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(GENERATING):
            await self._app(scope, receive, send)
            return
        running = scope["app"].state.vllm_config.scheduler_config.max_num_seqs
        if self._open >= running + self.most:
            await _refuse(send, f"{self._open - running} requests wait, and {self.most} may")
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1


async def _refuse(send: Any, why: str) -> None:
    """In the words of OpenAI's API."""
    error = {"message": why, "type": "ServiceUnavailableError", "param": None, "code": 503}
    headers = [(b"content-type", b"application/json"), (b"retry-after", RETRY)]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})


def __getattr__(name: str) -> Any:
    """``AtMost64`` and the like."""
    number = re.fullmatch(r"AtMost(0|[1-9]\d*)", name)
    if number is None:
        raise AttributeError(f"module {__name__} has no {name}: AtMost64, or another number, is what it has")
    return type(name, (AtMost,), {"most": int(number[1])})
