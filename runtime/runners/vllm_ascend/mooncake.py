"""Mooncake's connector on a rank with two stages: to who fetches its prompts, a worker a stage.

Who fetches knows the pipeline that it fetches from by ``prefill`` in the extra config: of each rank of that the port,
``kv_port + rank * tp + tp rank``, and one run of layers, by ``pp_layer_partition``. A stage is such a rank: of P
pipeline ranks the other side is told of 2 P. So each stage has a connector of its own here, made and used where
vLLM's pipeline group is the stage's, with a port and the stage's layers; and the other side is vLLM-Ascend as it is.

The transfer engine is the process's. It takes the memory that is registered with it first, and then no more; here it is
told to take that of both stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm_ascend.distributed.kv_transfer.utils.mooncake_transfer_engine import global_te

from runtime.runners.vllm.upstream import StagePlace


@dataclass(frozen=True, slots=True)
class Part:
    """What a stage has: where it is, its part of the KV cache, and its connector."""

    place: StagePlace
    cache: KVCacheConfig
    connector: Any


class StagedConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not there when types are checked
    """A connector a stage, as one, on the side that is fetched from. Layers are neither waited for nor saved."""

    def __init__(
        self,
        config: VllmConfig,
        whole: KVCacheConfig,
        places: Mapping[int, StagePlace],
        caches: Mapping[int, KVCacheConfig],
    ) -> None:
        """``whole`` is the rank's KV cache, and ``caches`` are the stages' parts of it."""
        super().__init__(config, KVConnectorRole.WORKER, whole)
        self._parts: dict[int, Part] = {}
        self._sent: Counter[str] = Counter()  # by how many stages
        for stage, place in places.items():
            with place.here():
                made = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, caches[stage])
            self._parts[stage] = Part(place, caches[stage], made)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        for part in self._parts.values():
            names = {name for group in part.cache.kv_cache_groups for name in group.layer_names}
            global_te.is_register_buffer = False
            with part.place.here():
                part.connector.register_kv_caches({name: each for name, each in kv_caches.items() if name in names})

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        for part in self._parts.values():
            part.connector.bind_connector_metadata(connector_metadata)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        for part in self._parts.values():
            part.connector.clear_connector_metadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for part in self._parts.values():
            part.connector.start_load_kv(forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Those of which every stage has been fetched; nothing is received here."""
        for part in self._parts.values():
            self._sent.update(part.connector.get_finished(finished_req_ids)[0] or ())
        sent = {request for request, stages in self._sent.items() if stages == len(self._parts)}
        for request in sent:
            del self._sent[request]
        return sent, set()

    def handshakes(self) -> dict[int, Any]:
        """What each stage has to say to who fetches."""
        return {stage: part.connector.get_handshake_metadata() for stage, part in self._parts.items()}

    # the scheduler has a connector of its own, and asks that

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        raise NotImplementedError

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        raise NotImplementedError

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        raise NotImplementedError
