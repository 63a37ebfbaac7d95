"""The compiler of a folded server's order: of the batches that vLLM makes, on the stages that the settings ask for."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from runtime.vllm_plugin.settings import Fold
from vppc.costs.model import CostModel, LayerCost
from vppc.ir.schedule import Model
from vppc.passes.strategies import Options
from vppc.serving.batch_order import BatchCompiler
from vppc.serving.clock import header_of


def batch_compiler(settings: Fold, config: Any) -> BatchCompiler:
    """For a server with vLLM's ``config``. Raises InputError for costs or layers that are not the model's."""
    pp, model = config.parallel_config.pipeline_parallel_size, config.model_config
    layers = model.get_total_num_hidden_layers()
    ranges = tuple(pairwise(accumulate(settings.layers(pp, layers), initial=0)))
    # replicas with experts in common need one order, and have chunks of their own
    alike = CostModel((LayerCost(layers, fixed=1.0),)) if config.parallel_config.data_parallel_size > 1 else None
    options = Options(strategy=settings.strategy, pp=pp, ranges=ranges)
    return BatchCompiler(
        header_of(options, Model(Path(model.model).name, layers)),
        alike or settings.cost(layers) or settings.equal_cost(layers),
        finish_first=settings.policy != "dual-queue",
        in_flight=settings.in_flight(pp),
        chunk_size=config.scheduler_config.max_num_batched_tokens,
    )
