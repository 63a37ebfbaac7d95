"""The runner that the interpreter sees: the stages of one rank, each on a model runner of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group

from runtime.plan import Plan
from runtime.reference.prompts import Prompts, read_prompts
from runtime.runners.protocol import Buffer, TensorSpec
from runtime.runners.vllm.batch import Batch, batch_of
from runtime.runners.vllm.config import Room, engine_config, room_of, room_to_grow
from runtime.runners.vllm.shares import Shares
from runtime.runners.vllm.stage import Stage
from runtime.runners.vllm.upstream import Ranks, StagePlace, build
from vppc.errors import InputError
from vppc.ir.schedule import Part, Schedule

if TYPE_CHECKING:
    from runtime.arguments import Arguments
    from runtime.make_runner import Place

NAMES = {"hidden": "hidden_states", "residual": "residual"}
"""The tensors of a schedule's payload, as vLLM names them."""


class VllmRunner:
    """Runs the stages of one rank, greedily. Nothing is kept of a request after :meth:`release`."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        config: VllmConfig,
        device: torch.device,
        prompts: Prompts,
        room: Room,
        *,
        observe: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        """Loads the rank's weights. ``observe`` is told each request and its logits, [vocabulary], at each sample.

        Raises InputError for a model that cannot be run in stages.
        """
        self._plan, self._prompts, self._observe = plan, prompts, observe
        self._device, self._shares = device, Shares(get_tp_group())
        self._prompt_tokens: dict[int, list[int]] = {}
        self._outputs: dict[int, list[int]] = {}
        layers = [stage.layers[1] - stage.layers[0] for stage in plan.stages]
        self._stages = {
            stage: Stage(
                config,
                StagePlace(stage, layers),
                device,
                blocks=room.blocks,
                prompt=self._prompt,
                outputs=lambda request: self._outputs.get(request, []),
            )
            for stage in plan.rank_stages[rank]
        }
        self._last = self._stages.get(len(layers) - 1)
        carried = next(iter(self._stages.values())).payload
        self._names = tuple(carried)
        whole = tuple(TensorSpec(name, tuple(each.shape[1:]), each.dtype) for name, each in carried.items())
        check_payload(plan, whole)
        self._widths = [each.row[-1] for each in whole]
        if any(width % self._shares.size for width in self._widths):
            raise InputError(f"activations of {self._widths} values cannot be shared", file="--tp", remedy="a divisor")
        self._payload = tuple(replace(each, row=(each.row[-1] // self._shares.size,)) for each in whole)
        model: int = config.model_config.max_model_len - 1  # the last place is the next token's
        self._longest = min([model, *(stage.room for stage in self._stages.values())])
        self._unsampled: Batch | None = None  # what the last stage has run and not sampled from
        self._sampled: dict[int, int] = {}

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        """What vLLM's model hands from stage to stage: for a decoder its hidden states and the residual; of several
        processes a rank each has a share, see :class:`Shares`."""
        return self._payload

    @property
    def longest(self) -> int:
        """As vLLM's configuration says, and as its KV cache holds."""
        return self._longest

    @property
    def resident(self) -> frozenset[int]:
        """The requests of which anything is held."""
        held = (stage.resident for stage in self._stages.values())
        return frozenset(self._prompt_tokens).union(self._outputs, self._sampled, *held)

    def prepare(self, chunk: int, skip: frozenset[int]) -> Batch:
        """The slices of a chunk without the parts of the requests in ``skip``."""
        return batch_of(self._plan.chunks[chunk].parts, skip, self._plan.requests, self._device)

    def prepare_prefix(self, part: Part) -> Batch:
        """The slice of a piece of a cached prefix."""
        return batch_of((part,), frozenset(), self._plan.requests, self._device)

    def forward(self, stage: int, prepared: Batch, inputs: Buffer | None, outputs: Buffer | None) -> None:
        """Runs a stage; rows of skipped parts come out as zeros. vLLM computes logits with the last stage."""
        last = self._stages[stage] is self._last
        if last:
            self._sample()
        given = None if inputs is None else dict(zip(self._names, self._rows(prepared, inputs), strict=True))
        made = self._stages[stage].run(prepared.slices, given)
        if last:
            self._unsampled = prepared
            if not prepared.due:  # there is no SAMPLE for it
                self._sample()
        if outputs is None:
            return
        for name, width, tensor in zip(self._names, self._widths, outputs, strict=True):
            rows = tensor[: prepared.tokens]
            if name in made and prepared.rows is None:
                rows.copy_(self._shares.part(made[name]).view_as(rows))
                continue
            whole = tensor.new_zeros(prepared.tokens, width)
            if name in made:
                whole[prepared.rows] = made[name]
            rows.copy_(self._shares.part(whole).view_as(rows))

    def sample(self, prepared: Batch, inputs: Buffer) -> Sequence[tuple[int, int]]:
        """The likeliest next token of every request that ends or decodes in the chunk."""
        if not prepared.due <= self._sampled.keys():
            self._sample()
        due = [each.request for each in prepared.slices if each.request in prepared.due]
        return [(request, self._sampled.pop(request)) for request in due]

    def release(self, request: int) -> None:
        """Forgets a request."""
        for stage in self._stages.values():
            stage.finish(request)
        self._prompt_tokens.pop(request, None)
        self._outputs.pop(request, None)
        self._sampled.pop(request, None)

    @torch.inference_mode()
    def _sample(self) -> None:
        """Let vLLM sample from what the last stage ran: it keeps the logits of one batch, until its next."""
        batch, self._unsampled = self._unsampled, None
        if batch is None or self._last is None:
            return
        for request, (token, logits) in self._last.sample().items():
            if request not in batch.due or request not in self._prompt_tokens:  # it has been cancelled and released
                continue
            self._sampled[request] = token
            self._outputs.setdefault(request, []).append(token)
            if self._observe is not None:
                self._observe(request, logits)

    def _rows(self, prepared: Batch, buffer: Buffer) -> list[Tensor]:
        tokens = prepared.tokens
        whole = [
            self._shares.whole(tensor[:tokens], (tokens, width))
            for tensor, width in zip(buffer, self._widths, strict=True)
        ]
        return whole if prepared.rows is None else [tensor[prepared.rows] for tensor in whole]

    def _prompt(self, request: int) -> list[int]:
        if request not in self._prompt_tokens:
            self._prompt_tokens[request] = self._prompts.tokens(request).tolist()
        return self._prompt_tokens[request]


def vllm_runner(
    arguments: Arguments, plan: Plan, place: Place, observe: Callable[[int, Tensor], None] | None = None
) -> VllmRunner:
    """The checkpoint of ``--model`` on vLLM, for a schedule that is whole or grows.

    Raises InputError for what this runner does not do.
    """
    if arguments.model is None:
        raise InputError("needs a checkpoint", file="--runner vllm", remedy="--model DIR")
    asked = place.device.type if arguments.device == "auto" else arguments.device
    if asked != build().name:
        raise InputError(
            f"vLLM here is built for {build().name}, not {asked}", file="--device", remedy=f"--device {build().name}"
        )
    room = room_of(plan, place.rank) if isinstance(plan, Schedule) else room_to_grow(plan, place.rank)
    ranks = Ranks(plan.pp, place.tensor.size, place.rank * place.tensor.size + place.tensor.rank)
    config = engine_config(arguments.model, arguments.dtype, plan.model.layers, room, ranks.tp)
    if build().rows(config, ranks.tp) < ranks.tp:
        raise InputError(
            "hands on other rows on each process, which the buffers of a schedule are not made for",
            file="--runner vllm",
            remedy="VLLM_ASCEND_ENABLE_FLASHCOMM1=0; vLLM's own server takes it",
        )
    device = build().start(config, ranks)
    given = read_prompts(arguments.prompts) if arguments.prompts is not None else None
    vocabulary = config.model_config.get_vocab_size()
    prompts = Prompts(plan.requests, vocabulary, given=given, seed=arguments.seed, file=arguments.prompts or "")
    return VllmRunner(plan, place.rank, config, device, prompts, room, observe=observe)


def check_payload(plan: Plan, carried: Sequence[TensorSpec]) -> None:
    """Whether what the schedule says crosses a cut is what vLLM carries, but for the dtype, which the run chooses.

    Raises InputError when it is not: the buffers that the plan was priced and fitted into memory with are others.
    """
    if "payload" not in plan.extra:
        return
    said = {NAMES.get(each["name"], each["name"]): list(each["shape"][1:]) for each in plan.extra["payload"]}
    ours = {spec.name: list(spec.row) for spec in carried}
    if said != ours:
        raise InputError(
            f"the schedule's payload is {said}, and vLLM's model carries {ours}",
            remedy="compile the schedule for this model, with --model DIR/config.json",
        )
