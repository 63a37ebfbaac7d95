"""vllm_ascend.distributed.kv_transfer.utils.mooncake_transfer_engine: a process's memory that others may read."""

from __future__ import annotations


class GlobalTE:
    """As the real one, it takes what is registered first, and then nothing."""

    def __init__(self) -> None:
        self.is_register_buffer = False
        self.regions: set[int] = set()

    def register_buffer(self, ptrs: list[int], sizes: list[int]) -> None:
        if not self.is_register_buffer:
            self.regions.update(ptrs)
            self.is_register_buffer = True


global_te = GlobalTE()
