"""The reference runner: stages of a real decoder in plain torch, with its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from runtime.plan import Plan
from runtime.reference.attention import cache_rows
from runtime.reference.batch import Batch, Span
from runtime.reference.cache import KvCache
from runtime.reference.config import ModelConfig
from runtime.reference.decoder import Decoder
from runtime.reference.parallel import ALONE, TensorParallel
from runtime.reference.prompts import Prompts
from runtime.reference.weights import Loader, Weights
from runtime.runners.protocol import Buffer, TensorSpec
from vppc.errors import InputError
from vppc.ir.schedule import Part, Schedule

_PATIENCE = 6 * 10**9
"""Pairs of tokens times layers: a minute on two CPU cores with the small model."""


class ReferenceRunner:
    """Runs the stages of one rank; holds their layers only, the embedding with stage 0, the head with the last.

    Greedy. Everything runs on ``device`` in ``dtype`` in the order of the calls; nothing is kept of a request
    after :meth:`release`.
    """

    def __init__(
        self,
        schedule: Plan,
        rank: int,
        config: ModelConfig,
        weights: Weights,
        prompts: Prompts,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        tp: TensorParallel = ALONE,
        observe: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        """Reads the rank's weights. ``observe`` is told each request and its logits, [vocabulary], at each sample.

        Raises InputError when the schedule is for another number of layers, or for weights that do not fit.
        """
        if config.layers != schedule.model.layers:
            raise InputError(
                f"the schedule is for {schedule.model.layers} layers, the model has {config.layers}",
                remedy="compile the schedule for this model",
            )
        self._schedule, self._prompts, self._observe = schedule, prompts, observe
        self._device, self._dtype = torch.device(device), dtype
        stages = schedule.rank_stages[rank]
        self._layers = {stage: range(*schedule.stages[stage].layers) for stage in stages}
        self._first, self._last = 0 in stages, len(schedule.stages) - 1 in stages
        held = [layer for layers in self._layers.values() for layer in layers]
        loader = Loader(weights, tp, dtype, self._device)
        self._decoder = Decoder.load(config, held, loader, embedding=self._first, head=self._last)
        self._tables = config.rope.tables(self._device, dtype)
        self._capacities = Capacities(schedule)
        self._cache = KvCache(cache_rows(config, tp), self._capacities, dtype=dtype, device=self._device)
        self._tokens: dict[int, Tensor] = {}
        self._payload = (TensorSpec("hidden", (config.hidden,), dtype),)

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        """The residual stream."""
        return self._payload

    @property
    def cache(self) -> KvCache:
        """The KV cache, for those who watch its memory."""
        return self._cache

    @property
    def resident(self) -> frozenset[int]:
        """The requests of which anything is held."""
        return self._cache.requests.union(self._tokens)

    def prepare_prefix(self, part: Part) -> Batch:
        """What the stages need of a piece of a cached prefix."""
        return self._batch((part,), frozenset())

    def prepare(self, chunk: int, skip: frozenset[int]) -> Batch:
        """Rows, positions and rotary tables of a chunk without the parts of the requests in ``skip``."""
        return self._batch(self._schedule.chunks[chunk].parts, skip)

    @torch.inference_mode()
    def forward(self, stage: int, prepared: Batch, inputs: Buffer | None, outputs: Buffer | None) -> None:
        """Runs a stage; rows of skipped parts come out as zeros, so that nobody downstream computes on garbage."""
        if prepared.spans:
            hidden = self._embedded(prepared) if inputs is None else _computed_rows(inputs[0], prepared)
            hidden = self._decoder.run(self._layers[stage], hidden, prepared, self._cache)
        if outputs is None:
            return
        rows = outputs[0][: prepared.tokens]
        if prepared.rows is None:
            rows.copy_(hidden)
        else:
            rows.zero_()
            if prepared.spans:
                rows[prepared.rows] = hidden

    @torch.inference_mode()
    def sample(self, prepared: Batch, inputs: Buffer) -> Sequence[tuple[int, int]]:
        """The likeliest next token of every request that ends or decodes in the chunk."""
        if not prepared.samples:
            return ()
        if self._decoder.head is None:
            raise ValueError("the rank does not hold the last stage")
        requests, rows, positions = zip(*prepared.samples, strict=True)
        logits = self._decoder.head(inputs[0][list(rows)])
        tokens = logits.argmax(-1).tolist()
        for request, position, token, row in zip(requests, positions, tokens, logits, strict=True):
            if self._first and position < self._capacities[request]:  # it will be decoded from
                self._request_tokens(request)[position] = token
            if self._observe is not None:
                self._observe(request, row)
        return tuple(zip(requests, tokens, strict=True))

    def release(self, request: int) -> None:
        """Forgets a request."""
        self._cache.release(request)
        self._tokens.pop(request, None)

    @torch.inference_mode()
    def _batch(self, parts: Sequence[Part], skip: frozenset[int]) -> Batch:
        ends = self._schedule.requests
        spans, samples, kept = [], [], []
        row = computed = 0
        for part in parts:
            if part.request not in skip:
                spans.append(Span(part.request, part.start, part.end, slice(computed, computed + part.tokens)))
                computed += part.tokens
                kept.append(torch.arange(row, row + part.tokens))
                if part.decode or part.end == ends[part.request].prompt_tokens:
                    samples.append((part.request, row + part.tokens - 1, part.end))
            row += part.tokens
        whole = computed == row
        positions = [torch.arange(span.start, span.end) for span in spans] or [torch.arange(0)]
        return Batch(
            tokens=row,
            rows=None if whole else torch.cat(kept or [torch.arange(0)]).to(self._device),
            spans=tuple(spans),
            rope=self._tables(torch.cat(positions).to(self._device)),
            samples=tuple(samples),
        )

    def _embedded(self, batch: Batch) -> Tensor:
        if self._decoder.embedding is None:
            raise ValueError("the rank does not hold stage 0")
        tokens = [self._request_tokens(span.request)[span.start : span.end] for span in batch.spans]
        return self._decoder.embedding(torch.cat(tokens))

    def _request_tokens(self, request: int) -> Tensor:
        """The request's token ids by position: its prompt, then what has been sampled for it."""
        if request not in self._tokens:
            prompt = self._prompts.tokens(request)
            tokens = torch.zeros(self._capacities[request], dtype=torch.int64)
            tokens[: len(prompt)] = prompt
            self._tokens[request] = tokens.to(self._device)
        return self._tokens[request]


class Capacities:
    """How many tokens of a request, by index, a KV cache must hold: the prompt, and what a schedule decodes."""

    def __init__(self, plan: Plan) -> None:
        self._requests = plan.requests
        self._decoded = {part.request: part.end for chunk in plan.chunks for part in chunk.parts if part.decode}

    def __getitem__(self, request: int) -> int:
        return max(self._requests[request].prompt_tokens, self._decoded.get(request, 0))


def long_attention(schedule: Schedule) -> Iterator[str]:
    """That the attention of a schedule takes CPUs very long, if it does: it grows with the square of a prompt."""
    pairs = sum(request.prompt_tokens**2 // 2 for request in schedule.requests)
    if pairs * schedule.model.layers > _PATIENCE:
        yield (
            f"the reference runner attends to {pairs / 1e9:,.1f} billion pairs of tokens in each of "
            f"{schedule.model.layers} layers, which takes CPUs minutes to hours; --runner timed takes as long as the "
            "costs say"
        )


def _computed_rows(buffer: Tensor, batch: Batch) -> Tensor:
    return buffer[: batch.tokens] if batch.rows is None else buffer[batch.rows]
