"""The token ids of prompts: given by the user, or made from a seed and the request's id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runtime.plan import Items
from vppc.errors import InputError
from vppc.files import read_text
from vppc.ir.schedule import Request
from vppc.json_text import loads, shown


class Prompts:
    """The prompt of every request of a schedule, made when asked for, so that waiting requests take no memory."""

    def __init__(
        self,
        requests: Items[Request],
        vocabulary: int,
        *,
        given: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
        file: str = "",
    ) -> None:
        """``given`` are prompts by request id; the others are made. ``file`` is where they come from, for messages.

        Raises InputError for a prompt of another length than the schedule's, a token outside the vocabulary, or a
        prompt of an unknown request.
        """
        self._requests, self._vocabulary, self._seed = requests, vocabulary, seed
        self._given = given or {}
        lengths = {request.id: request.prompt_tokens for request in requests}
        for name, tokens in self._given.items():
            _check_prompt(tokens, lengths.get(name), vocabulary, file, name)

    def tokens(self, request: int) -> Tensor:
        """The prompt of a request (by index), [prompt_tokens] int64 on the CPU."""
        name, length = self._requests[request].id, self._requests[request].prompt_tokens
        if name in self._given:
            return torch.tensor(self._given[name], dtype=torch.int64)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.randint(self._vocabulary, (length,), generator=generator)


def read_prompts(path: str) -> dict[str, list[int]]:
    """A file of prompts: a JSON object of token id lists by request id. Raises InputError for anything else."""
    document = loads(read_text(path), path)
    if not isinstance(document, dict):
        raise InputError(
            f"{shown(document)} is not a set of prompts", file=path, remedy='an object {"request id": [token, ..], ..}'
        )
    for name, tokens in document.items():
        if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
            raise InputError(f"{shown(tokens)} is no list of token ids", file=path, place=name, remedy="integers")
    return document


def _check_prompt(tokens: Sequence[int], length: int | None, vocabulary: int, file: str, name: str) -> None:
    if length is None:
        raise InputError("is no request of the schedule", file=file, place=name)
    if len(tokens) != length:
        raise InputError(f"has {len(tokens)} tokens, the schedule's prompt {length}", file=file, place=name)
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InputError(
            "has a token outside the model's vocabulary", file=file, place=name, remedy=f"0 to {vocabulary - 1}"
        )
