"""Environment variables that change how transfers behave: what they are set to, what that means, what is wrong.

Defaults and ranges are those of torch_npu 2.10.0 (OptionsManager.cpp and the docs beside it), of the HCCL guide of
CANN 8.5, and of torch's ProcessGroupNCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable, its ``value`` (None: not set, so ``default`` holds), and its ``problem``, empty if none."""

    name: str
    value: str | None
    default: str
    meaning: str
    problem: str


@dataclass(frozen=True, slots=True)
class _Rule:
    names: tuple[str, ...]
    """The variable, and older names of it, in the order in which they count."""
    default: str
    meaning: str
    judge: Callable[[str], str]
    """What is wrong with a value."""

    def apply(self, environment: Mapping[str, str]) -> Setting:
        name = next((name for name in self.names if name in environment), self.names[0])
        value = environment.get(name)
        return Setting(name, value, self.default, self.meaning, self.judge(self.default if value is None else value))


def check_settings(device: str, environment: Mapping[str, str]) -> tuple[Setting, ...]:
    """The settings that matter on ``cpu``, ``cuda`` or ``npu``."""
    return tuple(rule.apply(environment) for rule in _RULES[device]) + _together(device, environment)


def problems(device: str, environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the settings, a line each."""
    return [f"{setting.name} {setting.problem}" for setting in check_settings(device, environment) if setting.problem]


def _together(device: str, environment: Mapping[str, str]) -> tuple[Setting, ...]:
    """What two settings must not be at once."""
    if device != "npu":
        return ()
    meaning = "seconds after which a stream stops waiting for an event; longer than HCCL_EXEC_TIMEOUT"
    waits, runs = environment.get("HCCL_EVENT_TIMEOUT"), environment.get("HCCL_EXEC_TIMEOUT")
    # unset, torch_npu makes it longer by itself
    problem = "" if waits is None else _range(0, 2**31 - 1)(waits)
    if waits is not None and not problem and _seconds(waits) <= _seconds(runs or "1836"):
        problem = "not longer than HCCL_EXEC_TIMEOUT: the stream gives up before HCCL says why; unset it"
    return (Setting("HCCL_EVENT_TIMEOUT", waits, "HCCL_EXEC_TIMEOUT and more", meaning, problem),)


def _seconds(text: str) -> float:
    """Zero is for ever."""
    return (int(text) if text.lstrip("-").isdigit() else 0) or float("inf")


def _truth(problem: str) -> Callable[[str], str]:
    """A switch that must be off."""
    return lambda value: problem if value.lower() in ("1", "y", "yes", "t", "true") else ""


def _never(value: str) -> str:
    return ""


def _one_of(values: tuple[str, ...], bad: Mapping[str, str]) -> Callable[[str], str]:
    """One of a few values, of which some are bad for a reason."""
    return lambda value: f"is not one of {', '.join(values)}" if value not in values else bad.get(value, "")


def _range(low: int, high: int, short: int = 0, problem: str = "") -> Callable[[str], str]:
    """A whole number in a range; below ``short``, but not 0, there is a ``problem``."""

    def judge(value: str) -> str:
        if not value.lstrip("-").isdigit() or not low <= int(value) <= high:
            return f"is not a whole number from {low} to {high}"
        return problem if 0 < int(value) < short else ""

    return judge


def _devices(value: str) -> str:
    """A list of devices."""
    numbers = [number.strip() for number in value.split(",")]
    if value == "all":
        return ""
    if not all(number.isdecimal() for number in numbers):
        return "is not a list of numbers, as 0,1,2,3" if value else "shows none"
    return "" if len({int(number) for number in numbers}) == len(numbers) else "names a device twice"


def _required(problem: str) -> Callable[[str], str]:
    return lambda value: "" if value else problem


_SOURCE = "CANN is not set up in this shell: source set_env.sh of the toolkit"
_NPU = (
    _Rule(("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"), "", "where CANN is", _required(_SOURCE)),
    _Rule(("ASCEND_OPP_PATH",), "", "where CANN's kernels are", _required(_SOURCE)),
    _Rule(("ASCEND_RT_VISIBLE_DEVICES",), "all", "which NPUs the processes may take, in order", _devices),
    _Rule(
        ("TORCH_HCCL_BLOCKING_WAIT", "HCCL_BLOCKING_WAIT"),
        "0",
        "whether a WAIT blocks the host instead of the stream",
        _truth("the host waits for every transfer and queues nothing meanwhile: unset it"),
    ),
    _Rule(
        ("ASCEND_LAUNCH_BLOCKING",),
        "0",
        "whether the host waits for every kernel",
        _truth("no transfer is hidden behind compute: unset it but for debugging"),
    ),
    _Rule(
        ("TASK_QUEUE_ENABLE",),
        "1",
        "whether a second thread launches what the first has queued",
        _one_of(("0", "1", "2"), {"0": "launching takes longer, which small chunks show: unset it"}),
    ),
    _Rule(
        ("PER_STREAM_QUEUE",),
        "0",
        "whether each stream has a launching thread of its own (experimental)",
        _truth("a WAIT holds the host until the transfer is launched: unset it"),
    ),
    _Rule(
        ("STREAMS_PER_DEVICE",),
        "32",
        "streams of a device, which communicators take in turn",
        _one_of(("8", "32"), {"8": "two channels may get one stream, and then hang: unset it"}),
    ),
    _Rule(
        ("HCCL_CONNECT_TIMEOUT",),
        "120",
        "seconds that opening a channel waits for its other end, and 20 more",
        _range(120, 7200),
    ),
    _Rule(
        ("HCCL_EXEC_TIMEOUT",),
        "1836",
        "seconds that a posted transfer waits for its other end before HCCL gives up; 0 is for ever",
        _range(0, 2**31 - 1, 300, "receives are posted ahead: longer than any rank computes or waits for a request"),
    ),
    _Rule(
        ("P2P_HCCL_BUFFSIZE",),
        "20",
        "MB of each of a channel's two buffers on the device",
        lambda value: (
            "channels then take HCCL_BUFFSIZE (200 MB) instead, twice each: unset it"
            if value == "0"
            else _range(1, 2**31 - 1)(value)
        ),
    ),
    _Rule(("HCCL_BUFFSIZE",), "200", "MB of each of a tp group's two buffers on the device", _range(1, 2**31 - 1)),
    _Rule(
        ("HCCL_OP_EXPANSION_MODE",),
        "by product",
        "what drives a transfer; AIV takes vector cores from compute, which `interference` then shows",
        _never,
    ),
    _Rule(
        ("TORCH_HCCL_ASYNC_ERROR_HANDLING", "HCCL_ASYNC_ERROR_HANDLING"),
        "1",
        "whether errors of HCCL on the device are looked for",
        _one_of(("0", "1", "2", "3"), {"0": "a broken link is noticed only by vppc's own timeout: unset it"}),
    ),
    _Rule(
        ("ASCEND_GLOBAL_LOG_LEVEL",),
        "3",
        "from which level on CANN writes its log: 0 debug, 1 info, 2 warnings, 3 errors, 4 nothing",
        _one_of(
            ("0", "1", "2", "3", "4"),
            dict.fromkeys("01", "every call writes to the log, which all times show: unset it"),
        ),
    ),
    _Rule(
        ("HCCL_SOCKET_IFNAME", "HCCL_IF_IP"), "found by HCCL", "over which network nodes' HCCL meet each other", _never
    ),
)
_NETWORK = (
    _Rule(("GLOO_SOCKET_IFNAME",), "by host name", "over which network the processes meet, clocks included", _never),
)
_CUDA = (
    _Rule(
        ("CUDA_LAUNCH_BLOCKING",),
        "0",
        "whether the host waits for every kernel",
        _truth("no transfer is hidden behind compute: unset it but for debugging"),
    ),
    _Rule(
        ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"),
        "0",
        "whether a WAIT blocks the host instead of the stream",
        _truth("the host waits for every transfer and queues nothing meanwhile: unset it"),
    ),
    _Rule(
        ("CUDA_DEVICE_MAX_CONNECTIONS",),
        "8",
        "hardware queues that streams share",
        _range(1, 32, 2, "a waiting transfer holds up the compute queued behind it: unset it"),
    ),
)
_RULES = {"cpu": _NETWORK, "cuda": _CUDA + _NETWORK, "npu": _NPU + _NETWORK}
