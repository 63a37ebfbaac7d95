"""What stages on vLLM-Ascend do not do: refused before anything is loaded, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vppc.errors import InputError

MOONCAKE = "MooncakeConnectorV1"
"""The connector that :mod:`runtime.runners.vllm_ascend.mooncake` has one of a stage."""


def refuse(config: Any, file: str, *, sharded: bool) -> None:
    """Raises InputError for what vLLM's configuration asks for and cannot be; ``file`` is where it was asked.

    ``sharded`` says whether FlashComm is on, by which each process of a rank has other rows.
    """
    for found, why, remedy in (*_scheduling(config), *_placing(config, sharded)):
        if found:
            raise InputError(f"cannot run in stages on vLLM-Ascend: {why}", file=file, remedy=remedy)


def refuse_transfer(config: Any, layers: Sequence[int], file: str) -> None:
    """Raises InputError for a KV transfer that is not from stages with so many ``layers``, by one connector each."""
    transfer, parallel = config.kv_transfer_config, config.parallel_config
    if transfer is None:
        return
    told = dict(transfer.get_from_extra_config("prefill", {}))
    pipeline = {
        "pp_size": len(layers),
        "tp_size": parallel.tensor_parallel_size,
        "pp_layer_partition": ",".join(map(str, layers)),
    }
    wrong = {name: told.get(name) for name, value in pipeline.items() if told.get(name) != value}
    for found, why, remedy in (
        (
            transfer.kv_connector != MOONCAKE,
            f"{transfer.kv_connector} counts the layers of a process, or saves them in one pass",
            f'"kv_connector": "{MOONCAKE}"',
        ),
        (
            transfer.kv_role != "kv_producer",
            "who fetches prompts from Mooncake has no pipeline",
            'fold the side that is "kv_role": "kv_producer"',
        ),
        (parallel.data_parallel_size > 1, "replicas with a KV transfer were never tried", "--data-parallel-size 1"),
        (
            bool(wrong),
            f"both sides have to know each stage as a rank of the pipeline, and are told {wrong}",
            f'"prefill" in kv_connector_extra_config, on both sides, with {json.dumps(pipeline)}',
        ),
    ):
        if found:
            raise InputError(f"cannot transfer from stages on vLLM-Ascend: {why}", file=file, remedy=remedy)


def _scheduling(config: Any) -> Iterator[tuple[bool, str, str]]:
    """What decides by itself what is in a batch, or when it runs."""
    asked: Mapping[str, Any] = config.additional_config or {}
    # from 0.26 on these are in a section of their own, and still taken without
    asked = {**asked, **(asked.get("scheduler_config") or {})}

    def enabled(section: str) -> bool:
        return bool((asked.get(section) or {}).get("enabled", False))

    yield enabled("profiling_chunk_config"), "dynamic chunks replace planned ones", "no profiling_chunk_config"
    yield (
        bool(asked.get("enable_balance_scheduling", os.environ.get("VLLM_ASCEND_BALANCE_SCHEDULING", "0") == "1")),
        "balance scheduling holds batches back that the order counts on",
        "no enable_balance_scheduling",
    )
    yield enabled("batch_job_sched_config"), "batches by job replace planned ones", "no batch_job_sched_config"
    short_first = enabled("short_request_first_config")
    yield short_first, "its queue is not the one that is planned for", "no short_request_first_config"
    dynamic = asked.get("SLO_limits_for_dynamic_batch", -1) != -1
    yield dynamic, "dynamic batches replace planned ones", "no SLO_limits_for_dynamic_batch"
    yield enabled("xlite_graph_config"), "Xlite has a model runner of its own", "no xlite_graph_config"
    yield not config.model_config.enforce_eager, "graphs are of one model runner a process", "--enforce-eager"


def _placing(config: Any, sharded: bool) -> Iterator[tuple[bool, str, str]]:
    """What spreads a model over processes, or its memory, as if a process had one stage."""
    parallel, model, asked = config.parallel_config, config.model_config, config.additional_config or {}
    replicas = parallel.data_parallel_size > 1
    yield (
        replicas and sharded,
        "with FlashComm all replicas have as many rows as the one with the most",
        "VLLM_ASCEND_ENABLE_FLASHCOMM1=0",
    )
    yield (
        replicas and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0",
        "an engine without a process of its own does not pass in step with other replicas",
        "VLLM_ENABLE_V1_MULTIPROCESSING=1",
    )
    contexts = parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size
    yield contexts > 1, "a chunk is not split over ranks", "no context parallelism"
    experts = asked.get("eplb_config") or {}
    yield (
        bool(experts.get("dynamic_eplb") or experts.get("expert_map_path")),
        "expert maps number layers in the order in which a process makes them",
        "no eplb_config",
    )
    yield (
        any((asked.get("finegrained_tp_config") or {}).values()),
        "its groups exchange over data-parallel ranks",
        "no finegrained_tp_config",
    )
    yield bool(asked.get("layer_sharding")), "it gathers weights by one run of layers", "no layer_sharding"
    yield (
        sharded and not model.is_moe,
        "with FlashComm a dense model hands on all rows of a small batch, and then takes a part of them",
        "VLLM_ASCEND_ENABLE_FLASHCOMM1=0",
    )
    yield model.enable_sleep_mode, "stages do not load into the pool that sleeps", "no --enable-sleep-mode"
