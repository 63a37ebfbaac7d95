"""vppc inside vLLM: a general plugin, loaded by every process of vLLM's, that does nothing unless it is asked to.

It is asked by ``--additional-config``, see :mod:`runtime.vllm_plugin.settings`. Then vLLM's own options for them name
our executor, worker and scheduler: subclasses of vLLM's. Two things of vLLM are changed in any case; they look for that
first, and otherwise do what they did:

* ``Executor.get_class``: the executor and the worker class are chosen there. Other versions of vLLM get this, too, to
  refuse what they are asked for.
* ``VllmConfig.max_concurrent_batches``: how many batches vLLM's engine keeps in flight.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from runtime.runners.vllm import check_version, made_for
from runtime.vllm_plugin.page import page_path
from runtime.vllm_plugin.refusals import refuse
from runtime.vllm_plugin.settings import FILE, Fold, Shadow, read_settings
from vppc.errors import InputError


@dataclass(frozen=True, slots=True)
class Classes:
    """On a platform of vLLM's, its own worker and our classes, by name; ``shadow`` is None where there is none."""

    stock: str
    shadow: str | None
    fold: str
    scheduler: str


CLASSES = {
    "cpu": Classes(
        "vllm.v1.worker.cpu_worker.CPUWorker",
        "runtime.vllm_plugin.shadow.ShadowWorker",
        "runtime.vllm_plugin.worker_cpu.FoldWorker",
        "runtime.vllm_plugin.scheduler.FoldScheduler",
    ),
    "npu": Classes(
        "vllm_ascend.worker.worker.NPUWorker",
        None,
        "runtime.vllm_plugin.worker_ascend.AscendFoldWorker",
        "runtime.vllm_plugin.scheduler_ascend.AscendFoldScheduler",
    ),
}


def register() -> None:
    """The entry point ``vllm.general_plugins``; vLLM calls it in each of its processes, in some more than once."""
    import vllm
    from vllm.v1.executor.abstract import Executor

    stock_class = Executor.get_class
    if hasattr(stock_class, "__wrapped__"):
        return

    @functools.wraps(stock_class)
    def get_class(vllm_config: Any) -> Any:
        settings = read_settings(vllm_config.additional_config)
        if settings is None:
            return stock_class(vllm_config)
        check_version(vllm.__version__, FILE)
        if isinstance(settings, Shadow):
            return _shadowed(vllm_config, settings, stock_class)
        return _folded(vllm_config, settings, stock_class)

    Executor.get_class = staticmethod(get_class)
    if made_for(vllm.__version__):
        _keep_more_batches()


def _keep_more_batches() -> None:
    """Let vLLM's engine keep as many batches in flight as the settings say."""
    from vllm.config import VllmConfig

    stock = VllmConfig.max_concurrent_batches

    def max_concurrent_batches(vllm_config: Any) -> int:
        settings = read_settings(vllm_config.additional_config)
        if not isinstance(settings, Fold):
            return int(stock.fget(vllm_config))
        return settings.in_flight(vllm_config.parallel_config.pipeline_parallel_size)

    VllmConfig.max_concurrent_batches = property(max_concurrent_batches)


def _shadowed(vllm_config: Any, settings: Shadow, stock_class: Any) -> Any:
    """vLLM's own executor, of workers that keep a journal."""
    classes = _classes()
    if classes.shadow is None:
        raise InputError("no journal of batches is kept on NPUs", file=FILE, place="vppc.mode", remedy="vppc profile")
    _replace_worker(vllm_config, classes.stock, classes.shadow)
    try:
        settings.journal.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(settings.journal)) from None
    return stock_class(vllm_config)


def _folded(vllm_config: Any, settings: Fold, stock_class: Any) -> Any:
    """The executor of folded workers. Raises InputError for what they do not do, before anything is loaded."""
    from runtime.vllm_plugin.executor import FoldExecutor
    from runtime.vllm_plugin.metrics import watch
    from runtime.vllm_plugin.paced import PacedExecutor

    classes = _classes()
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    pp, layers = parallel.pipeline_parallel_size, model.get_total_num_hidden_layers()
    refuse(vllm_config, replicas=classes is CLASSES["npu"])
    if classes is CLASSES["npu"]:
        from vllm_ascend.utils import enable_sp

        from runtime.runners.vllm_ascend import refusals

        refusals.refuse(vllm_config, FILE, sharded=enable_sp(vllm_config))
        refusals.refuse_transfer(vllm_config, settings.layers(pp, layers), FILE)
    settings.layers(pp, layers)
    settings.cost(layers)
    _replace_worker(vllm_config, classes.stock, classes.fold)
    _replace_scheduler(vllm_config, classes.scheduler, settings)
    watch(page_path(vllm_config), pp, parallel.tensor_parallel_size)
    return PacedExecutor if parallel.data_parallel_size > 1 else FoldExecutor


def _replace_scheduler(vllm_config: Any, ours: str, settings: Fold) -> None:
    """Raises InputError for batches that our scheduler would not make."""
    from runtime.vllm_plugin.batches import batches_of

    scheduler = vllm_config.scheduler_config
    if scheduler.scheduler_cls not in (None, ours):
        remedy = "no --scheduler-cls"
        raise InputError("the batches of a folded server are ours", file=FILE, remedy=remedy)
    batches_of(settings, vllm_config)
    scheduler.scheduler_cls = ours


def _replace_worker(vllm_config: Any, stock: str, ours: str) -> None:
    parallel = vllm_config.parallel_config
    if parallel.worker_cls not in ("auto", stock, ours):
        raise InputError(
            f"is for vLLM's own workers, not for {parallel.worker_cls}", file=FILE, remedy="no --worker-cls"
        )
    parallel.worker_cls = ours


def _classes() -> Classes:
    """Those of the platform that vLLM runs on here."""
    from vllm.platforms import current_platform

    found = CLASSES.get(current_platform.device_name)
    if found is None:
        raise InputError(
            f"vLLM runs on {current_platform.device_name} here", file=FILE, remedy="its CPU build, or vLLM-Ascend"
        )
    return found
