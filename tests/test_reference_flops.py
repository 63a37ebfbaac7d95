"""The operations that a model's config says it takes are those that torch counts in the reference model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from checkpoints import CONFIGS
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from runtime.reference import attention
from runtime.reference.attention import cache_rows
from runtime.reference.batch import Batch, Span
from runtime.reference.cache import KvCache
from runtime.reference.config import ModelConfig
from runtime.reference.config_json import parse_config
from runtime.reference.decoder import Decoder
from runtime.reference.parallel import ALONE
from runtime.reference.weights import Loader, SeededWeights
from vppc.models import config as configs
from vppc.models.flops import model_flops

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small take longer to share out than to compute
    yield
    torch.set_num_threads(threads)


def query_by_query(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """What :func:`runtime.reference.attend.attend` computes, in products of what sees each other only.

    Its fused kernels are no operations that torch counts, or ones that it counts as if every query saw every key.
    """
    group = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    rows = []
    for row, query in enumerate(queries):
        seen = len(keys) - len(queries) + row + 1
        scores = query[:, None] @ keys[:seen].permute(1, 2, 0)
        rows.append(((scale * scores).softmax(-1) @ values[:seen].transpose(0, 1))[:, 0])
    return torch.stack(rows)


def chunk(config: ModelConfig, decoder: Decoder, cache: KvCache, start: int, end: int) -> Tensor:
    """The residual stream of tokens ``start`` to ``end`` of a prompt, after all layers."""
    span = Span(0, start, end, slice(0, end - start))
    rope = config.rope.tables(CPU, torch.float32)(torch.arange(start, end))
    assert decoder.embedding is not None
    hidden = decoder.embedding(torch.arange(start, end) % config.vocabulary)
    return decoder.run(range(config.layers), hidden, Batch(end - start, None, (span,), rope, ()), cache)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("tokens", "prefix"), [(7, 0), (1, 20), (9, 20)])
def test_a_chunk_behind_a_prefix(name: str, tokens: int, prefix: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(CONFIGS[name])
    loader = Loader(SeededWeights(0), ALONE, torch.float32, CPU)
    decoder = Decoder.load(config, range(config.layers), loader, embedding=True, head=False)
    with torch.inference_mode():
        cache = KvCache(cache_rows(config, ALONE), [prefix + tokens], dtype=torch.float32, device=CPU)
        if prefix:
            chunk(config, decoder, cache, 0, prefix)
        expected = chunk(config, decoder, cache, prefix, prefix + tokens)
        monkeypatch.setattr(attention, "attend", query_by_query)
        with FlopCounterMode(display=False) as counter:
            found = chunk(config, decoder, cache, prefix, prefix + tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert counter.get_total_flops() == model_flops(configs.parse_config(CONFIGS[name], name), tokens, prefix)
