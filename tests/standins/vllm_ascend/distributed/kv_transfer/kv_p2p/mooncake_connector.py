"""vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector: prompts are fetched out of another server's KV cache.

What matters here is as in the real one: which port a process of the prefilling side listens at, by its pipeline rank,
that it knows its layers by the numbers in their names, that only registered memory can be read, and which layers the
fetching side asks of which port. What does not: here blocks come over a socket, at once, and each from a TP rank of
one.
"""

from __future__ import annotations

import threading
from collections import Counter
from multiprocessing.connection import Client, Listener
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.distributed.utils import get_pp_indices
from vllm.v1.worker.utils import extract_layer_index

from vllm_ascend.distributed.kv_transfer.utils.mooncake_transfer_engine import global_te


def get_prefill_pp_indices(
    num_hidden_layers: int, pp_rank: int, pp_size: int, partition_list_str: str | None = None
) -> tuple[int, int]:
    """The layers of a rank of the prefilling side."""
    if partition_list_str is None:
        return get_pp_indices(num_hidden_layers, pp_rank, pp_size)
    partitions = [int(layer) for layer in partition_list_str.split(",")]
    assert (len(partitions), sum(partitions)) == (pp_size, num_hidden_layers)
    return sum(partitions[:pp_rank]), sum(partitions[: pp_rank + 1])


class MooncakeConnectorMetadata(KVConnectorMetadata):
    def __init__(self) -> None:
        self.requests: dict[str, tuple[list[int], dict[str, Any]]] = {}  # of what is fetched, where it goes and is
        self.requests_to_send: set[str] = set()


class MooncakeConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self.port, self.produces = transfer.kv_port, transfer.is_kv_producer
        self.prefill = transfer.get_from_extra_config("prefill", {})
        if role == KVConnectorRole.SCHEDULER:
            self.told = MooncakeConnectorMetadata()
            self.workers: dict[Any, Any] = {}
            return
        self.tp, self.tp_rank = get_tp_group().world_size, get_tp_group().rank_in_group
        self.layers = vllm_config.model_config.get_total_num_hidden_layers()
        self.handshake_port = self.port + get_pp_group().rank_in_group * self.tp + self.tp_rank
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.to_send: set[str] = set()

    # on the scheduler's side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return request.num_prompt_tokens - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params or {}
        if params.pop("do_remote_prefill", False) and num_external_tokens:
            self.told.requests[request.request_id] = blocks.get_block_ids()[0], params

    def build_connector_meta(self, scheduler_output: Any) -> MooncakeConnectorMetadata:
        told, self.told = self.told, MooncakeConnectorMetadata()
        return told

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        self.workers = {key: each.handshake_port for key, each in metadata.items()}

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if not self.produces:
            return False, None
        self.told.requests_to_send.add(request.request_id)
        return True, {
            "do_remote_prefill": True,
            "remote_block_ids": block_ids,
            "remote_request_id": request.request_id,
            "ports": sorted(self.workers.values()),
        }

    # on the workers' side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = {extract_layer_index(name, 1): cache for name, cache in kv_caches.items()}
        global_te.register_buffer([cache.data_ptr() for cache in self.caches.values()], [])
        if self.produces:
            listener = Listener(("127.0.0.1", self.handshake_port))
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _serve(self, listener: Listener) -> None:
        while True:
            with listener.accept() as asked:
                request, first, end, blocks = asked.recv()
                caches = [self.caches.get(layer) for layer in range(first, end)]
                whole = all(cache is not None and cache.data_ptr() in global_te.regions for cache in caches)
                asked.send([cache[blocks].numpy() for cache in caches] if whole else None)
                with self.lock:
                    self.done[request] += 1

    def get_handshake_metadata(self) -> Any:
        return SimpleNamespace(handshake_port=self.handshake_port)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        told = self._get_connector_metadata()
        assert isinstance(told, MooncakeConnectorMetadata)
        self.to_send |= told.requests_to_send
        for request, (ids, params) in told.requests.items():
            for pp_rank in range(self.prefill["pp_size"]):
                first, end = get_prefill_pp_indices(
                    self.layers, pp_rank, self.prefill["pp_size"], self.prefill.get("pp_layer_partition")
                )
                port = self.port + pp_rank * self.prefill["tp_size"]
                assert port in params["ports"]
                with Client(("127.0.0.1", port)) as asked:
                    asked.send((params["remote_request_id"], first, end, params["remote_block_ids"]))
                    given = asked.recv()
                if given is None:
                    raise RuntimeError(f"rank {pp_rank} has not all of layers {first} to {end}")
                for layer, blocks in zip(range(first, end), given, strict=True):
                    self.caches[layer][ids] = torch.from_numpy(blocks)
            self.done[request] += 1

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        with self.lock:
            found = set(self.done) & self.to_send if self.produces else set(self.done)
            for request in found:
                del self.done[request]
        self.to_send -= found
        return (found, set()) if self.produces else (set(), found)
