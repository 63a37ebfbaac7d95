"""vllm_ascend.worker.model_runner_v1: vLLM's model runner for CPUs, with what NPUModelRunner does around a forward."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.sequence import IntermediateTensors
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from vllm_ascend.ascend_forward_context import (
    get_mc2_mask,
    get_mc2_tokens_capacity,
    set_ascend_forward_context,
    set_mc2_mask,
    set_mc2_tokens_capacity,
)
from vllm_ascend.noted import note
from vllm_ascend.ops.experts import own_experts_only
from vllm_ascend.ops.rotary_embedding import get_cos_and_sin_slice, set_cos_and_sin, update_cos_sin
from vllm_ascend.utils import enable_sp

own_experts_only()


def nothing_without_metadata(layer: Any, given: Any, made: torch.Tensor) -> torch.Tensor:
    """What CPUs' attention makes without metadata is not initialized, and experts crash on it."""
    return torch.zeros_like(made) if get_forward_context().attn_metadata is None else made


class NPUModelRunner(CPUModelRunner):
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        set_cos_and_sin(vllm_config, self.max_num_reqs, self.uniform_decode_query_len, self.dtype, self.device)
        set_mc2_tokens_capacity(vllm_config, self.max_num_reqs, self.uniform_decode_query_len)
        set_mc2_mask(vllm_config, self.device)
        self._profiling = self._dummy = False

    def load_model(self) -> None:
        super().load_model()
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            if isinstance(layer, AttentionLayerBase):
                layer.register_forward_hook(nothing_without_metadata)
        self.model_memory_usage = sum(each.numel() * each.element_size() for each in self.model.parameters())

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        super().initialize_kv_cache(kv_cache_config)
        # attention of NPUs wants decodes first, as this says
        self.reorder_batch_threshold = 1

    def profile_run(self) -> None:
        self._dummy_run(self.max_num_tokens, with_prefill=True, is_profile=True)

    @torch.inference_mode()
    def _dummy_run(
        self, num_tokens: int, with_prefill: bool = False, uniform_decode: bool = False, is_profile: bool = False
    ) -> None:
        """A forward on nobody's tokens, with what the last batch left as its input."""
        self._profiling, self._dummy = is_profile, True
        inputs = None
        if not get_pp_group().is_first_rank:
            inputs = self.sync_and_gather_intermediate_tensors(num_tokens, None, False)
        with set_forward_context(None, self.vllm_config, num_tokens=num_tokens):
            zeros = torch.zeros(num_tokens, dtype=torch.int64)
            self._model_forward(input_ids=zeros, positions=zeros, intermediate_tensors=inputs)
        self._profiling = self._dummy = False

    def sync_and_gather_intermediate_tensors(
        self, num_tokens: int, intermediate_tensors: IntermediateTensors | None, sync_self: bool
    ) -> IntermediateTensors:
        """With FlashComm each process has its part of the rows, of the residual, too."""
        assert self.intermediate_tensors is not None
        tp = self.vllm_config.parallel_config.tensor_parallel_size
        rows = -(-num_tokens // tp) if enable_sp() else num_tokens
        if sync_self:
            assert intermediate_tensors is not None
            for name, tensor in intermediate_tensors.items():
                self.intermediate_tensors[name][:rows].copy_(tensor[:rows])
        return IntermediateTensors({name: each[:rows] for name, each in self.intermediate_tensors.items()})

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        assert positions is not None
        tokens = positions.size(0)
        update_cos_sin(positions)
        with set_ascend_forward_context(
            None, self.vllm_config, num_tokens=tokens, num_actual_tokens=tokens, model_instance=self.model
        ):
            sharded = get_forward_context().flash_comm_v1_enabled
            if sharded and intermediate_tensors is not None:
                whole = {
                    name: get_tp_group().all_gather(each.contiguous(), 0)[:tokens]
                    for name, each in intermediate_tensors.items()
                }
                intermediate_tensors = IntermediateTensors(whole)
            made = super()._model_forward(
                input_ids=input_ids,
                positions=positions,
                intermediate_tensors=intermediate_tensors,
                inputs_embeds=inputs_embeds,
                **model_kwargs,
            )
            if sharded and isinstance(made, IntermediateTensors):
                made = IntermediateTensors({name: self._own_rows(each) for name, each in made.items()})
            handed_on = made.tensors.values() if isinstance(made, IntermediateTensors) else ()
            self._note(positions, {len(each) for each in handed_on})
        return made

    def _own_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        group = get_tp_group()
        rows = -(-len(tensor) // group.world_size)
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, rows * group.world_size - len(tensor)))
        return padded[group.rank_in_group * rows :][:rows].contiguous()

    def _note(self, positions: torch.Tensor, rows: set[int]) -> None:
        """What layers would have found while they ran."""
        context, mask = get_forward_context(), get_mc2_mask()
        comm = context.moe_comm_type
        note(
            stage=get_pp_group().rank_in_group,
            process=torch.distributed.get_rank(),
            profiling=self._profiling,
            dummy=self._dummy,
            tokens=len(positions),
            rows=sorted(rows),
            layer=context.layer_idx,
            comm=None if comm is None else comm.name,
            capacity=get_mc2_tokens_capacity(),
            masked=None if mask is None else int(context.mc2_mask.sum()),
            staged=self.prepare_inputs_event is not None,
            positions_right=bool(torch.equal(get_cos_and_sin_slice(len(positions)), positions)),
        )
