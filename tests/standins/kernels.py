"""Every operation of torch, as a kernel on the compute stream of a pretended device."""

from __future__ import annotations

from typing import Any

import torch
from hccl_over_gloo import key
from machine import Machine
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Kernels(TorchDispatchMode):
    """Inside, operations on CPU tensors are noted as kernels: what they read, what they write."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.set_, torch.ops.aten.resize_):
            return result  # they change what a tensor is, not what is in its memory
        reads, writes = set(), set()
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in func._schema.arguments:
            alias = argument.alias_info
            if alias is None:
                reads |= _memory(given.get(argument.name))
            elif alias.is_write:
                writes |= _memory(given.get(argument.name))
        if not any(argument.alias_info is not None for argument in func._schema.arguments):
            writes |= _memory(result) - reads
        if reads or writes:
            self.machine.compute.launch(str(func), reads, writes)
        return result


def _memory(values: Any) -> set[int]:
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return {key(tensor) for tensor in tensors if tensor.device.type == "cpu" and tensor.numel()}
