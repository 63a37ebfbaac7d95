"""Our batches in the scheduler of the older vLLM that vLLM-Ascend 0.23.0 and 0.26.0rc1 stand on.

It does not ask for a prompt's tokens as 0.28.0 does. It asks models with Mamba layers, whose chunks end with blocks;
the question has the same place in its loop, and is answered here for every model.
"""

from __future__ import annotations

from typing import Any

from runtime.vllm_plugin.scheduler import FoldScheduler


class AscendFoldScheduler(FoldScheduler):
    """vLLM-Ascend's scheduler with our batches. Raises ValueError for a model with Mamba layers."""

    need_mamba_block_aligned_split: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.need_mamba_block_aligned_split:
            raise ValueError("chunks of a model with Mamba layers are not ours to cut")
        self.need_mamba_block_aligned_split = True

    def _mamba_block_aligned_split(self, request: Any, num_new_tokens: int, *computed: int) -> int:
        """vLLM asks this for every request, waiting or running, when it is about to say how many tokens it computes."""
        return min(num_new_tokens, self._decided.get(request.request_id, num_new_tokens))

    def _stale(self, request: Any) -> bool:
        """What is on its way of a preempted request is dropped."""
        return False

    def _looks_up(self, request: Any) -> bool:
        return bool(self.kv_cache_manager.enable_caching and not request.skip_reading_prefix_cache)
