"""vLLM's batches as the chunks of a stream."""

from __future__ import annotations

from typing import Any

from runtime.vllm_plugin.parts import BatchPart, Prompts
from vppc.ir.schedule import Chunk, Part, Request
from vppc.serving.batch_order import Entry

NOBODY = ""
"""Whose tokens are in a dummy batch."""


class Traffic:
    """Keeps which request of the stream a request of vLLM's is, while it has not finished.

    In a stream the parts of a request follow one another, its prompt's and then decodes. One that vLLM preempted begins
    anew, with what it had made in its prompt: as another request of the stream, of which some may be cached.
    """

    def __init__(self) -> None:
        self._lengths = Prompts()
        self._indices: dict[str, int] = {}
        self._requests: dict[int, Request] = {}
        self._reached: dict[int, int] = {}  # to where the parts of a request go so far
        self._count = 0
        self._ended: list[int] = []

    def entry(self, output: Any) -> Entry | None:
        """The chunk of the next batch, of vLLM's ``SchedulerOutput``; None for a batch without tokens."""
        for request in output.finished_req_ids:
            self._end(request)
        known = output.scheduled_cached_reqs
        made = dict(zip(known.req_ids, known.num_output_tokens, strict=True))
        new, parts = [], []
        for part in self._lengths.parts(output):
            if not self._follows(part):
                self._end(part.request)
                prompt = max(part.prompt + made.get(part.request, 0), part.start + part.tokens)
                new.append(self._begin(part, prompt))
            index = self._indices[part.request]
            self._reached[index] = part.start + part.tokens
            decode = part.start >= self._requests[index].prompt_tokens
            parts.append(Part(index, part.start, part.tokens, decode))
        if not parts:
            if not output.total_num_scheduled_tokens:
                return None
            new, parts = self._nobodys(output.total_num_scheduled_tokens)
        prompts = {part.request: self._requests[part.request] for part in parts}
        ended, self._ended = self._ended, []
        entry = Entry(Chunk(tuple(parts)), new, prompts, ended, min(self._requests))
        self._end(NOBODY)
        return entry

    def _nobodys(self, tokens: int) -> tuple[list[Request], list[Part]]:
        """A request that is this batch, and the batch: where another replica has one, and this one has not."""
        request = self._begin(BatchPart(NOBODY, 0, tokens, tokens), tokens)
        index = self._indices[NOBODY]
        self._reached[index] = tokens
        return [request], [Part(index, 0, tokens)]

    def _follows(self, part: BatchPart) -> bool:
        index = self._indices.get(part.request, -1)
        if self._reached.get(index) != part.start:
            return False
        prompt = self._requests[index].prompt_tokens
        return part.start + part.tokens <= prompt or (part.start >= prompt and part.tokens == 1)

    def _begin(self, part: BatchPart, prompt: int) -> Request:
        request = Request(part.request, prompt, part.start)
        self._indices[part.request] = self._count
        self._requests[self._count] = request
        self._count += 1
        return request

    def _end(self, request: str) -> None:
        index = self._indices.pop(request, None)
        if index is not None:
            del self._requests[index], self._reached[index]
            self._ended.append(index)
