"""Rules of requests and chunks: the parts of a prompt cover it, and what the instructions need to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from vppc.ir.rules.registry import Report
from vppc.ir.schedule import Chunk, Part, Request

CLOSED = -1
"""What the parts of a cancelled request have reached: no part starts there."""


class Prompts:
    """The requests and chunks of a stream that grows.

    ``prefix[c]`` are the chunks whose KV chunk c reads directly, ``samples[c]`` is whether it makes a token,
    ``decodes[c]`` are the chunks whose token it decodes from (only chunks that decode are in it). ``cancelled`` are
    the requests of which nothing more follows. ``rejoins`` is whether rank 0 holds the first and the last stage, so
    that a token made is there to decode from.
    """

    def __init__(self, *, rejoins: bool) -> None:
        self._rejoins = rejoins
        self.requests: list[Request] = []
        self.chunks: list[Chunk] = []
        self.prefix: list[tuple[int, ...]] = []
        self.samples = bytearray()
        self.decodes: dict[int, tuple[int, ...]] = {}
        self.cancelled: set[int] = set()
        self._covered: list[int] = []  # per request, the position that its parts have reached, or CLOSED
        self._last: list[int] = []  # per request, the chunk with its latest part, or -1

    def add(self, requests: Iterable[Request], chunks: Iterable[Chunk], report: Report) -> None:
        """Take in more requests and chunks (rules R1 to R4, R6, R7 and T1)."""
        for request in requests:
            if request.cached_tokens >= request.prompt_tokens:
                report.add(
                    "R6",
                    f"requests[{len(self.requests)}] ({request.id})",
                    f"all {request.prompt_tokens} tokens of the prompt are cached ({request.cached_tokens})",
                    "leave at least the last token to compute: it makes the first new one",
                )
            self.requests.append(request)
            self._covered.append(request.cached_tokens)
            self._last.append(-1)
        for chunk in chunks:
            self._add_chunk(chunk, report)

    def cancel(self, requests: Iterable[int], report: Report) -> None:
        """Nothing more of these requests follows, and need not (rule R8)."""
        for request in requests:
            if not 0 <= request < len(self.requests):
                remedy = f"name one of the {len(self.requests)} requests by its index"
                report.add("R8", "cancelled", f"request {request} does not exist", remedy)
            else:
                self.cancelled.add(request)
                self._covered[request] = CLOSED

    def unfinished(self) -> Iterator[int]:
        """The requests whose prompts are not covered, by index."""
        for index, (request, covered) in enumerate(zip(self.requests, self._covered, strict=True)):
            if CLOSED != covered < request.prompt_tokens:
                yield index

    def forget(self, requests: int, chunks: int) -> None:
        """Drop that many requests and chunks, the first ones, of which nothing is left to do."""
        del self.requests[:requests], self._covered[:requests], self._last[:requests]
        self._last = [max(-1, chunk - chunks) for chunk in self._last]
        self.cancelled = {request - requests for request in self.cancelled if request >= requests}
        self.chunks = [
            Chunk(tuple(replace(part, request=part.request - requests) for part in chunk.parts), chunk.extra)
            for chunk in self.chunks[chunks:]
        ]
        self.prefix = [tuple(c - chunks for c in prefix if c >= chunks) for prefix in self.prefix[chunks:]]
        del self.samples[:chunks]
        self.decodes = {
            chunk - chunks: tuple(max(-1, maker - chunks) for maker in makers)
            for chunk, makers in self.decodes.items()
            if chunk >= chunks
        }

    def check_ends(self, report: Report) -> None:
        """Judge a closed stream: every prompt is covered to its end (rule R5)."""
        for index in self.unfinished():
            request, covered = self.requests[index], self._covered[index]
            report.add(
                "R5",
                f"requests[{index}] ({request.id})",
                f"no chunk holds its tokens {covered} to {request.prompt_tokens}",
                "add the missing parts to the chunks",
            )

    def _add_chunk(self, chunk: Chunk, report: Report) -> None:
        index = len(self.chunks)
        self.chunks.append(chunk)
        prefix: dict[int, None] = {}
        decodes: list[int] = []
        samples = False
        if not chunk.parts:
            report.add("R2", f"chunks[{index}]", "has no part", "remove the chunk, or give it a part")
        for number, part in enumerate(chunk.parts):
            request = part.request
            if not 0 <= request < len(self.requests):
                place = f"chunks[{index}].parts[{number}].request"
                remedy = f"name one of the {len(self.requests)} requests by its index"
                report.add("R1", place, f"request {request} does not exist", remedy)
                continue
            before, end = self._last[request], part.start + part.tokens
            prompt = self.requests[request].prompt_tokens
            if part.start != self._covered[request] or part.tokens < 1 or part.decode or end > prompt:
                self._check_part(part, f"chunks[{index}].parts[{number}]", report)
            if part.decode:
                decodes.append(before)
            if part.decode or end == prompt:
                samples = True
            if before >= 0 and before != index:
                prefix[before] = None
            self._last[request] = index
            self._covered[request] = end
        self.prefix.append(tuple(prefix))
        self.samples.append(samples)
        if decodes:
            self.decodes[index] = tuple(decodes)

    def _check_part(self, part: Part, place: str, report: Report) -> None:
        request = self.requests[part.request]
        covered = self._covered[part.request]
        if covered == CLOSED:
            report.add("R8", place, f"belongs to {request.id}, which is cancelled", "leave the part out")
            return
        if part.decode and not self._rejoins:
            report.add(
                "T1",
                place,
                f"{request.id} decodes, but its token is made on another rank than rank 0, which needs it next",
                "use a placement that brings the last stage back to rank 0 (v, zigzag), or do not decode",
            )
        if part.tokens < 1:
            report.add("R2", place, f"holds {part.tokens} tokens", "remove the part, or give it tokens")
        if part.start != covered:
            what = "leaves out" if part.start > covered else "repeats"
            reached = "its cached tokens end there" if self._last[part.request] < 0 else "its parts so far end there"
            report.add(
                "R3",
                place,
                f"starts at token {part.start} of {request.id} and {what} tokens "
                f"{min(part.start, covered)} to {max(part.start, covered)}",
                f"start it at {covered}: {reached}",
            )
        elif part.decode and (part.start < request.prompt_tokens or part.tokens != 1):
            report.add(
                "R7",
                place,
                f"decodes tokens {part.start} to {part.end} of {request.id}, whose prompt has {request.prompt_tokens}",
                "let a part that decodes hold one token behind the prompt",
            )
        elif not part.decode and part.end > request.prompt_tokens:
            report.add(
                "R4",
                place,
                f"ends at token {part.end}, but the prompt of {request.id} has {request.prompt_tokens}",
                'end it with the prompt, or mark a part behind the prompt with "decode": true',
            )
