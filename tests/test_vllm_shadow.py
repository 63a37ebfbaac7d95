"""Shadow mode: vLLM is untouched, its batches are journaled, and the journal says what folding would gain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from test_vllm_runner import LAYERS, MODELS, needs_vllm, write_checkpoint
from vllm_runs import engines

from vppc.cli.shadow import command
from vppc.costs.model import pairs
from vppc.errors import InputError
from vppc.profiles.shadow import read_shadow


def header(rank: int = 0, pp: int = 1, layers: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    known = {"format": "vppc.shadow", "version": 1, "model": "m", "model_layers": 8, "chunk_size": 512}
    return {**known, "layers": list(layers), "rank": rank, "pp": pp}


def batch(start: float, parts: list[list[Any]], layers: int) -> dict[str, Any]:
    """A batch that takes exactly 2 us a token and 3 ns a pair in each layer."""
    seconds = sum(2e-6 * tokens + 3e-9 * pairs(tokens, first) for _, first, tokens, _ in parts) * layers
    return {"start": start, "end": start + seconds, "parts": parts}


def write(file: Path, *lines: Mapping[str, Any]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_two_ranks(folder: Path) -> int:
    """Prompts of random lengths in chunks of 512, one after another, and a decode of each; how many there are."""
    random, moment = Random(0), 100.0
    lines: list[list[dict[str, Any]]] = [[], []]
    for request in range(12):
        prompt = random.randint(100, 4000)
        starts = [*range(0, prompt, 512), prompt]
        for start in starts:
            tokens = min(512, prompt - start) or 1
            for rank in (0, 1):
                lines[rank].append(batch(moment, [[f"q{request}", start, tokens, prompt]], 4))
            moment += 0.05
    for rank in (0, 1):
        write(folder / f"rank-{rank}.jsonl", header(rank, 2, (4 * rank, 4 * rank + 4)), *lines[rank])
    return 12


def test_costs_and_requests_come_from_the_journal(tmp_path: Path) -> None:
    requests = write_two_ranks(tmp_path)
    shadow = read_shadow(str(tmp_path))
    assert len(shadow.requests) == requests
    assert shadow.requests[0].arrival == 0.0
    assert all(request.cached_tokens == 0 for request in shadow.requests)
    assert sum(batch.decodes for batch in shadow.ranks[1].batches) == requests
    shown = CliRunner().invoke(command, [str(tmp_path), "--json", "--costs", str(tmp_path / "cost.json")])
    assert shown.exit_code == 0, shown.output
    (layer,) = json.loads((tmp_path / "cost.json").read_text())["layers"]
    assert layer["count"] == 8
    assert layer["per_token"] == pytest.approx(2e-6, rel=1e-3)
    assert layer["per_pair"] == pytest.approx(3e-9, rel=1e-3)
    report = json.loads(shown.output)
    assert [entry["contestant"] for entry in report["entries"]] == ["cpp", "vpp-packed"]
    assert all(entry["outcomes"][0]["requests"] == requests for entry in report["entries"])


def test_what_is_printed(tmp_path: Path) -> None:
    """Two prompts in two batches of half a second and a decode of a quarter; the second rank had begun none."""
    batches = [
        {"start": 1.0, "end": 1.5, "parts": [["a", 0, 128, 300], ["b", 0, 100, 100]]},
        {"start": 2.0, "end": 2.5, "parts": [["a", 128, 172, 300]]},
        {"start": 2.75, "end": 3.0, "parts": [["a", 300, 1, 300]]},
    ]
    write(tmp_path / "rank-0.jsonl", header(0, 2, (0, 4)), *batches)
    write(tmp_path / "rank-1.jsonl", header(1, 2, (4, 8)), batches[0] | {"parts": [["unknown to rank 0", 0, 1, 1]]})
    shown = CliRunner().invoke(command, [str(tmp_path), "--strategy", "cpp"])
    assert shown.exit_code == 0, shown.output
    head, observed, costs, fit, *simulated, note = shown.output.split("\n\n")
    assert head == "m as vLLM ran it: 2 requests, 2 ranks, batches of at most 512 tokens"
    assert observed.splitlines() == [
        "rank  layers  batches  decodes only  prompt tokens  computing  of the time",
        "----  ------  -------  ------------  -------------  ---------  -----------",
        "0       0..4        3             1            400    1.250 s        62.5%",
        "1       4..8        0             0              0        0 s            -",
    ]
    assert costs == "m: costs for 8 layers"
    assert "too few measurements to tell its error" in fit
    assert simulated[0] == "m: 2 requests, at once, 400 tokens to compute; m, 2 ranks"
    assert note.startswith(
        "Prefill only, on the simulator's clock with these costs: decodes, transfers and vLLM's own "
    )


def test_a_batch_that_took_no_time_says_nothing_of_costs(tmp_path: Path) -> None:
    instant = {"start": 0.5, "end": 0.5, "parts": [["a", 0, 5, 5]]}
    write(tmp_path / "rank-0.jsonl", header(), instant, batch(1.0, [["b", 0, 64, 64]], 8))
    assert [forward.tokens for forward in read_shadow(str(tmp_path)).measurements().forwards] == [64]


def test_nobody_can_serve_what_vllm_served(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.jsonl", header(), batch(0.0, [["a", 0, 5, 5]], 8))
    refused = CliRunner().invoke(command, [str(tmp_path), "--pp", "9"])
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception) == (
        "all trials are refused, the first because: 9 stages cannot share 8 layers: each needs at least one\n"
        "  hint: use fewer ranks or fewer stages a rank (vp)"
    )


def test_what_was_found_cached_and_a_line_that_is_cut(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.jsonl", header(), batch(5.0, [["a", 128, 100, 300], ["b", 0, 9, 9]], 8))
    with (tmp_path / "rank-0.jsonl").open("a") as file:
        file.write('{"start": 6.0, "en')
    first, second = read_shadow(str(tmp_path)).requests
    assert (first.prompt_tokens, first.cached_tokens) == (300, 128)
    assert (second.prompt_tokens, second.cached_tokens) == (9, 0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "rank-0.jsonl: has no header"),
        ([header()], "rank-0.jsonl: has no batches of prompts"),
        ([header(), batch(1.0, [["a", 5, 1, 5]], 8)], "rank-0.jsonl: has no batches of prompts"),
        ([{**header(), "version": 2}], "version 2 is newer than this program"),
        ([header(), {"start": 1.0, "end": 2.0}], 'line 2: the key "parts" is missing'),
        ([header(), {"start": 2.0, "end": 1.0, "parts": [["a", 0, 1, 1]]}], "line 2: ends before it starts"),
        ([header(pp=2), batch(0.0, [["a", 0, 1, 1]], 8)], "rank-1.jsonl: "),
    ],
    ids=["empty", "no batches", "decodes only", "newer", "no parts", "backwards", "a rank is missing"],
)
def test_what_is_no_journal(lines: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    write(tmp_path / "rank-0.jsonl", *lines)
    with pytest.raises(InputError) as raised:
        read_shadow(str(tmp_path))
    assert message in str(raised.value)


@needs_vllm
def test_vllm_is_what_it_is_and_its_batches_are_journaled(tmp_path: Path) -> None:
    """The same tokens and logits, bit by bit, with the plugin asked for nothing and in shadow mode; two ranks, too."""
    model = str(write_checkpoint(tmp_path / "llama", MODELS["llama"]))
    random = Random(0)
    prompts = [[random.randrange(300) for _ in range(length)] for length in (200, 30, 150)]
    journal, ranks = tmp_path / "journal", tmp_path / "ranks"
    plain, shadowed, two = engines(
        tmp_path / "run",
        model,
        prompts,
        [
            {"max_num_batched_tokens": 64},
            {"max_num_batched_tokens": 64, "additional_config": shadow_config(journal)},
            {
                "max_num_batched_tokens": 64,
                "additional_config": shadow_config(ranks),
                "pipeline_parallel_size": 2,
                "distributed_executor_backend": "mp",
            },
        ],
        {},
    )
    for one, other in zip(plain, shadowed, strict=True):
        assert one.tokens == other.tokens
        assert torch.equal(one.logits, other.logits)
    assert [made.tokens for made in two] == [made.tokens for made in plain]
    for folder, held in ((journal, [(0, LAYERS)]), (ranks, [(0, 9), (9, LAYERS)])):
        shadow = read_shadow(str(folder))
        assert [rank.layers for rank in shadow.ranks] == held
        assert [request.prompt_tokens for request in shadow.requests] == [200, 30, 150]
        for rank in shadow.ranks:
            reached = [0, 0, 0]
            for each in rank.batches:
                assert each.end > each.start
                for part in each.parts:
                    assert part.start == reached[part.request]
                    reached[part.request] = part.end
            assert reached == [203, 33, 153]  # the last of four tokens is not computed on


def shadow_config(folder: Path) -> dict[str, Any]:
    return {"vppc": {"mode": "shadow", "journal": str(folder)}}
