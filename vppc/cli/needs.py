"""Options that say something only beside others: given alone they are refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import click
from click.core import ParameterSource

from vppc.errors import InputError

Needs = Mapping[str, tuple[str, bool]]
"""By the name of a parameter, what it says nothing without, and whether that is there."""


def check_needs(context: click.Context, needs: Needs) -> None:
    """Raises InputError for an option given on the command line that would say nothing without another."""
    for name, option in _given(context):
        other, there = needs.get(name, ("", True))
        if not there:
            raise InputError(f"says nothing without {other}", place=option, remedy=f"give {other}, or leave it out")


def check_beside(context: click.Context, other: str, names: Collection[str]) -> None:
    """Raises InputError for one of these options given on the command line: it would say nothing beside ``other``."""
    for name, option in _given(context):
        if name in names:
            raise InputError(f"says nothing beside {other}", place=option, remedy="give one of the two")


def _given(context: click.Context) -> Iterator[tuple[str, str]]:
    """Of every option on the command line its parameter's name, and how it is called."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield name, max(parameter.opts, key=len)


def strategy_needs(strategies: Collection[str], measured_times: Collection[str]) -> Needs:
    """What the options need that only some strategies look at."""
    dcpp, sglang = "dcpp" in strategies, "dcpp-sglang" in strategies
    folded = any(strategy.startswith("vpp") for strategy in strategies)
    learns = dcpp and any(time != "offline" for time in measured_times)
    return {
        "page_size": ("--strategy dcpp or dcpp-sglang", dcpp or sglang),
        "smooth": ("--strategy dcpp or dcpp-sglang", dcpp or sglang),
        "min_chunk": ("--strategy dcpp", dcpp),
        "measured_time": ("--strategy dcpp", dcpp),
        "measured_times": ("--strategy dcpp", dcpp),
        "warmups": ("--strategy dcpp and --measured-time own or wait", learns),
        "context_length": ("--strategy dcpp-sglang", sglang),
        "placement": ("--strategy vpp, vpp-async or vpp-packed", folded),
        "vp": ("--strategy vpp, vpp-async or vpp-packed", folded),
    }


def model_needs(model: object) -> Needs:
    """What the options need that describe the devices of a model."""
    names = ("device", "tp", "ep", "weight_dtype", "network")
    return dict.fromkeys(names, ("--model", bool(model)))


def fitted_needs(model: object, *, fitted: bool) -> Needs:
    """As :func:`model_needs`, where a cost file may price the model: then its devices are looked at only for memory.

    ``fitted``: the schedule is held against the memory of a device.
    """
    checked = ("--device", fitted) if model else ("--model", False)
    return {
        **{name: ("--model", bool(model)) for name in ("device", "network")},
        **dict.fromkeys(("ep", "weight_dtype"), checked),
    }


def queue_needs(policies: Collection[str]) -> Needs:
    """What the options need that only some policies of the queue look at."""
    return {"patience": ("a --policy other than fcfs", any(policy != "fcfs" for policy in policies))}


def picture_needs(drawn: bool) -> Needs:
    """What the options need that are about how a picture looks."""
    return {"theme": ("-o a picture (.svg, .html or .png)", drawn)}
