"""vppc inside vLLM: a general plugin, loaded by every process of vLLM's, that does nothing unless it is asked to.

It is asked by ``--additional-config``, see :mod:`runtime.vllm_plugin.settings`. The one thing that is changed in any
case is ``Executor.get_class``, which looks for that first, and otherwise does what it did.
"""

from __future__ import annotations

import functools
from typing import Any

from runtime.runners.vllm import require_vllm
from runtime.vllm_plugin.settings import FILE, Settings
from vppc.errors import InputError

STOCK_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
WORKERS = {"shadow": "runtime.vllm_plugin.shadow.ShadowWorker"}
"""The worker class of each mode."""


def register() -> None:
    """The entry point ``vllm.general_plugins``; vLLM calls it in each of its processes, in some more than once."""
    from vllm.v1.executor.abstract import Executor

    stock = Executor.get_class
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def get_class(vllm_config: Any) -> Any:
        settings = Settings.read(vllm_config.additional_config)
        if settings is not None:
            _prepare(vllm_config, settings)
        return stock(vllm_config)

    Executor.get_class = staticmethod(get_class)


def _prepare(vllm_config: Any, settings: Settings) -> None:
    """Have vLLM start workers of the mode. Raises InputError where that is not possible."""
    require_vllm()
    from vllm.platforms import current_platform

    parallel, ours = vllm_config.parallel_config, WORKERS[settings.mode]
    if not current_platform.is_cpu() or parallel.worker_cls not in ("auto", STOCK_WORKER, ours):
        raise InputError(
            f"workers of class {parallel.worker_cls} on {current_platform.device_name} cannot be journaled",
            file=FILE,
            place="vppc",
            remedy="use vLLM's CPU build, without a worker class of its own",
        )
    settings.make_folder()
    parallel.worker_cls = ours
