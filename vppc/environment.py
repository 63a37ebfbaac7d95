"""What is installed here. Only the standard library, so that it can say that everything else is missing."""

from __future__ import annotations

import importlib.metadata
import platform
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
    ("torch", "running schedules", "pip install '.[runtime]'"),
    ("torch_npu", "Ascend NPUs", "pip install '.[npu]', with CANN"),
    ("vllm", "serving", "pip install vllm"),
    ("vllm_ascend", "serving on Ascend NPUs", "pip install vllm-ascend"),
)


def packages() -> tuple[Package, ...]:
    """Python, vppc, and what runs and serves schedules; nothing is imported."""
    here = (
        Package("python", platform.python_version(), "everything", ""),
        Package("vppc", vppc.__version__, "everything", ""),
    )
    return here + tuple(Package(name, _version(name), needed, remedy) for name, needed, remedy in _WANTED)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
