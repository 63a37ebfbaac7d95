"""``python -m examples.tiny_checkpoint FOLDER``: a small Llama of random weights, to try vppc with.

The folder is what a checkpoint from Hugging Face is: ``config.json``, ``model.safetensors`` and a tokenizer, whose
first 256 tokens are the bytes. What the model says means nothing, but the same seed always makes the same one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from runtime.reference.config_json import parse_config
from runtime.reference.decoder import Decoder
from runtime.reference.parallel import ALONE
from runtime.reference.weights import Loader, SeededWeights

# heads as wide as vLLM's attention for CPUs takes them
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


@dataclass(frozen=True)
class _Recorder:
    """Seeded weights that remember what was asked of them: all the tensors of a model, by name."""

    source: SeededWeights
    read_so_far: dict[str, Tensor] = field(default_factory=dict)

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        self.read_so_far[name] = self.source.read(name, shape, share)
        return self.read_so_far[name]


def tensors(document: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """The weights of a model that :class:`SeededWeights` makes, by Hugging Face's names, in float32."""
    config = parse_config(document)
    recorder = _Recorder(SeededWeights(seed))
    loader = Loader(recorder, ALONE, torch.float32, torch.device("cpu"))
    Decoder.load(config, range(config.layers), loader, embedding=True, head=True)
    return recorder.read_so_far


def write_checkpoint(
    folder: Path, document: dict[str, Any], seed: int = 0, *, shards: int = 1, dtype: torch.dtype = torch.float32
) -> Path:
    """A model folder in Hugging Face layout: ``config.json`` and the seeded weights in ``shards`` files."""
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise click.ClickException(
            "safetensors, in whose format checkpoints are, is not installed: pip install 'safetensors>=0.4,<1'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    named = {
        name: tensor if name.endswith("bias") else tensor.to(dtype) for name, tensor in tensors(document, seed).items()
    }
    if shards == 1:
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = sorted(named)[shard::shards]
        save_file({name: named[name] for name in mine}, folder / file, metadata={"format": "pt"})
        files.update(dict.fromkeys(mine, file))
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tokenizer(folder: Path, size: int) -> None:
    """Add a tokenizer of ``size`` tokens, of which the first 256 are the bytes and the last one ends a text."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the other bytes have no character of their own
    others = [byte for byte in range(256) if byte not in kept]
    characters = {byte: chr(byte) for byte in kept} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    vocabulary = {characters.get(token, f"<{token}>"): token for token in range(size)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": size - 1, "content": f"<{size - 1}>", "special": True, **flags}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    made = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": level, "decoder": level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end["content"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--layers", type=click.IntRange(1, 256), default=LLAMA["num_hidden_layers"], show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed is another model.")
def main(folder: Path, layers: int, seed: int) -> None:
    """Write a small Llama of random weights, with a tokenizer, into FOLDER, in the layout of Hugging Face.

    A folder with anything else in it is left alone.
    """
    document = {**LLAMA, "num_hidden_layers": layers}
    config = folder / "config.json"
    if (
        folder.exists()
        and any(folder.iterdir())
        and not (config.exists() and config.read_text() == json.dumps(document))
    ):
        raise click.UsageError(f"{folder} holds something else: name a folder that is new or empty")
    write_checkpoint(folder, document, seed)
    write_tokenizer(folder, LLAMA["vocab_size"])
    click.echo(f"{folder}: a Llama of {layers} layers, float32, and its tokenizer")


if __name__ == "__main__":
    main()
