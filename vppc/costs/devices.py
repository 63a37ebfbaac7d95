"""Devices: what their makers say they can do, and what it costs to use them at all.

Peaks (``flops``, ``bandwidth``, ``link``, ``network``) are published figures, dense, one direction. ``memory`` is what
the driver reports of the whole device, in MiB of 2**20 bytes: makers' "GB" are powers of ten, of two, or neither.

=======  ==========================================================================================================
910c     One die of the dual-die package. Zuo et al. 2025 (arXiv:2506.12708), table 1 and section 3.3: 376 TFLOP/s
         in bf16 and twice that in int8, 1.6 TB/s, "64 GB" (65,536 MiB in npu-smi); 196 GB/s to the UB plane
         of a supernode of 768 dies, 25 GB/s RDMA. No fp8.
910b     Atlas 800T A2 white paper: 313 TFLOP/s in fp16 (a 376 TFLOP/s bin exists), "64 GB" (65,536 MiB) at 1.6 TB/s;
         HCCS 392 GB/s, both directions together, among eight; 200 Gbit/s RoCE. No fp8.
h100     SXM5 data sheet: 989 TFLOP/s in bf16, 1979 in fp8 and int8, 67 in fp32; 3.35 TB/s, "80 GB" (81,559 MiB in
         nvidia-smi); NVLink 900 GB/s both directions together, among eight; 400 Gbit/s network.
h200     The same with "141 GB" (143,771 MiB) at 4.8 TB/s.
b200     HGX B200 data sheet, one of eight: 2.25 PFLOP/s in bf16, 4.5 in fp8 and int8, 75 TFLOP/s in fp32; 8 TB/s,
         "180 GB" (183,359 MiB); NVLink 1.8 TB/s both directions together; 400 Gbit/s network.
cpu      A server socket of the AVX-512 generation, 32 cores at 2 GHz with two 512-bit FMA units: 4.1 TFLOP/s in
         fp32, no faster in bf16, four times that in int8; eight channels of DDR4-3200; memory as is usual;
         eight sockets a server at most.
=======  ==========================================================================================================

The rest are priors, to be replaced by measurements (a calibrated cost file): seconds that a transfer, a
collective or a step of the host takes however small it is, and bytes that are taken before a model is loaded.
``transfer_latency`` and ``link`` of H100 agree with measured sends over NVLink (8 us; 358 GB/s, which is 80%);
0.5 ms on Ascend is HCCL's, issued from Python. HCCL keeps 2 x 200 MB for a communicator (``HCCL_BUFFSIZE``) and
2 x 20 MB for a point-to-point one (``P2P_HCCL_BUFFSIZE``), NCCL about 390 MB and some tens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from vppc.errors import InputError

GB, TERA, GIB, MIB = 1e9, 1e12, 2**30, 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Rates are a second: ``flops`` by the dtype that is multiplied, ``bandwidth`` of its memory,
    ``link`` to its neighbours in the node and ``network`` to other nodes (one direction), in bytes. ``node`` counts the
    devices that such links join.

    ``memory``, what processes can have of it, is in bytes, and so are what a ``communicator``, a point-to-point
    ``channel`` and the runtime itself (``reserve``) take. ``transfer_latency``, ``collective_latency`` and ``launch``
    (of a forward, by the host) are seconds. Sparse attention kernels work on at least ``sparse_heads`` heads, used or
    not.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: int
    link: float
    network: float
    node: int
    transfer_latency: float
    collective_latency: float
    launch: float
    communicator: int
    channel: int
    reserve: int
    sparse_heads: int

    def rate(self, dtype: str) -> float:
        """Peak operations a second on matrices of a dtype. Raises InputError when the device has none."""
        if dtype not in self.flops:
            have = [name for name, multiplied in MULTIPLIED.items() if multiplied in self.flops]
            raise InputError(
                f"{self.name} does not multiply in {dtype}", place="--weight-dtype", remedy=f"one of {', '.join(have)}"
            )
        return self.flops[dtype]


MULTIPLIED = {"fp32": "fp32", "bf16": "bf16", "fp8": "fp8", "w8a8": "int8"}
"""The dtype in which a matrix is multiplied, by its weight dtype."""


_ASCEND_MEMORY = (65_536 - 3_416) * MIB
"""What is left on a die that no process uses: npu-smi lists 2,882 to 3,416 of 65,536 MiB as used on idle dies of nodes
with 910C and 910B (vllm-project/vllm-ascend, issues 1903, 2035, 2082, 2534, 4989 and 6245), and torch_npu says that a
process has 60.96 to 61.27 GiB (issue 1127 there; sgl-project/sglang, issue 29838)."""


def _ascend(name: str, bf16: float, network: float, node: int) -> Device:
    return Device(
        name=name,
        flops={"bf16": bf16, "int8": 2 * bf16},
        bandwidth=1.6 * TERA,
        memory=_ASCEND_MEMORY,
        link=196 * GB,
        network=network,
        node=node,
        transfer_latency=500e-6,
        collective_latency=100e-6,
        launch=1e-3,
        communicator=2 * 200 * MIB,
        channel=2 * 20 * MIB,
        reserve=GIB,
        sparse_heads=16,
    )


def _nvidia(name: str, bf16: float, fp32: float, bandwidth: float, memory: int, link: float, network: float) -> Device:
    return Device(
        name=name,
        flops={"fp32": fp32, "bf16": bf16, "fp8": 2 * bf16, "int8": 2 * bf16},
        bandwidth=bandwidth,
        memory=memory,
        link=link,
        network=network,
        node=8,
        transfer_latency=10e-6,
        collective_latency=20e-6,
        launch=0.5e-3,
        communicator=392 * MIB,
        channel=64 * MIB,
        reserve=GIB,
        sparse_heads=64,
    )


_CPU = Device(
    name="cpu",
    flops={"fp32": 4.1 * TERA, "bf16": 4.1 * TERA, "int8": 16.4 * TERA},
    bandwidth=204.8 * GB,
    memory=512 * GIB,
    link=20 * GB,
    network=3.1 * GB,
    node=8,
    transfer_latency=100e-6,
    collective_latency=100e-6,
    launch=0.2e-3,
    communicator=0,
    channel=0,
    reserve=8 * GIB,
    sparse_heads=1,
)

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            _ascend("910c", 376 * TERA, 25 * GB, 768),
            _ascend("910b", 313 * TERA, 25 * GB, 8),
            _nvidia("h100", 989.4 * TERA, 67 * TERA, 3.35 * TERA, 81_559 * MIB, 450 * GB, 50 * GB),
            _nvidia("h200", 989.4 * TERA, 67 * TERA, 4.8 * TERA, 143_771 * MIB, 450 * GB, 50 * GB),
            _nvidia("b200", 2250 * TERA, 75 * TERA, 8 * TERA, 183_359 * MIB, 900 * GB, 50 * GB),
            _CPU,
        )
    }
)
"""The devices by name."""


def find_device(name: str) -> Device:
    """A device by name, in any case. Raises InputError for one that is not known."""
    device = DEVICES.get(name.lower())
    if device is None:
        close = get_close_matches(name.lower(), DEVICES, n=1)
        known = f"the devices are {', '.join(DEVICES)}"
        raise InputError(
            f"unknown device {name!r}", place="--device", remedy=f"did you mean {close[0]}? {known}" if close else known
        )
    return device
