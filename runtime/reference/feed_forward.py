"""Feed-forward layers: dense (SwiGLU), and mixtures of experts with the two ways to route to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.reference.config import Mixture, ModelConfig, SigmoidGate, SoftmaxGate
from runtime.reference.weights import ALL, Loader


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(silu(gate x) * up x); ``gate`` and ``up`` are split by rows, ``down`` by columns."""

    gate: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def load(cls, name: str, hidden: int, intermediate: int, loader: Loader, *, split: bool = True) -> Mlp:
        """The process's share, or all of it when not ``split``."""
        share = loader.tp.share(intermediate, "feed-forward columns") if split else ALL
        return cls(
            loader.matrix(f"{name}.gate_proj", intermediate, hidden, row=share),
            loader.matrix(f"{name}.up_proj", intermediate, hidden, row=share),
            loader.matrix(f"{name}.down_proj", hidden, intermediate, column=share),
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """[n, hidden] from [n, hidden]; a part of the sum when split."""
        return F.linear(F.silu(F.linear(hidden, self.gate)) * F.linear(hidden, self.up), self.down)


@dataclass(frozen=True, slots=True)
class SoftmaxRouter:
    """Qwen3-MoE's router; ``matrix`` [experts, hidden]."""

    gate: SoftmaxGate
    matrix: Tensor

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Experts [n, top_k] of [n, hidden], and their weights."""
        scores = F.linear(hidden, self.matrix).softmax(-1, dtype=torch.float32)
        weights, chosen = scores.topk(self.gate.top_k)
        if self.gate.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, weights.to(hidden.dtype)


@dataclass(frozen=True, slots=True)
class SigmoidRouter:
    """DeepSeek-V3's router, in float32; ``matrix`` [experts, hidden], ``bias`` [experts]."""

    gate: SigmoidGate
    matrix: Tensor
    bias: Tensor

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Experts [n, top_k] of [n, hidden], and their weights."""
        gate = self.gate
        scores = F.linear(hidden.float(), self.matrix.float()).sigmoid()
        chosen = self._allowed(scores + self.bias).topk(gate.top_k).indices
        weights = scores.gather(1, chosen)
        if gate.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * gate.scale

    def _allowed(self, scores: Tensor) -> Tensor:
        """The scores, minus infinity outside the best groups of each token."""
        gate = self.gate
        grouped = scores.view(len(scores), gate.groups, -1)
        best = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1).topk(gate.top_groups).indices
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
        return grouped.masked_fill(outside[..., None], -torch.inf).flatten(1)


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A router, the experts ``first``, ``first`` + 1, ... that this process holds, and its share of the shared ones."""

    router: SoftmaxRouter | SigmoidRouter
    first: int
    experts: tuple[Mlp, ...]
    shared: Mlp | None

    @classmethod
    def load(cls, name: str, config: ModelConfig, mixture: Mixture, loader: Loader) -> MixtureOfExperts:
        """Experts are split over processes whole; every process routes all tokens."""
        hidden, width = config.hidden, mixture.intermediate
        matrix, gate = loader.matrix(f"{name}.gate", mixture.experts, hidden), mixture.gate
        held = loader.tp.share(mixture.experts, "experts")
        shared = mixture.shared * width
        return cls(
            SoftmaxRouter(gate, matrix)
            if isinstance(gate, SoftmaxGate)
            else SigmoidRouter(gate, matrix, loader.bias(f"{name}.gate.e_score_correction_bias", mixture.experts)),
            held.start,
            tuple(
                Mlp.load(f"{name}.experts.{expert}", hidden, width, loader, split=False)
                for expert in range(held.start, held.stop)
            ),
            Mlp.load(f"{name}.shared_experts", hidden, shared, loader) if shared else None,
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """[n, hidden] from [n, hidden]: what this process's experts add."""
        chosen, weights = self.router(hidden)
        out = torch.zeros_like(hidden) if self.shared is None else self.shared(hidden)
        top_k = chosen.shape[1]
        chosen, weights = chosen.flatten(), weights.flatten()
        by_expert = chosen.argsort()
        begin = torch.arange(self.first, self.first + len(self.experts) + 1, device=chosen.device)
        bounds = torch.searchsorted(chosen[by_expert], begin).tolist()
        for expert, start, end in zip(self.experts, bounds, bounds[1:], strict=False):
            if start < end:
                picks = by_expert[start:end]
                tokens = picks // top_k
                out.index_add_(0, tokens, (expert(hidden[tokens]) * weights[picks, None]).to(out.dtype))
        return out
