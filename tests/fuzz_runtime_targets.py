"""Every file that the runtime reads, small and right."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.program import proven
from runtime.reading import segment_of
from runtime.reference.checkpoint import Checkpoint
from runtime.reference.config_json import read_config
from runtime.reference.prompts import read_prompts
from tests.fuzz_targets import CONFIG, DENSE, PLAN, TARGETS, text
from tests.fuzzing import Target
from vppc.errors import VppcError
from vppc.ir.document import schedule_text

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "intermediate_size": 44,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def safetensors(tensors: Mapping[str, Any], data: bytes) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


WEIGHTS = safetensors(
    {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    },
    bytes(32),
)
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}).encode()


def reads(use: Callable[[Path], object]) -> Callable[[Path], bool]:
    def accepted(file: Path) -> bool:
        try:
            use(file)
        except VppcError as error:
            if not str(error):
                raise AssertionError("it says nothing") from None
            return False
        return True

    return accepted


def weights(file: Path) -> None:
    checkpoint = Checkpoint(str(file.parent))
    checkpoint.read("a", (2, 3), (slice(0, 1), slice(None)))
    checkpoint.read("b", (4,), (slice(None),))


RUNTIME_TARGETS: Mapping[str, Target] = {
    "runtime's schedule": Target(
        "plan.json", (text(schedule_text(PLAN)),), reads(lambda file: proven(file.read_bytes(), str(file)))
    ),
    "runtime's segment": Target(
        "more.json", TARGETS["segment"].seeds, reads(lambda file: segment_of(file.read_bytes()))
    ),
    "runtime's config": Target(
        "config.json",
        tuple(json.dumps(each).encode() for each in (LLAMA, CONFIG, DENSE)),
        reads(lambda file: read_config(str(file.parent))),
    ),
    "safetensors": Target("model.safetensors", (WEIGHTS,), reads(weights)),
    "index of safetensors": Target(
        "model.safetensors.index.json", (INDEX,), reads(weights), {"model.safetensors": WEIGHTS}
    ),
    "prompts": Target("prompts.json", (b'{"r0": [1, 2, 3], "r1": [4]}',), reads(lambda file: read_prompts(str(file)))),
}
