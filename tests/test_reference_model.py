"""The reference decoder: equal to transformers' models, however it is cut, split over processes or read from files."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from checkpoints import CONFIGS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from examples.tiny_checkpoint import tensors, write_checkpoint
from runtime.reference.attend import attend, masked, merged
from runtime.reference.attention import cache_rows
from runtime.reference.batch import Batch, Span
from runtime.reference.cache import KvCache
from runtime.reference.checkpoint import Checkpoint
from runtime.reference.config import small_model
from runtime.reference.config_json import parse_config, read_config
from runtime.reference.decoder import Decoder
from runtime.reference.parallel import ALONE, TensorParallel
from runtime.reference.weights import ALL, Loader, SeededWeights, Weights
from vppc.errors import InputError

CPU = torch.device("cpu")
LENGTH = 150
IDS = torch.randint(97, (LENGTH,), generator=torch.Generator().manual_seed(3))
CUTS = [(), (1, 50, 51, 128)]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def logits(
    document: dict[str, Any],
    weights: Weights,
    cuts: Sequence[int] = (),
    *,
    dtype: torch.dtype = torch.float32,
    tp: TensorParallel = ALONE,
) -> Tensor:
    """Logits at every position of IDS, [LENGTH, vocabulary], prefilled in chunks that end at ``cuts``."""
    config = parse_config(document)
    layers = range(config.layers)
    decoder = Decoder.load(config, layers, Loader(weights, tp, dtype, CPU), embedding=True, head=True)
    cache = KvCache(cache_rows(config, tp), [LENGTH], dtype=dtype, device=CPU)
    tables = config.rope.tables(CPU, dtype)
    assert decoder.embedding is not None
    assert decoder.head is not None
    found = []
    for start, end in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        span = Span(0, start, end, slice(0, end - start))
        batch = Batch(end - start, None, (span,), tables(torch.arange(start, end)), ())
        found.append(decoder.head(decoder.run(layers, decoder.embedding(IDS[start:end]), batch, cache)))
    return torch.cat(found)


@pytest.fixture(scope="module")
def theirs() -> Callable[..., Any]:
    with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"):  # read once
        transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def load(folder: Path, dtype: torch.dtype) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        ).eval()

    return load


class TestAgainstTransformers:
    """The oracle: Hugging Face's own models, reading the same folder."""

    @pytest.mark.parametrize("name", CONFIGS)
    def test_logits_are_theirs_at_every_position(self, name: str, theirs: Callable[..., Any], tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, CONFIGS[name], shards=3)
        expected = theirs(folder, torch.float32)(IDS[None]).logits[0]
        for cuts in CUTS:
            found = logits(CONFIGS[name], Checkpoint(str(folder)), cuts)
            torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-5)
            assert torch.equal(found.argmax(-1), expected.argmax(-1))

    @pytest.mark.parametrize("name", ["llama-tied", "qwen3", "qwen3-moe", "deepseek"])
    def test_bf16_is_as_near_to_the_truth_as_theirs(
        self, name: str, theirs: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = write_checkpoint(tmp_path, CONFIGS[name], dtype=torch.bfloat16)
        truth = theirs(folder, torch.float32)(IDS[None]).logits[0]
        expected = theirs(folder, torch.bfloat16)(IDS[None]).logits[0].float()
        for cuts in CUTS:
            found = logits(CONFIGS[name], Checkpoint(str(folder)), cuts, dtype=torch.bfloat16)
            # the median: where a router nearly ties, rounding picks another expert and moves single positions far
            assert (found - truth).abs().median() < 1.2 * (expected - truth).abs().median()

    @pytest.mark.parametrize("name", ["llama-tied", "qwen3-moe", "deepseek"])
    def test_what_they_write_is_read(self, name: str, theirs: Callable[..., Any], tmp_path: Path) -> None:
        model = theirs(write_checkpoint(tmp_path / "ours", CONFIGS[name]), torch.float32)
        model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
        assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
        assert read_config(str(tmp_path / "theirs")) == read_config(str(tmp_path / "ours"))
        checkpoint = Checkpoint(str(tmp_path / "theirs"))
        for tensor, value in tensors(CONFIGS[name]).items():
            assert torch.equal(checkpoint.read(tensor, value.shape, [ALL] * value.dim()), value)


class TestAttend:
    @given(
        new=st.integers(1, 40),
        prefix=st.integers(0, 70),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 3),
        dims=st.tuples(st.sampled_from([4, 8, 24]), st.sampled_from([4, 8, 24])),
    )
    @settings(max_examples=60)
    def test_is_softmax_attention_of_each_query_to_the_keys_up_to_its_own(
        self, new: int, prefix: int, kv_heads: int, group: int, dims: tuple[int, int]
    ) -> None:
        torch.manual_seed(new * 100 + prefix)
        dim, value_dim = dims
        queries = torch.randn(new, kv_heads * group, dim)
        keys, values = torch.randn(prefix + new, kv_heads, dim), torch.randn(prefix + new, kv_heads, value_dim)
        found = attend(queries, keys, values, 0.3)
        for row, query in enumerate(queries):
            seen = prefix + row + 1
            for head, vector in enumerate(query):
                weights = (keys[:seen, head // group] @ vector * 0.3).softmax(0)
                torch.testing.assert_close(
                    found[row, head], weights @ values[:seen, head // group], atol=1e-5, rtol=1e-5
                )

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
    def test_merging_is_masking(self, dtype: torch.dtype, tolerance: float) -> None:
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, heads, tokens, 16).to(dtype) for heads, tokens in ((4, 33), (2, 700), (2, 700)))
        expected = masked(q.double(), k.double(), v.double(), 0.5)
        for way in (merged, masked):
            torch.testing.assert_close(way(q, k, v, 0.5).double(), expected, atol=tolerance, rtol=tolerance)

    def test_large_scores_do_not_overflow_the_merge(self) -> None:
        q, k = torch.full((1, 1, 2, 8), 30.0), torch.full((1, 1, 6, 8), 30.0)
        k[:, :, :3] = -30.0  # the prefix weighs nothing beside the new tokens
        v = torch.arange(6.0)[None, None, :, None].expand(1, 1, 6, 8)
        assert merged(q, k, v, 1.0)[0, 0, :, 0].tolist() == pytest.approx([3.5, 4.0], rel=1e-3)


class TestTensorParallel:
    @staticmethod
    def together(size: int, work: Callable[[TensorParallel], Tensor]) -> list[Tensor]:
        """``work`` in ``size`` threads whose all_reduce meets at a barrier."""
        barrier, shared = threading.Barrier(size, timeout=240), [torch.empty(0)] * size
        results = [torch.empty(0)] * size
        failures: list[BaseException] = []

        def process(rank: int) -> None:
            def all_reduce(tensor: Tensor) -> None:
                shared[rank] = tensor.clone()
                barrier.wait()
                tensor.copy_(torch.stack(shared).sum(0))
                barrier.wait()

            try:
                with torch.inference_mode():
                    results[rank] = work(TensorParallel(rank, size, all_reduce))
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                barrier.abort()

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return results

    @pytest.mark.parametrize(
        ("name", "size"),
        [("llama-tied", 2), ("qwen3", 4), ("qwen3-moe", 2), ("qwen3-moe-plain", 4), ("deepseek", 3)],
    )
    def test_a_group_computes_what_one_process_does(self, name: str, size: int) -> None:
        alone = logits(CONFIGS[name], SeededWeights(), (40, 90))
        for found in self.together(size, lambda tp: logits(CONFIGS[name], SeededWeights(), (40, 90), tp=tp)):
            torch.testing.assert_close(found, alone, atol=3e-5, rtol=1e-5)

    def test_each_process_holds_its_share_only(self) -> None:
        config = parse_config(CONFIGS["deepseek"])

        def held(tp: TensorParallel) -> int:
            weights = _Counting(SeededWeights())
            Decoder.load(config, range(3), Loader(weights, tp, torch.float32, CPU), embedding=True, head=True)
            return sum(weights.numbers.values())

        whole = held(ALONE)
        halves = [held(TensorParallel(rank, 2, lambda tensor: None)) for rank in range(2)]
        repeated = sum(
            value.numel()
            for name, value in tensors(CONFIGS["deepseek"]).items()
            if any(part in name for part in ("norm", "mlp.gate.", "q_a_", "kv_a_"))
        )
        assert sum(halves) == whole + repeated

    @pytest.mark.parametrize(
        ("name", "size", "message"),
        [
            ("qwen3", 3, "4 heads over 2 key-value heads cannot be split over 3 processes"),
            ("deepseek", 5, "4 attention heads cannot be split over 5 processes"),
        ],
    )
    def test_too_many_processes_are_refused(self, name: str, size: int, message: str) -> None:
        with pytest.raises(InputError) as caught:
            logits(CONFIGS[name], SeededWeights(), tp=TensorParallel(0, size, lambda tensor: None))
        assert caught.value.problem == message


@dataclass(frozen=True)
class _Counting:
    source: Weights
    numbers: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, shape: tuple[int, ...], share: Sequence[slice]) -> Tensor:
        tensor = self.source.read(name, shape, share)
        assert name not in self.numbers, f"{name} is read twice"
        self.numbers[name] = tensor.numel()
        return tensor


class TestSeededWeights:
    def test_a_tensor_depends_on_seed_and_name_only(self) -> None:
        weights = SeededWeights(7)
        whole = weights.read("a", (6, 4), (ALL, ALL))
        assert torch.equal(weights.read("a", (6, 4), (slice(2, 5), slice(1, 3))), whole[2:5, 1:3])
        assert torch.equal(SeededWeights(7).read("a", (6, 4), (ALL, ALL)), whole)
        assert not torch.equal(SeededWeights(8).read("a", (6, 4), (ALL, ALL)), whole)
        assert not torch.equal(weights.read("b", (6, 4), (ALL, ALL)), whole)

    def test_the_numbers_are_these(self) -> None:
        """Two machines must make the same model."""
        found = SeededWeights(0).read("model.norm.weight", (3,), (ALL,))
        torch.testing.assert_close(found, torch.tensor(GOLDEN_GAINS))


GOLDEN_GAINS = [1.1040488481521606, 0.994698703289032, 0.8482948541641235]


class TestOwnLayersOnly:
    @pytest.mark.parametrize("name", ["llama", "llama-tied", "deepseek"])
    def test_ranks_share_nothing_but_a_tied_matrix(self, name: str) -> None:
        config = parse_config(CONFIGS[name])
        read = []
        for layers, embedding, head in ((range(1), True, False), (range(1, 3), False, True)):
            weights = _Counting(SeededWeights())
            loader = Loader(weights, ALONE, torch.float32, CPU)
            decoder = Decoder.load(config, layers, loader, embedding=embedding, head=head)
            assert set(decoder.layers) == set(layers)
            read.append(set(weights.numbers))
        assert read[0] & read[1] == ({"model.embed_tokens.weight"} if config.tied else set())
        assert read[0] | read[1] == set(tensors(CONFIGS[name]))


class TestConfig:
    @pytest.mark.parametrize(
        ("name", "changes", "message"),
        [
            ("llama", {"model_type": "gpt2"}, 'model_type: "gpt2" is not supported\n  hint: one of llama, qwen3, '),
            ("llama", {"model_type": None}, "model_type: is missing"),
            ("llama", {"hidden_size": None}, "hidden_size: is missing"),
            ("llama", {"vocab_size": 97.5}, "vocab_size: 97.5 is no integer from 1 up"),
            ("llama", {"vocab_size": True}, "vocab_size: true is no integer from 1 up"),
            ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: 0 is no integer from 1 up"),
            ("llama", {"rms_norm_eps": -1}, "rms_norm_eps: -1 is no positive number"),
            ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps: NaN is no positive number"),
            ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is neither true nor false"),
            ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads, 4"),
            ("llama", {"hidden_size": 36}, "head_dim: is missing, and 36 does not make 4 heads of an even size"),
            ("llama", {"head_dim": 7}, "head_dim: 7 is odd"),
            ("llama", {"hidden_act": "gelu"}, 'hidden_act: "gelu" is not supported\n  hint: "silu", or leave it out'),
            ("llama", {"attention_bias": True}, "attention_bias: true is not supported"),
            ("llama", {"rope_scaling": 4}, "rope_scaling: 4 is not an object"),
            ("llama", {"rope_scaling": {"type": "dynamic"}}, 'rope_scaling.type: "dynamic" is not supported'),
            ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing"),
            ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor: "),
            (
                "llama-tied",
                {"rope_scaling": {**CONFIGS["llama-tied"]["rope_scaling"], "low_freq_factor": 4.0}},
                "rope_scaling.high_freq_factor: 4.0 is not above low_freq_factor, 4.0",
            ),
            ("qwen3", {"use_sliding_window": True}, "use_sliding_window: true is not supported"),
            ("qwen3", {"layer_types": ["sliding_attention"]}, "layer_types: is not supported"),
            ("qwen3-moe", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than the 8 experts"),
            ("qwen3-moe", {"mlp_only_layers": 3}, "mlp_only_layers: 3 is no list of layers"),
            ("deepseek", {"n_group": 3}, "n_group: 3 does not divide the 8 experts"),
            ("deepseek", {"topk_group": 1}, "topk_group: 1 of 4 groups of 2 cannot give 3 experts"),
            ("deepseek", {"moe_layer_freq": 2}, "moe_layer_freq: 2 is not supported"),
            ("deepseek", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: an object is not"),
        ],
    )
    def test_what_it_cannot_compute_is_refused(self, name: str, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as caught:
            parse_config({**CONFIGS[name], **changes}, "config.json")
        assert str(caught.value).startswith(f"config.json: {message}")

    def test_new_and_old_spellings_of_rope_mean_the_same(self) -> None:
        old = {**CONFIGS["deepseek"], "rope_theta": 5000.0}
        new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
        new["rope_parameters"] = {**old["rope_scaling"], "rope_type": "yarn", "rope_theta": 5000.0}
        assert parse_config(new) == parse_config(old)

    def test_a_folder_without_a_config(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"config\.json: cannot be read: No such file"):
            read_config(str(tmp_path))

    def test_the_default_model_has_the_layers_that_are_asked_for(self) -> None:
        assert (small_model(5).layers, small_model(5).hidden, small_model(5).vocabulary) == (5, 256, 2048)


class TestCheckpoint:
    """Every damage ends in one message that names the file and the tensor."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_checkpoint(tmp_path, CONFIGS["llama"])

    @staticmethod
    def failure(folder: Path, name: str = "model.norm.weight", shape: tuple[int, ...] = (32,)) -> str:
        with pytest.raises(InputError) as caught:
            Checkpoint(str(folder)).read(name, shape, [ALL] * len(shape))
        return str(caught.value).replace(str(folder), "DIR")

    @staticmethod
    def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes the header of a file, and leaves the numbers."""
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    def test_shares_are_slices(self, folder: Path) -> None:
        name, whole = "model.layers.1.mlp.down_proj.weight", tensors(CONFIGS["llama"])
        checkpoint = Checkpoint(str(folder))
        for share in ((ALL, ALL), (slice(3, 20), ALL), (ALL, slice(11, 22)), (slice(31, 32), slice(0, 1))):
            assert torch.equal(checkpoint.read(name, (32, 44), share), whole[name][share])

    def test_a_truncated_file(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        size = file.stat().st_size
        os.truncate(file, size - 4)
        assert self.failure(folder) == (
            f"DIR/model.safetensors: model.norm.weight: is cut off: it ends at byte {size}, the file at {size - 4}\n"
            "  hint: fetch the file again"
        )

    @pytest.mark.parametrize("size", [0, 5, 100])
    def test_a_file_cut_in_its_header(self, folder: Path, size: int) -> None:
        os.truncate(folder / "model.safetensors", size)
        assert self.failure(folder).startswith("DIR/model.safetensors: is cut off, or no safetensors file: ")

    def test_a_missing_tensor(self, folder: Path) -> None:
        self.rewrite(folder / "model.safetensors", lambda header: header.pop("model.norm.weight"))
        assert self.failure(folder).startswith("DIR/model.safetensors: model.norm.weight: is not in the file\n  hint: ")

    def test_a_tensor_of_another_shape(self, folder: Path) -> None:
        assert self.failure(folder, shape=(48,)).startswith(
            "DIR/model.safetensors: model.norm.weight: has the shape [32], the config asks for [48]"
        )

    def test_numbers_that_are_none(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-4] + struct.pack("<f", float("nan")))
        assert self.failure(folder).startswith("DIR/model.safetensors: model.norm.weight: holds NaN or infinity")

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("dtype", "F8_E4M3", 'has the dtype "F8_E4M3"\n  hint: one of F64, F32, F16, BF16'),
            ("dtype", ["F32"], "has the dtype a list\n  hint: one of F64, F32, F16, BF16"),
            ("dtype", "BF16", "has 128 bytes for the shape [32] of BF16"),
            ("shape", [-32], "has a damaged header"),
            ("shape", "x", "has a damaged header"),
            ("shape", [2.5], "has a damaged header"),
            ("data_offsets", [0], "has a damaged header"),
            ("data_offsets", None, "has a damaged header"),
        ],
    )
    def test_a_damaged_header(self, folder: Path, key: str, value: Any, message: str) -> None:
        self.rewrite(folder / "model.safetensors", lambda header: header["model.norm.weight"].__setitem__(key, value))
        assert self.failure(folder).startswith(f"DIR/model.safetensors: model.norm.weight: {message}")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\x80\x04pickled", "is cut off, or no safetensors file"),
            (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "is no safetensors file: its header is not UTF-8"),
            (struct.pack("<Q", 2) + b"[]", "is no safetensors file: its header is a list"),
            (struct.pack("<Q", 2) + b"{]", "line 1, column 2: not JSON: "),
        ],
    )
    def test_what_is_no_safetensors_file(self, folder: Path, content: bytes, message: str) -> None:
        (folder / "model.safetensors").write_bytes(content)
        assert self.failure(folder).startswith(f"DIR/model.safetensors: {message}")

    def test_a_folder_without_weights(self, tmp_path: Path) -> None:
        assert self.failure(tmp_path).startswith("DIR: has no safetensors weights\n  hint: a folder with model.safe")

    def test_an_index_that_names_too_little_or_too_much(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, CONFIGS["llama"], shards=2)
        index = folder / "model.safetensors.index.json"
        files = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {**files, "model.norm.weight": "gone.safetensors"}}))
        assert self.failure(folder) == "DIR/gone.safetensors: cannot be read: No such file or directory"
        index.write_text(json.dumps({"weight_map": {**files, "model.norm.weight": "../away.safetensors"}}))
        assert self.failure(folder).startswith(
            'DIR/model.safetensors.index.json: weight_map["model.norm.weight"]: "../away.safetensors" is not the name'
        )
        files.pop("model.norm.weight")
        index.write_text(json.dumps({"weight_map": files}))
        assert self.failure(folder).startswith("DIR/model.safetensors.index.json: names no file for model.norm.weight")
        index.write_text("[]")
        assert self.failure(folder).startswith("DIR/model.safetensors.index.json: is not an index")
