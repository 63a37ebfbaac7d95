"""A KV connector of vLLM's on a rank that a batch passes twice.

A model runner takes its connector through a batch's life: it binds the batch's metadata, starts the loads, runs its
layers, each of which waits for its load and is saved, waits for the saves, asks what has finished, and clears the
metadata. (Since 0.29 loads that none of the batch's requests waits for start behind its layers.) With two stages a rank
that is to happen once a batch, over the layers of both, although other batches come by in between. So the model runner
of each stage is shown a view of the rank's one connector: in a batch's first pass it begins, in its second it ends, and
in both the layers are the connector's own business.

A connector knows which batch it serves by the metadata that is bound, so the second pass binds them again. One that
keeps track of a batch's layers by itself, rather than by name, is lost between two batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1


class Pass:
    """The connector as one stage's model runner sees it; what a view does not have is the connector's."""

    prefer_cross_layer_blocks = False
    """A tensor over all layers would be one of a stage, and a connector takes but one. Asked before 0.29."""

    def __init__(self, connector: Any, layers: Mapping[str, Any], caches: dict[str, Any]) -> None:
        """``layers`` are those of both stages, by name, and so are the ``caches`` when both have registered them."""
        self._connector, self._layers, self._caches = connector, layers, caches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        self._caches.update(kv_caches)


class FirstPass(Pass):
    """Begins a batch's life. The metadata stay bound, until another batch's are."""

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None: ...

    def start_load_kv(self, forward_context: Any, **options: Any) -> None:
        """Loads go into the layers of both stages, whose blocks have the same numbers: one description is for all."""
        attention = forward_context.attn_metadata
        if attention:
            attention = dict.fromkeys(self._caches, next(iter(attention.values())))
        whole = replace(forward_context, no_compile_layers=self._layers, attn_metadata=attention)
        self._connector.start_load_kv(whole, **options)

    def wait_for_save(self) -> None: ...

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, None]:
        """Nobody: a request that has ended may still have tokens in batches that go back before this one."""
        return None, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """What vLLM asks for since 0.30: by :meth:`get_finished`."""
        return KVConnectorBase_V1.get_transfer_results(self, finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    def get_kv_connector_stats(self) -> None: ...

    def get_kv_connector_kv_cache_events(self) -> None: ...

    def build_connector_worker_meta(self) -> None: ...

    def clear_connector_metadata(self) -> None: ...


class SecondPass(Pass):
    """Ends a batch's life."""

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._connector.register_kv_caches(self._caches)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None: ...

    def start_load_kv(self, forward_context: Any, **options: Any) -> None: ...


KVConnectorBase_V1.register(Pass)


def passes(connector: Any, layers: Mapping[str, Any]) -> tuple[FirstPass, SecondPass]:
    """Views of a rank's connector for the model runners of its two stages, which have these ``layers`` together."""
    caches: dict[str, Any] = {}
    return FirstPass(connector, layers, caches), SecondPass(connector, layers, caches)
