"""What the interpreter asks of a runner: the model, behind four calls.

A runner belongs to one process and holds the layers of that process's stages only. The interpreter owns the
buffers (tensors that the payload describes, allocated once) and says which to read and write; the runner owns
weights and KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import torch

    from vppc.ir.schedule import Part


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that crosses a cut: its name, its row shape (without the token dimension) and its dtype."""

    name: str
    row: tuple[int, ...]
    dtype: torch.dtype


Buffer: TypeAlias = "tuple[torch.Tensor, ...]"
"""One activation: a tensor for every TensorSpec, [rows, *row], with at least as many rows as the chunk has tokens."""


class Runner(Protocol):
    """Runs stages of a model on chunks."""

    @property
    def payload(self) -> tuple[TensorSpec, ...]:
        """The tensors of a buffer, in the order in which they are sent."""
        ...

    def prepare(self, chunk: int, skip: frozenset[int]) -> Any:
        """The chunk's own state (positions, rotary tables, cache slots, ...), made once and then frozen.

        Every stage of the chunk gets this object back, also when later chunks have been prepared in between.
        ``skip`` are the indices of cancelled requests, whose parts are not computed.
        """
        ...

    def forward(self, stage: int, prepared: Any, inputs: Buffer | None, outputs: Buffer | None) -> None:
        """Run ``stage``; read ``inputs`` (None at stage 0: the tokens), write the chunk's rows of ``outputs``."""
        ...

    def sample(self, prepared: Any, inputs: Buffer) -> Sequence[tuple[int, int]]:
        """(request index, token) of every request whose prompt ends, or that decodes, in the chunk."""
        ...

    def release(self, request: int) -> None:
        """Forget a request's KV cache; called once, after its last part at this rank."""
        ...


@runtime_checkable
class PrefixRunner(Runner, Protocol):
    """A runner that computes cached prefixes before the clock starts.

    A piece of a prefix goes through all stages in order, as a chunk does, with :meth:`prepare_prefix` in place of
    :meth:`prepare`; the last stage writes nothing.
    """

    def prepare_prefix(self, part: Part) -> Any:
        """What the stages need of a piece of a cached prefix."""
        ...


@runtime_checkable
class BoundedRunner(Runner, Protocol):
    """A runner for prompts of a certain length at most, which a server must not let past: it has to say so."""

    @property
    def longest(self) -> int:
        """Tokens of a prompt at most."""
        ...
