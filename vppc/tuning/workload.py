"""What is to be prefilled, and how it may be cut: prompts as runs of chunks.

A *run* is one prompt, which may be cut, or several whole prompts that share one chunk. A :class:`Cutting` says how
many chunks each run is cut into; the sizes are then a plain list of numbers, which a search can move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from vppc.errors import InputError
from vppc.ir.schedule import Chunk, Part, Request
from vppc.tuning.prices import Span


@dataclass(frozen=True, slots=True)
class Limits:
    """How prompts may be cut: sizes are multiples of ``align`` tokens, from ``min_chunk`` to ``max_chunk``.

    The last chunk of a prompt holds what is left, so it need not be a multiple; a prompt below ``min_chunk`` is one
    chunk. Raises InputError where no size is allowed.
    """

    max_chunk: int = 32768
    min_chunk: int = 64
    align: int = 64

    def __post_init__(self) -> None:
        for option, value in (
            ("--align", self.align),
            ("--min-chunk", self.min_chunk),
            ("--max-chunk", self.max_chunk),
        ):
            if value < 1:
                raise InputError(f"{value} tokens", place=option, remedy="give at least 1")
        if self.least > self.most:
            raise InputError(
                f"no multiple of {self.align} lies between {self.min_chunk} and {self.max_chunk}",
                place="--max-chunk",
                remedy="give a larger --max-chunk, or a smaller --min-chunk or --align",
            )

    @property
    def least(self) -> int:
        """The smallest size allowed, in tokens."""
        return -(-self.min_chunk // self.align) * self.align

    @property
    def most(self) -> int:
        """The largest size allowed, in tokens."""
        return self.max_chunk // self.align * self.align


@dataclass(frozen=True, slots=True)
class Run:
    """Requests (by index) that are prefilled one after another in chunks of their own: one, or several whole ones.

    ``spans`` are their uncached tokens, ``arrival`` when all are there, in seconds.
    """

    requests: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    arrival: float

    @property
    def tokens(self) -> int:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, in the order in which they are prefilled, as runs."""

    requests: tuple[Request, ...]
    runs: tuple[Run, ...]
    limits: Limits

    @classmethod
    def of(cls, requests: Sequence[Request], limits: Limits, budget: int = 0) -> Workload:
        """Requests by arrival. Neighbours that arrive together and fit into ``budget`` tokens share a chunk."""
        groups: list[list[int]] = []
        room = 0
        for index in sorted(range(len(requests)), key=lambda i: requests[i].arrival):
            request = requests[index]
            tokens = request.prompt_tokens - request.cached_tokens
            if tokens <= room and request.arrival == requests[groups[-1][0]].arrival:
                groups[-1].append(index)
                room -= tokens
            else:
                groups.append([index])
                room = budget - tokens
        runs = tuple(_run(requests, group) for group in groups)
        return cls(tuple(requests), runs, limits)

    @property
    def fewest_chunks(self) -> int:
        """The fewest chunks that all runs can be cut into."""
        return sum(map(self.fewest, self.runs))

    def fewest(self, run: Run) -> int:
        """The fewest chunks that a run can be cut into."""
        return 1 if len(run.requests) > 1 else -(-run.tokens // self.limits.most)

    def most(self, run: Run) -> int:
        """The most chunks that a run can be cut into."""
        return 1 if len(run.requests) > 1 else max(1, self.fewest(run), run.tokens // self.limits.least)

    @property
    def uncut(self) -> Run | None:
        """The first run that chunks of allowed sizes do not add up to: the fewest, as short as may be, are too long."""
        needed = ((run, self.fewest(run)) for run in self.runs)
        return next((run for run, count in needed if count > 1 and count * self.limits.least > run.tokens), None)

    def cut(self, size: float) -> Cutting:
        """Runs cut into chunks of about ``size`` tokens, as far as limits allow."""
        pieces = (round(run.tokens / size) for run in self.runs)
        return self.cut_into(pieces)

    def cut_into(self, pieces: Iterable[int]) -> Cutting:
        """Runs cut into so many chunks, as far as limits allow."""
        return Cutting(
            self,
            tuple(
                min(max(count, self.fewest(run)), self.most(run)) for run, count in zip(self.runs, pieces, strict=True)
            ),
        )


@dataclass(frozen=True)
class Cutting:
    """A workload with each run cut into a number of chunks. Sizes are one list over all chunks, runs in order."""

    workload: Workload
    pieces: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.pieces)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The first chunk of every run, and the number of all chunks."""
        return tuple(accumulate(self.pieces, initial=0))

    @cached_property
    def run_of(self) -> tuple[int, ...]:
        """The run of every chunk."""
        return tuple(run for run, count in enumerate(self.pieces) for _ in range(count))

    @cached_property
    def arrivals(self) -> tuple[float, ...]:
        """When every chunk's requests are there."""
        return tuple(self.workload.runs[run].arrival for run in self.run_of)

    @cached_property
    def sampled(self) -> tuple[int, ...]:
        """How many prompts end in every chunk."""
        counts = [0] * len(self)
        for run, last in zip(self.workload.runs, self.firsts[1:], strict=True):
            counts[last - 1] = len(run.requests)
        return tuple(counts)

    @cached_property
    def movable(self) -> tuple[tuple[int, int], ...]:
        """The runs of two chunks and more, whose sizes can be chosen: (first chunk, after the last)."""
        return tuple(
            (first, first + count) for first, count in zip(self.firsts, self.pieces, strict=False) if count > 1
        )

    def spans(self, sizes: Sequence[float]) -> list[list[Span]]:
        """The parts of every chunk."""
        chunks: list[list[Span]] = []
        for run, first, count in zip(self.workload.runs, self.firsts, self.pieces, strict=False):
            if count == 1:
                chunks.append([(float(start), float(end)) for start, end in run.spans])
                continue
            cuts = list(accumulate(sizes[first : first + count], initial=float(run.spans[0][0])))
            chunks += [[pair] for pair in pairwise(cuts)]
        return chunks

    def chunks(self, sizes: Sequence[int]) -> tuple[Chunk, ...]:
        """The chunks of a schedule, from whole sizes."""
        chunks = []
        for run, first, count in zip(self.workload.runs, self.firsts, self.pieces, strict=False):
            if count == 1:
                parts = (
                    Part(request, start, end - start)
                    for request, (start, end) in zip(run.requests, run.spans, strict=True)
                )
                chunks.append(Chunk(tuple(parts)))
                continue
            start = run.spans[0][0]
            for size in sizes[first : first + count]:
                chunks.append(Chunk((Part(run.requests[0], start, size),)))
                start += size
        return tuple(chunks)


def _run(requests: Sequence[Request], group: Sequence[int]) -> Run:
    members = [requests[index] for index in group]
    spans = tuple((request.cached_tokens, request.prompt_tokens) for request in members)
    return Run(tuple(group), spans, members[0].arrival)
