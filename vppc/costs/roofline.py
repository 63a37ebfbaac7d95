"""A cost model by roofline: operations, bytes and messages of a layer over what a device can do.

For the devices of one pipeline rank (``tp`` ways, experts ``ep`` ways), a layer's constants are

=====================  ============================================================================================
fixed                  its weights, once from memory
per_token              2 x active parameters at the matrix rate of the weight dtype; activations through memory
per_pair               the attention of a (query, key) pair, in bf16
indexer_per_pair       the score of a pair, in fp8 where the device has it, and 12 bytes for the score (written
                       once, read twice); not divided by ``tp``
per_prefix_token       the prefix's cache, once from memory; MLA: its keys and values, rebuilt and written, once a chunk
collective_fixed       a latency for each collective
collective_per_token   an all-reduce behind attention and one behind the feed-forward network (2 (tp - 1) / tp of a
                       hidden state on every link); with ``ep`` > 1 the second is instead one all-to-all to the
                       experts and one back, of each TP rank's share of the tokens
=====================  ============================================================================================

*The sum of weights and multiplications, not the greater*: a roofline's corner is not affine in the tokens, the
cost model is. The sum is never under it and at most twice it, there where a chunk takes as long to multiply as
the weights to read; for the chunks of a long prompt it is close to the greater.

Activations through memory are a count of the passes of unfused norms and of the copies that sort tokens by
expert: 8 hidden states a token on every device, and 4 for each expert that a token visits there. (With ``ep`` 1
that is all of them: every device has a part of every expert. This is where expert parallelism saves most.)
No communication is hidden behind compute. Experts are visited equally.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vppc.costs.devices import MULTIPLIED, Device
from vppc.costs.model import CostModel, LayerCost, Linear
from vppc.errors import InputError
from vppc.models.flops import indexer_flops, kv_bytes, pair_flops, rebuild_flops, topk
from vppc.models.payload import payload_bytes, widest_payload
from vppc.models.spec import Experts, Latent, LayerKind, ModelSpec
from vppc.models.weights import Sharding, Weight, dtype_bytes, head_weights, layer_weights, weight_bytes
from vppc.sums import plain_sum

_HIDDEN_PASSES = 8
_EXPERT_PASSES = 4
_SCORE_BYTES = 12
LEAST = 1e-6
"""The least efficiency that means anything; from a still smaller one would come costs beyond all numbers."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The part of each peak that is reached, from :data:`LEAST` up to 1.

    These are priors, round numbers of the size that such kernels reach; ``vppc calibrate`` replaces them by
    measurements. ``matmul`` is for projections and feed-forward networks, ``attention`` for attention and indexer,
    ``memory`` for the memory's bandwidth and ``link`` for messages.
    """

    matmul: float = 0.5
    attention: float = 0.5
    memory: float = 0.7
    link: float = 0.7

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not LEAST <= value <= 1:
                raise InputError(
                    f"an efficiency of {value} is not possible",
                    place=f"--efficiency {field.name}",
                    remedy=f"from {LEAST:g} up to 1",
                )


PRIORS = Efficiency()


@dataclass(frozen=True, slots=True)
class _Rates:
    """What a device reaches: operations and bytes a second."""

    matmul: float
    attention: float
    indexer: float
    memory: float
    link: float


def roofline_cost(
    spec: ModelSpec,
    device: Device,
    *,
    tp: int = 1,
    ep: int = 1,
    weight_dtype: str | None = None,
    efficiency: Efficiency = PRIORS,
    network: bool = False,
) -> CostModel:
    """The costs of a model on pipeline ranks of ``tp`` devices each, in seconds.

    ``weight_dtype`` is the config's unless given. Transfers carry the widest payload of any cut, over the devices'
    links or, when that is what joins the pipeline ranks, the ``network``. Raises InputError when the model cannot be
    shared out so, or the device does not multiply in the weight dtype.
    """
    sharding = Sharding(tp, ep)
    sharding.check(spec)
    dtype = weight_dtype or spec.weight_dtype
    dtype_bytes(dtype)
    rates = _rates(device, MULTIPLIED[dtype], efficiency)
    pipe = (device.network if network else device.link) * efficiency.link
    return CostModel(
        layers=tuple(_layer(spec, kind, device, sharding, dtype, rates) for kind in spec.kinds),
        embed=_embedding(spec, device, tp, rates),
        head=_head(spec, sharding, dtype, device, rates),
        transfer=Linear(device.transfer_latency, payload_bytes(widest_payload(spec, tp=tp), tp) / pipe),
        launch=device.launch,
        name=f"{spec.name}-{device.name}-tp{tp}" + (f"-ep{ep}" if ep > 1 else "") + f"-{dtype}" + "-network" * network,
    )


def _rates(device: Device, multiplied: str, efficiency: Efficiency) -> _Rates:
    indexer = device.flops.get("fp8", device.rate("bf16"))
    return _Rates(
        matmul=device.rate(multiplied) * efficiency.matmul,
        attention=device.rate("bf16") * efficiency.attention,
        indexer=indexer * efficiency.attention,
        memory=device.bandwidth * efficiency.memory,
        link=device.link * efficiency.link,
    )


def _layer(
    spec: ModelSpec, kind: LayerKind, device: Device, sharding: Sharding, dtype: str, rates: _Rates
) -> LayerCost:
    weights = layer_weights(spec, kind)
    talks, talk_bytes = _collectives(spec, kind, sharding)
    indexer = indexer_flops(spec, kind)
    return LayerCost(
        count=kind.count,
        fixed=weight_bytes(spec, weights, sharding, dtype) / rates.memory,
        per_token=_matrix_flops(spec, weights, sharding) / rates.matmul
        + _activation_bytes(spec, kind, sharding) / rates.memory,
        per_pair=_pair_flops(spec, kind, device, sharding.tp) / rates.attention,
        per_prefix_token=_prefix_seconds(spec, kind, sharding, rates),
        indexer_per_pair=indexer / rates.indexer + _SCORE_BYTES / rates.memory if indexer else 0.0,
        topk=topk(spec, kind),
        collective_fixed=talks * device.collective_latency,
        collective_per_token=talk_bytes / rates.link,
    )


def _matrix_flops(spec: ModelSpec, weights: list[Weight], sharding: Sharding) -> float:
    """Operations a token on one device. The tokens of ep / tp replicas meet at the experts, so that a device
    has 1 / tp of one replica's expert work, however many replicas there are."""
    return plain_sum(
        2 * weight.active / (sharding.tp if weight.split == "experts" else sharding.ways(weight.split, spec))
        for weight in weights
    )


def _activation_bytes(spec: ModelSpec, kind: LayerKind, sharding: Sharding) -> float:
    return 2 * spec.hidden * (_HIDDEN_PASSES + _EXPERT_PASSES * sharding.visits(kind.feed_forward))


def _pair_flops(spec: ModelSpec, kind: LayerKind, device: Device, tp: int) -> float:
    """Operations of a pair on one device; a sparse kernel's on idle heads too."""
    heads = spec.attention.heads / tp
    worked = max(heads, device.sparse_heads) if topk(spec, kind) else heads
    return pair_flops(spec, kind) / spec.attention.heads * worked


def _prefix_seconds(spec: ModelSpec, kind: LayerKind, sharding: Sharding, rates: _Rates) -> float:
    moved: float = kv_bytes(spec, kind, sharding)
    if isinstance(spec.attention, Latent) and not topk(spec, kind):
        latent = spec.attention
        moved += 2 * latent.heads / sharding.tp * (latent.qk_dim + latent.v_dim)
    return moved / rates.memory + rebuild_flops(spec, kind) / sharding.tp / rates.attention


def _collectives(spec: ModelSpec, kind: LayerKind, sharding: Sharding) -> tuple[int, float]:
    """How many collectives a layer has, and the bytes a token that they put on a device's link."""
    tp, ep = sharding.tp, sharding.ep
    reduced = 2 * (tp - 1) / tp * 2 * spec.hidden
    reductions = int(tp > 1)
    if isinstance(kind.feed_forward, Experts) and ep > 1:
        sent = kind.feed_forward.per_token * 2 * spec.hidden * (ep - 1) / ep / tp
        return reductions + 2, reduced + 2 * sent
    return 2 * reductions, 2 * reduced


def _embedding(spec: ModelSpec, device: Device, tp: int, rates: _Rates) -> Linear:
    hidden = 2 * spec.hidden
    if tp == 1:
        return Linear(0.0, 2 * hidden / rates.memory)
    return Linear(device.collective_latency, 2 * hidden / rates.memory + 2 * (tp - 1) / tp * hidden / rates.link)


def _head(spec: ModelSpec, sharding: Sharding, dtype: str, device: Device, rates: _Rates) -> Linear:
    weights = head_weights(spec)
    plain = device.rate("fp32" if dtype == "fp32" else "bf16") * rates.matmul / device.rate(MULTIPLIED[dtype])
    gather = device.collective_latency if sharding.tp > 1 else 0.0
    return Linear(
        weight_bytes(spec, weights, sharding, dtype) / rates.memory + gather,
        _matrix_flops(spec, weights, sharding) / plain,
    )
