"""A KV connector of vLLM's for tests: prefilled blocks go through files, and its calls are written down.

It takes what freedom vLLM gives it: blocks are written when vLLM waits for that, not when a layer is through, and have
to be as they were then; each rank says later than the one before that it has sent or received; a load that finds no
file says so.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transfer_runs import Call
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput


class Blocks(NamedTuple):
    """Of a request's prompt, named ``key``, blocks by their index, and where in the KV cache they are."""

    request: str
    key: str
    at: dict[int, int]


@dataclass
class Batch(KVConnectorMetadata):
    """What is to be saved of a batch's tokens, and loaded before; of what is loaded ``later``, nothing is run yet.
    Requests in ``sent`` are whole, and their blocks are held until each rank says that it has sent them."""

    number: int
    saved: list[Blocks] = field(default_factory=list)
    loaded: list[Blocks] = field(default_factory=list)
    later: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)


class FolderConnector(KVConnectorBase_V1):
    """Prompts are handed over in ``folder`` of the extra config. A request's ``kv_transfer_params`` may say
    ``{"fresh": True}``: compute it, or ``{"later": True}``: load it before it is scheduled, not with it."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._folder = Path(self._kv_transfer_config.get_from_extra_config("folder", ""))
        self._size = vllm_config.cache_config.block_size
        if role == KVConnectorRole.SCHEDULER:
            self._batches = 0
            self._prompts: dict[str, tuple[str, int]] = {}  # of each request that is known: its key and prompt tokens
            self._at: dict[str, list[int]] = {}
            self._to_load: dict[str, Blocks] = {}
            self._later: set[str] = set()
            self._sent: set[str] = set()
            self._to_send: dict[str, str] = {}  # of each its key
            return
        self.calls: list[Call] = []
        self._rank = get_pp_group().rank_in_group
        self._caches: dict[str, Tensor] = {}
        self._saving: dict[int, list[tuple[Path, Tensor, Tensor]]] = defaultdict(list)
        self._saved: dict[str, list[Path]] = defaultdict(list)
        self._waits: dict[str, tuple[bool, int]] = {}  # of a request that is sent, or else received: lives left
        self._failed: set[int] = set()

    # on the scheduler's side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params or {}
        tokens = (request.num_prompt_tokens - 1) // self._size * self._size - num_computed_tokens
        if not self._kv_transfer_config.is_kv_consumer or params.get("fresh") or tokens <= 0:
            return 0, False
        if not (self._folder / f"{key_of(request.prompt_token_ids)}.whole").exists():
            return 0, False
        return tokens, bool(params.get("later"))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            ids, key = blocks.get_block_ids()[0], key_of(request.prompt_token_ids)
            tokens = (request.num_prompt_tokens - 1) // self._size * self._size
            first = (tokens - num_external_tokens) // self._size
            at = {block: ids[block] for block in range(first, tokens // self._size)}
            self._to_load[request.request_id] = Blocks(request.request_id, key, at)
            if (request.kv_transfer_params or {}).get("later"):
                self._later.add(request.request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Batch:
        batch = Batch(self._batches, loaded=list(self._to_load.values()), later=self._later, sent=self._sent)
        self._batches += 1
        self._to_load, self._later, self._sent = {}, set(), set()
        if self._kv_transfer_config.is_kv_producer:
            begins = {}
            for new in scheduler_output.scheduled_new_reqs:
                self._prompts[new.req_id] = key_of(new.prompt_token_ids or ()), len(new.prompt_token_ids or ())
                self._at[new.req_id] = list(new.block_ids[0])
                begins[new.req_id] = new.num_computed_tokens
            known = scheduler_output.scheduled_cached_reqs
            for request, ids, begin in zip(known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True):
                if request in known.resumed_req_ids:
                    self._at[request] = []
                self._at[request] += ids[0] if ids else ()
                begins[request] = begin
            for request, tokens in scheduler_output.num_scheduled_tokens.items():
                key, prompt = self._prompts[request]
                end = min(begins[request] + tokens, prompt) // self._size
                at = {block: self._at[request][block] for block in range(begins[request] // self._size, end)}
                batch.saved.append(Blocks(request, key, at))
        return batch

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, None]:
        if request.request_id not in self._prompts:
            return False, None
        key, _ = self._prompts.pop(request.request_id)
        del self._at[request.request_id]
        if not request.num_output_tokens:  # it was aborted
            return False, None
        self._to_send[request.request_id] = key
        self._sent.add(request.request_id)
        return True, None

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for request in connector_output.finished_sending or ():
            (self._folder / f"{self._to_send.pop(request)}.whole").touch()

    def scheduler_held(self) -> list[Any]:
        return [
            held for held in (self._prompts, self._at, self._to_load, self._later, self._sent, self._to_send) if held
        ]

    # on the workers' side

    def _number(self) -> int:
        batch = self._get_connector_metadata()
        assert isinstance(batch, Batch)
        return batch.number

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        self.calls.append(("register", -1, sorted(kv_caches)))
        self._caches = dict(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Batch)
        self.calls.append(("preempt", kv_connector_metadata.number, None))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        batch = self._get_connector_metadata()
        assert isinstance(batch, Batch)
        self.calls.append(("load", batch.number, None))
        layers = forward_context.no_compile_layers
        if forward_context.attn_metadata is not None:
            assert forward_context.attn_metadata.keys() == self._caches.keys()
        for request, key, at in batch.loaded:
            for name, cache in self._caches.items():
                assert layers[name].kv_cache.data_ptr() == cache.data_ptr()
                for index, block in at.items():
                    try:
                        cache[block] = torch.load(self._folder / key / f"{name}-{index}")
                    except FileNotFoundError:
                        self._failed.add(block)
            if request in batch.later:
                self._waits[request] = False, self._rank + 1

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.calls.append(("layer", self._number(), layer_name))

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        batch = self._get_connector_metadata()
        assert isinstance(batch, Batch)
        for request, key, at in batch.saved:
            for index, block in at.items():
                path = self._folder / key / f"{layer_name}-{index}"
                self._saving[batch.number].append((path, kv_layer[block], kv_layer[block].clone()))
                self._saved[request].append(path)

    def wait_for_save(self) -> None:
        self.calls.append(("wait", self._number(), None))
        for path, block, before in self._saving.pop(self._number(), ()):
            assert torch.equal(block, before), "a block was overwritten before it was saved"
            path.parent.mkdir(exist_ok=True)
            torch.save(before, path)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self.calls.append(("finished", self._number(), sorted(finished_req_ids)))
        batch = self._get_connector_metadata()
        assert isinstance(batch, Batch) and batch.sent <= finished_req_ids
        self._waits |= dict.fromkeys(batch.sent, (True, self._rank + 1))
        for request in finished_req_ids - batch.sent:
            self._saved.pop(request, None)
        self._waits = {request: (sent, lives - 1) for request, (sent, lives) in self._waits.items()}
        done = [(request, sent) for request, (sent, lives) in self._waits.items() if not lives]
        for request, _ in done:
            del self._waits[request]
            self._saved.pop(request, None)
        return {request for request, sent in done if sent}, {request for request, sent in done if not sent}

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def clear_connector_metadata(self) -> None:
        self.calls.append(("clear", self._number(), None))
        super().clear_connector_metadata()

    def held(self) -> list[Any]:
        return [held for held in (self._saving, self._saved, self._waits, self._failed) if held]


def key_of(prompt: Sequence[int]) -> str:
    return hashlib.sha256(repr(list(prompt)).encode()).hexdigest()


def of_worker(worker: Any) -> tuple[list[Call], list[Any]]:
    """What was asked of the worker's connector, and what it still holds."""
    connector = get_kv_transfer_group()
    assert isinstance(connector, FolderConnector)
    return connector.calls, connector.held()
