"""A bound on the requests that wait in vLLM's server."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.vllm_plugin import waiting


class Server:
    """As much of vLLM's as the middleware sees: one that runs two requests at a time, and answers when it is let."""

    def __init__(self, name: str) -> None:
        self.go = asyncio.Event()
        self._middleware = getattr(waiting, name)(self._answer)
        scheduler = SimpleNamespace(max_num_seqs=2)
        self._app = SimpleNamespace(state=SimpleNamespace(vllm_config=SimpleNamespace(scheduler_config=scheduler)))

    async def ask(self, path: str) -> list[Any]:
        """What is sent for a request."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self._middleware({"type": "http", "path": path, "app": self._app}, None, send)
        return sent

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/health":
            await self.go.wait()
        await send("answered")
        if scope["path"].startswith("/fails"):
            raise ValueError("its client is gone")


@pytest.mark.parametrize(("name", "taken"), [("AtMost0", 2), ("AtMost3", 5)])
def test_who_has_no_place_to_wait(name: str, taken: int) -> None:
    """Is refused at once, in words; what is not for tokens never is, and a place is free again however one ends."""

    async def run() -> None:
        server = Server(name)
        paths = ["/fails/v1/messages", "/v1/completions", "/v1/chat/completions", "/under/v1/responses", "/invocations"]
        asked = [asyncio.create_task(server.ask(path)) for path in paths[:taken]]
        await asyncio.sleep(0)
        start, body = await server.ask("/v1/completions")
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
        error = json.loads(body["body"])["error"]
        assert (error["code"], error["message"]) == (503, f"{taken - 2} requests wait, and {taken - 2} may")
        assert await server.ask("/health") == ["answered"]
        server.go.set()
        failed, *answered = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, ValueError)
        assert answered == [["answered"]] * (taken - 1)
        again = await asyncio.gather(*(server.ask("/v1/completions") for _ in range(taken)))
        assert again == [["answered"]] * taken

    asyncio.run(run())


@pytest.mark.parametrize("name", ["AtMost-1", "AtMost01", "AtLeast3"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no {name}: AtMost64"):
        getattr(waiting, name)
