"""Which prompts the next batch computes, and how many tokens of each: our queue policies and chunk rules.

The state is vLLM's: every decision is made anew from what it says of each prompt. So nothing is to be mended where vLLM
made another batch than it was asked for, because blocks had run out or a request was preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.vllm_plugin.chunk_plan import PLACE, PlannedChunks, check_fit
from runtime.vllm_plugin.settings import BY_TIME, FILE, Fold
from vppc.costs.model import CostModel
from vppc.errors import InputError
from vppc.ir.schedule import Json, Request
from vppc.passes.strategies import Options
from vppc.serving.batching import Batcher, ChunkRule, Fixed, Limits
from vppc.serving.chunk_rules import chunk_rule
from vppc.serving.policy import Policy, Queue, Waiting, policy

SMALLEST = 4
"""A chunk that is cut by time has at least the batch's tokens divided by this."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that is not through: ``computed`` of its ``tokens`` are computed, in a batch in flight, or cached.

    ``arrival`` in seconds; ``resident`` while it holds blocks of the KV cache; ``extra`` is for policies. A preempted
    request is a prompt again, with the tokens that it has made.
    """

    id: str
    tokens: int
    computed: int
    arrival: float
    resident: bool
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batches:
    """Decides batches of at most ``most`` tokens. With ``fill`` any prompt begins in what the one before leaves, else
    only whole ones share."""

    policy: Policy
    rule: ChunkRule
    most: int
    fill: bool = True

    def next(self, prompts: Iterable[Prompt], now: float, *, room: float, decodes: int) -> dict[str, int]:
        """The tokens of each prompt in the next batch, in the order in which they are to get blocks.

        ``room`` tokens may become resident beside those that are; ``decodes`` tokens of the batch are taken.
        """
        limits = Limits(chunk_size=self.most, decode_tokens=min(decodes, self.most - 1), fill=self.fill)
        batcher = Batcher(Queue(self.policy), self.rule, limits)
        for number, prompt in enumerate(sorted(prompts, key=lambda each: each.arrival)):
            cached = 0 if prompt.resident else prompt.computed
            request = Request(prompt.id, prompt.tokens, cached, prompt.arrival, prompt.extra)
            waiting = Waiting(request, number, prompt.arrival, prompt.computed)
            batcher.queue.add(waiting)
            if prompt.resident:
                batcher.started.append(waiting)
        shares = batcher.propose(now, room, barrier=False, idle=False)
        return {share.waiting.request.id: share.tokens for share in shares}


def batches_of(settings: Fold, config: Any) -> Batches:
    """The batches that the settings ask for, in a server with vLLM's ``config``.

    Raises InputError for settings that do not go together, or not with vLLM's.
    """
    scheduler = config.scheduler_config
    most = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    cost = settings.cost(config.model_config.get_total_num_hidden_layers())
    rule = _rule(settings, cost, config, most)
    return Batches(_policy(settings, cost, scheduler.policy), rule, most, not settings.whole_prompts)


def repriced(batches: Batches, settings: Fold, config: Any, cost: CostModel) -> Batches:
    """The same batches by other costs. A planned chunk stays as it is."""
    rule = _rule(settings, cost, config, batches.most) if settings.chunks == BY_TIME else batches.rule
    return replace(batches, policy=_policy(settings, cost, config.scheduler_config.policy), rule=rule)


def _policy(settings: Fold, cost: CostModel | None, stock: str) -> Policy:
    name, patience = settings.policy, settings.patience
    if stock == "priority":
        if name is not None:
            remedy = "no --scheduling-policy priority, or no policy"
            raise InputError("is not vLLM's priority", file=FILE, place="vppc.policy", remedy=remedy)
        return Policy(stock, _by_priority, patience)
    if name == "deadline" and cost is None:
        remedy = "costs, to know by when a prompt has to start"
        raise InputError("deadline needs costs", file=FILE, place="vppc.policy", remedy=remedy)
    return policy(name or "fcfs", cost or settings.equal_cost(1), patience=patience, ttft_target=settings.ttft_target)


def _by_priority(waiting: Waiting, now: float) -> tuple[float, ...]:
    """As vLLM has it: the smallest number first, and of those who came first."""
    return waiting.request.extra["priority"], waiting.since


def _rule(settings: Fold, cost: CostModel | None, config: Any, most: int) -> ChunkRule:
    scheduler = config.scheduler_config
    most = min(most, scheduler.long_prefill_token_threshold or most)  # where vLLM cuts, it would leave a batch's rest
    if settings.chunks == BY_TIME:
        if cost is None:
            remedy = "costs, to know how long chunks take"
            raise InputError(f"{BY_TIME} needs costs", file=FILE, place=PLACE, remedy=remedy)
        pp, page = config.parallel_config.pipeline_parallel_size, config.cache_config.block_size
        smallest = max(1, most // SMALLEST)
        return chunk_rule(
            Options(strategy=BY_TIME, pp=pp, chunk_size=most, page_size=page or 1, min_chunk=smallest), cost
        )
    plan = settings.chunk_plan()
    if plan is None:
        return Fixed(most)
    check_fit(plan, scheduler)
    return PlannedChunks(plan, most)
