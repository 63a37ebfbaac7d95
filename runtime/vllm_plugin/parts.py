"""What is in vLLM's batches: of which requests which tokens."""

from __future__ import annotations

from typing import Any, NamedTuple


class BatchPart(NamedTuple):
    """``tokens`` tokens of a request from position ``start``; its prompt has ``prompt``."""

    request: str
    start: int
    tokens: int
    prompt: int


class Prompts:
    """Knows the prompts' lengths from the batches so far, which have to come in order."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def parts(self, output: Any) -> list[BatchPart]:
        """The parts of the next batch, of vLLM's ``SchedulerOutput``."""
        for request in output.finished_req_ids:
            self._lengths.pop(request, None)
        begins = {}
        for new in output.scheduled_new_reqs:
            self._lengths[new.req_id] = len(new.prompt_token_ids or ())
            begins[new.req_id] = new.num_computed_tokens
        known = output.scheduled_cached_reqs
        begins.update(zip(known.req_ids, known.num_computed_tokens, strict=True))
        return [
            BatchPart(request, begins[request], tokens, self._lengths[request])
            for request, tokens in output.num_scheduled_tokens.items()
        ]
