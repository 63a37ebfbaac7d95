"""The model and the devices that a command line speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import click

from vppc.analysis.memory import Memory, check_memory, memory_of
from vppc.costs.devices import MULTIPLIED, Device, find_device
from vppc.costs.document import check_layers, read_cost
from vppc.costs.model import CostModel
from vppc.costs.roofline import roofline_cost
from vppc.errors import InputError
from vppc.ir.schedule import Request, Schedule
from vppc.models import ModelSpec
from vppc.models.payload import widest_payload
from vppc.passes.strategies import LAYER_SPLITS
from vppc.render.tables import count

NETWORK = click.option(
    "--network", is_flag=True, help="Price transfers over the network between nodes, not over the links of a node."
)

DEVICES_A_RANK = click.IntRange(1, 1024)
TP = click.option(
    "--tp", type=DEVICES_A_RANK, default=1, show_default=True, help="Devices a rank: tensor parallel ways."
)
EP = click.option(
    "--ep",
    type=DEVICES_A_RANK,
    default=1,
    show_default=True,
    help="Devices that share the experts: of one rank, or, if more than --tp, of replicas of it.",
)

LAYER_SPLIT = click.option(
    "--layer-split",
    type=click.Choice(LAYER_SPLITS),
    help="Who has one more where layers are not even: vllm, the stages before the last; upstream, the first; balanced, "
    "by their costs [default: as engines do, of a straight pipeline vllm, else upstream].",
)

DEFAULT_DEVICE = "910c"
"""What a model is priced on where no device is named."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the command line says of the model and of the devices that it is to run on."""

    spec: ModelSpec | None
    device: str | None
    tp: int
    ep: int
    weight_dtype: str | None
    network: bool = False

    def cost(self, file: str | None, layers: int | None) -> CostModel:
        """The costs of a file, or of the model by roofline; of as many layers as are said to be there."""
        if file is not None:
            if self.network:
                raise InputError(
                    "a cost file says itself what transfers take",
                    place="--network",
                    remedy="leave it out, or leave --cost out",
                )
            cost = read_cost(file)
        elif self.spec is not None:
            note_pricing(self.spec, self.device, self.weight_dtype)
            cost = roofline_cost(
                self.spec,
                self._device(),
                tp=self.tp,
                ep=self.ep,
                weight_dtype=self.weight_dtype,
                network=self.network,
            )
        else:
            raise InputError(
                "real prompts need costs",
                place="--cost",
                remedy="give --cost FILE, or --model NAME for costs by roofline",
            )
        for expected in (layers, self.spec.layers if self.spec is not None else None):
            if expected is not None:
                check_layers(cost, expected, file=file or "--layers")
        return cost

    def extra(self) -> dict[str, Any]:
        """The keys of the schedule that say what this is."""
        extra: dict[str, Any] = {"tp": self.tp} if self.tp > 1 else {}
        if self.spec is not None:
            extra["payload"] = widest_payload(self.spec, tp=self.tp)
        return extra

    def fitting(self, schedule: Schedule, *, priced: bool) -> Schedule:
        """The schedule with each rank's memory, if the device is known: named, or ``priced`` on.

        Raises CheckFailed when it does not fit.
        """
        if self.spec is None or not (priced or self.device):
            return schedule
        return check_memory(schedule, self.spec, self._device(), tp=self.tp, ep=self.ep, weight_dtype=self.weight_dtype)

    def memory(self) -> Memory | None:
        """The model on the device that it is priced on, without a schedule; None without a model."""
        if self.spec is None:
            return None
        return memory_of(self.spec, self._device(), tp=self.tp, ep=self.ep, weight_dtype=self.weight_dtype)

    def _device(self) -> Device:
        return find_device(self.device or DEFAULT_DEVICE)

    def note_ways(self, cost: CostModel) -> None:
        """Say so when costs are named after other parallel ways (``..-tp8-ep8``) than the command line has."""
        ways = (("tp", self.tp), ("ep", self.ep)) if self.device is not None else (("tp", self.tp),)
        for way, given in ways:
            named = re.search(rf"(?<![a-z0-9]){way}(\d+)(?![a-z0-9])", cost.name.lower())
            if named and int(named[1]) != given and (given > 1 or self.spec is not None):
                click.echo(
                    f"note: --{way} is {given}, but the costs are of {cost.name}: their times are those of {named[0]}",
                    err=True,
                )


def note_pricing(spec: ModelSpec, device: str | None, weight_dtype: str | None) -> None:
    """Say what a model is priced on and in where nobody said it: the default device, not the published weights."""
    if device is None:
        click.echo(f"note: {spec.name} is priced on a {DEFAULT_DEVICE} (default); --device names another", err=True)
    if spec.published_dtype and weight_dtype is None:
        chosen = find_device(device or DEFAULT_DEVICE)
        flag = spec.published_dtype if MULTIPLIED[spec.published_dtype] in chosen.flops else "w8a8"
        instead = "" if flag == spec.published_dtype else f", for a {chosen.name} has no {spec.published_dtype}"
        click.echo(
            f"note: {spec.name} is published in {spec.published_dtype}, and priced in {spec.weight_dtype}: "
            f"--weight-dtype {flag} prices 8 bits{instead}",
            err=True,
        )


def note_nodes(spec: ModelSpec | None, name: str | None, ranks: int, tp: int, *, network: bool) -> None:
    """Say so when a model is priced by the links of a node, and its ``ranks`` of ``tp`` devices are more than a node
    has."""
    if spec is None or network:
        return
    device = find_device(name or DEFAULT_DEVICE)
    if ranks * tp > device.node:
        click.echo(
            f"note: {count(ranks * tp)} {device.name}s are more than a node's {device.node}, but transfers between "
            "ranks are priced over a node's links: --network prices them between nodes",
            err=True,
        )


def note_context(spec: ModelSpec | None, prompts: Iterable[Request]) -> None:
    """Say so when prompts are longer than what the model was published for."""
    longest = max((request.prompt_tokens for request in prompts), default=0)
    if spec is not None and spec.context and longest > spec.context:
        click.echo(
            f"note: a prompt has {count(longest, 'token')}, but {spec.name} is published for {count(spec.context)}: "
            f"serve it with {_longer(spec, longest)}",
            err=True,
        )


def _longer(spec: ModelSpec, longest: int) -> str:
    """What serves a model with longer prompts than it was published for."""
    if spec.rotary == "yarn":
        return (
            f"a larger factor of rotary scaling, in its config.json: {ceil(longest / spec.trained)}.0 times the "
            f"{count(spec.trained)} that it was trained for"
        )
    if spec.rotary:
        return f"rotary scaling that is made for them; its config.json has {spec.rotary}"
    factor = ceil(longest / spec.context)
    return f'rotary scaling, in its config.json "rope_scaling": {{"rope_type": "yarn", "factor": {factor}.0, ..}}'
